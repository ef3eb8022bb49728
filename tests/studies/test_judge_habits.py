"""What simulated judges earn; the simulation is benchmarks/learning/judge_habits.py."""

import pytest

from benchmarks.learning import judge_habits as simulation

PAID = {
    "peer_prediction": 0.2,
    "correlated_agreement": 0.2,
    "determinant_mutual_information": 0.02,
}
"""What judges of skill 0.9 earn at the least; a fourth of it is no more than noise."""


def mean(reward: str, kind: str, *, alone: bool = False) -> float:
    found = simulation.earned(simulation.REWARDS[reward], kind, alone=alone, questions=100, seed=0)
    return found[0]


# 500 turns of 6 votes each: the standard error of a mean is at most 0.02.
@pytest.mark.parametrize("reward", PAID)
@pytest.mark.parametrize("habit", ["equal", "low_first", "first_position"])
def test_peer_prediction_pays_nothing_for_a_habit_of_everyone(habit, reward):
    assert mean(reward, habit) == pytest.approx(0.0, abs=PAID[reward] / 4)


@pytest.mark.parametrize("reward", PAID)
@pytest.mark.parametrize("habit", ["equal", "low_first", "first_position"])
def test_peer_prediction_pays_nothing_for_a_habit_among_skilled_judges(habit, reward):
    assert mean(reward, habit, alone=True) < PAID[reward] / 4


@pytest.mark.parametrize("reward", PAID)
def test_peer_prediction_pays_skill(reward):
    guess, fair, good, perfect = (mean(reward, skill) for skill in ("0.5", "0.7", "0.9", "1.0"))
    assert guess == pytest.approx(0.0, abs=PAID[reward] / 4)
    assert guess < fair < good < perfect
    assert good > PAID[reward]
    alone = [mean(reward, skill, alone=True) for skill in ("0.5", "0.7", "0.9")]
    assert alone == sorted(alone)
    assert alone[2] > PAID[reward]


@pytest.mark.parametrize("reward", ["inclusive", "leave_one_out"])
def test_consensus_pays_a_shared_habit_in_full(reward):
    assert mean(reward, "low_first") == 1.0


def test_inclusive_consensus_pays_guessing():
    assert mean("inclusive", "0.5") > 0.7
    assert mean("leave_one_out", "0.5") == pytest.approx(0.0, abs=0.1)


def test_peer_prediction_pays_a_signal_that_judges_share_without_looking():
    # Its known limit, here as a warning: prompts list agents by number, never in a drawn order.
    assert mean("peer_prediction", "shared_order") > 0.3
    assert mean("truth", "shared_order") == pytest.approx(0.0, abs=0.1)
