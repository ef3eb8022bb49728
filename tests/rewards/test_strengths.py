"""Bradley-Terry strengths: the maximum of likelihood times prior."""

import math
from statistics import stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debate_rewards.group_advantages import GROUP_METHODS, group_mean, std_factor
from debate_rewards.strengths import log_strengths

PAIRS = st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(lambda pair: pair[0] != pair[1])
WINS = st.dictionaries(PAIRS, st.floats(0, 4), max_size=8)


def win_chance(strength: float, other: float) -> float:
    return 1 / (1 + math.exp(other - strength))


def with_both_orders(wins: dict[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    return {(loser, winner): 0.0 for winner, loser in wins} | wins


@settings(max_examples=50, deadline=None, derandomize=True)
@given(WINS, st.sampled_from([0.1, 0.5, 1.0]))
def test_each_item_wins_as_often_as_its_strength_says(
    wins: dict[tuple[int, int], float], prior: float
) -> None:
    wins = with_both_orders(wins)
    strengths = log_strengths(wins, prior)
    assert set(strengths) == {item for item, _ in wins}
    # The slope of the concave log posterior is 0: wins, with the prior's, are the expected ones.
    for item, strength in strengths.items():
        num_wins = prior
        expected_wins = 2 * prior * win_chance(strength, 0)
        for (first, second), count in wins.items():
            num_wins += count if first == item else 0
            if item in (first, second):
                other = second if first == item else first
                expected_wins += count * win_chance(strength, strengths[other])
        assert num_wins == pytest.approx(expected_wins, abs=1e-8)


def test_strengths_stay_finite_with_a_weak_prior_and_many_votes() -> None:
    wins = {}
    for first in range(7):
        for second in range(7):
            if first != second:
                wins[first, second] = 1000.0 * (first < second)
    strengths = log_strengths(wins, prior=1e-3)
    assert all(math.isfinite(strength) for strength in strengths.values())
    assert sorted(strengths, key=strengths.__getitem__) == list(range(7))[::-1]
    assert strengths[0] == pytest.approx(-strengths[6])


METHODS = {method.name: method for method in GROUP_METHODS}
# The mean is ½ and the deviations are −½, −½, ½, ½: squares 4·¼ over 3, so √(1/3).
REWARDS = [0.0, 0.0, 1.0, 1.0]
LENGTHS = [1, 2, 4, 5]
FACTOR = 1 / ((1 / 3) ** 0.5 + 1e-6)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("GRPO", [-0.5 * FACTOR, -0.25 * FACTOR, 0.125 * FACTOR, 0.1 * FACTOR]),
        ("Dr. GRPO", [-0.5, -0.5, 0.5, 0.5]),
        # Against the mean of the other three: 0 − 2/3, and 1 − 1/3.
        ("RLOO", [-2 / 3, -2 / 3, 2 / 3, 2 / 3]),
        ("DAPO", [-0.5 * FACTOR, -0.5 * FACTOR, 0.5 * FACTOR, 0.5 * FACTOR]),
        ("ours (grouped)", [-0.5, -0.5, 0.5, 0.5]),
    ],
)
def test_methods_weigh_the_tokens_of_a_group(name: str, weights: list[float]) -> None:
    assert METHODS[name].token_weights(REWARDS, LENGTHS) == pytest.approx(weights)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("rewards", [[0.1, 0.1, 0.1], [0.7]])
def test_groups_without_spread_teach_nothing(name: str, rewards: list[float]) -> None:
    weights = METHODS[name].token_weights(rewards, [3] * len(rewards))
    assert weights == (None if name == "DAPO" else [0.0] * len(rewards))


def test_the_mean_of_equal_values_is_exact() -> None:
    # 0.1 + 0.1 + 0.1 is not 3 · 0.1 in floating point.
    assert group_mean([0.1] * 3) == 0.1
    assert group_mean([0.0, 0.5, 1.0]) == 0.5
    assert std_factor([0.2, 0.6]) == pytest.approx(1 / (stdev([0.2, 0.6]) + 1e-6))
