"""Correlated agreement and determinant mutual information, by hand and for judges of habits."""

from collections.abc import Sequence
from itertools import chain, product

import pytest

from benchmarks.learning import judge_habits as simulation
from debate_protocol.types import TurnKey
from debate_rewards.reward import RewardContext
from debate_rewards.votes import Vote
from debate_studies.peer_scores import (
    PARTS,
    V2PeerScores,
    correlated_agreement,
    determinant_scores,
    peer_score_values,
)

KINDS = tuple(PARTS)
PAID = {
    "peer_prediction": 0.2,
    "correlated_agreement": 0.2,
    "determinant_mutual_information": 0.02,
}
"""What judges of skill 0.9 earn at the least; a fourth of it is no more than noise."""


def cast(*pairs: str) -> list[Vote]:
    """Return votes: each text holds one judge's verdict after the other on a pair of turns."""
    return [
        Vote(TurnKey(100 + judge, 1), (TurnKey(2 * n, 0), TurnKey(2 * n + 1, 0)), verdict, (0, 0))  # type: ignore[arg-type]
        for n, verdicts in enumerate(pairs)
        for judge, verdict in enumerate(verdicts)
    ]


def values(kind, *debates: Sequence[Vote]) -> list[list[float | None]]:
    return peer_score_values([f"q{n}" for n in range(len(debates))], debates, kind)


def flat(table):
    return [value for value in chain.from_iterable(table) if value is not None]


def test_correlated_agreement_scores_what_meets_more_often_than_by_chance():
    # 14 in all; > 5, = 5, < 4. (>, >): 2 · 14 > 25; (>, =): 3 · 14 > 25; (<, <): 4 · 14 > 16.
    assert correlated_agreement([[2, 3, 0], [3, 2, 0], [0, 0, 4]]) == [
        [1, 1, 0],
        [1, 1, 0],
        [0, 0, 1],
    ]
    # Independent verdicts meet exactly as often as by chance: 1 · 4 is not more than 2 · 2.
    assert correlated_agreement([[1, 1, 0], [1, 1, 0], [0, 0, 0]]) == [[0] * 3] * 3
    # > and = exchanged by one of two judges: what differs agrees.
    assert correlated_agreement([[0, 3, 0], [3, 0, 0], [0, 0, 4]]) == [
        [0, 1, 0],
        [1, 0, 0],
        [0, 0, 1],
    ]


def test_determinant_scores_are_cofactors_of_one_part_times_the_determinant_of_another():
    even = [[2, 0, 0], [0, 2, 0], [0, 0, 2]]
    assert flat(determinant_scores(even, even)) == pytest.approx([1, 0, 0, 0, 1, 0, 0, 0, 1])
    # Cofactors over 9²: 6, −3; −3, 6; 3. Determinant over 4³: 2/64. Times 243: 3/32.
    scores = determinant_scores(
        [[2, 1, 0], [1, 2, 0], [0, 0, 3]], [[1, 0, 0], [0, 1, 0], [0, 0, 2]]
    )
    expected = [18 / 32, -9 / 32, 0, -9 / 32, 18 / 32, 0, 0, 0, 9 / 32]
    assert flat(scores) == pytest.approx(expected, abs=1e-15)
    # A verdict that nobody gives, and independent verdicts, say nothing.
    assert determinant_scores(even, [[4, 0, 0], [0, 4, 0], [0, 0, 0]]) == [[0.0] * 3] * 3
    assert determinant_scores(even, [[1, 2, 3], [2, 4, 6], [3, 6, 9]]) == [[0.0] * 3] * 3


def test_correlated_agreement_values_of_four_questions():
    # Parts: q0 and q2, q1 and q3. The scores of the first come from q1 and q3:
    # (>, =) 3, (>, <) 1, (=, =) 2, (=, <) 1 of 12; > 4, = 6, < 2. More than by chance:
    # 3 · 12 > 24 and 1 · 12 > 8, not 2 · 12 > 36 or 1 · 12 > 12. So > with = and with <.
    first, second, third, fourth = values(
        "correlated_agreement", *map(cast, [">>=", ">=<", "==<", ">=="])
    )
    # q0 beside q2 (=, =, <), where > would score 1 and = would score 0.
    assert first == pytest.approx([1 / 2 - 1, 1 / 2 - 1, 1 - 0])
    # q2 beside q0 (>, >, =), where = and < would score 2/3.
    assert third == pytest.approx([-2 / 3] * 3)
    # From q0 and q2: (>, >) 2 · 12 > 16 and (=, <) 2 · 12 > 12; (>, =) 2 · 12 is 4 · 6.
    # q1 beside q3 (>, =, =): > would score 1/3, = 0, < 2/3.
    assert second == pytest.approx([0 - 1 / 3, 1 / 2 - 0, 1 / 2 - 2 / 3])
    # q3 beside q1 (>, =, <): each would score 1/3.
    assert fourth == pytest.approx([-1 / 3] * 3)


def test_determinant_values_of_four_questions():
    # Parts: q0 and q3, q1, q2. Cofactors from q1, [[2, 1, 0], [1, 2, 0], [0, 0, 2]] of 8:
    # (>, >) 4, (>, =) −2. Determinant from q2, diagonal 2, 2, 4 of 8: 16/512.
    debates = [cast(">="), cast(">>", "==", "<<", ">="), cast(">>", "==", "<<", "<<"), cast(">>")]
    scale = 243 / 32 / 64
    first, second, third, fourth = values("determinant_mutual_information", *debates)
    # q0 beside q3 (always >): −2 − 4, and −2 − (−2).
    assert first == pytest.approx([-6 * scale, 0])
    # q3 beside q0 (one each): 4 − (4 − 2) / 2.
    assert fourth == pytest.approx([3 * scale] * 2)
    # Alone in their parts, q1 and q2 have nothing to be compared with.
    assert {*second, *third} == {None}


@pytest.mark.parametrize("kind", KINDS)
def test_verdicts_that_do_not_depend_on_the_turns_are_worth_0_on_average(kind):
    others = [cast(">>", "==", "<<", ">="), cast(">>", "==", "<<", "<<", "=<")][: PARTS[kind] - 1]
    total = 0.0
    largest = 0.0
    # Every verdict of two judges on two questions of one part, each as likely as the others.
    for first, second, third, fourth in product(">=<", repeat=4):
        debates = [cast(first + second), *others, cast(third + fourth)]
        of_debates = values(kind, *debates)
        of_both = [value for value in (*of_debates[0], *of_debates[-1]) if value is not None]
        assert len(of_both) == 4
        total += sum(of_both)
        largest = max(largest, *map(abs, of_both))
    assert largest > 0.1
    assert total == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_v2_takes_peer_scores_as_values_that_are_centred_already(kind, hold):
    # Pairs (0,1), (1,2) and (0,2) have two judges and more, who agree.
    lines = ["A1=A2; A3<A4", "A0<A2; A2=A3", "A0>A1; A3<A4", "A0>A1; A1=A2", "A0>A1; A1=A2; A0<A2"]
    batch = [hold([""] * 5, lines, n=5, id=str(n)) for n in range(6)]
    scores = V2PeerScores(consensus=kind)(batch)
    judge = [c for score in scores for c in score.credits if c.stream == "judge" and c.round == 1]
    assert all(credit.centred for credit in judge)
    assert all(credit.value is not None and credit.value > 0 for credit in judge)
    assert V2PeerScores(consensus=kind).needs().num_questions == PARTS[kind] + 1
    rules = batch[0].protocol
    reward = V2PeerScores(consensus=kind)
    few = RewardContext(rules, questions=PARTS[kind])
    (silent,) = [note.text for note in reward.notes(few) if note.stream == "judge"]
    assert f"expected data.batch_size above {PARTS[kind]}" in silent
    enough = RewardContext(rules, questions=PARTS[kind] + 1)
    assert all(note.stream != "judge" for note in reward.notes(enough))


def mean(reward: str, kind: str, *, among_skilled: bool = False) -> float:
    earned = simulation.earned(
        simulation.REWARDS[reward], kind, alone=among_skilled, questions=100, seed=0
    )
    return earned[0]


# 500 turns of 6 votes each: the standard error of a mean is at most 0.02.
@pytest.mark.parametrize("reward", PAID)
@pytest.mark.parametrize("habit", ["equal", "low_first", "first_position"])
def test_peer_prediction_pays_nothing_for_a_habit_of_everyone(habit, reward):
    assert mean(reward, habit) == pytest.approx(0.0, abs=PAID[reward] / 4)


@pytest.mark.parametrize("reward", PAID)
@pytest.mark.parametrize("habit", ["equal", "low_first", "first_position"])
def test_peer_prediction_pays_nothing_for_a_habit_among_skilled_judges(habit, reward):
    assert mean(reward, habit, among_skilled=True) < PAID[reward] / 4


@pytest.mark.parametrize("reward", PAID)
def test_peer_prediction_pays_skill(reward):
    guess, fair, good, perfect = (mean(reward, skill) for skill in ("0.5", "0.7", "0.9", "1.0"))
    assert guess == pytest.approx(0.0, abs=PAID[reward] / 4)
    assert guess < fair < good < perfect
    assert good > PAID[reward]
    rising = [mean(reward, skill, among_skilled=True) for skill in ("0.5", "0.7", "0.9")]
    assert rising == sorted(rising)
    assert rising[2] > PAID[reward]
