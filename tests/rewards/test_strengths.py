"""Bradley-Terry strengths: the maximum of likelihood times prior."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_a_first_guess_leads_to_the_same_strengths() -> None:
    wins = with_both_orders({(0, 1): 3.0, (1, 2): 1.0})
    cold = log_strengths(wins, 0.5)
    assert log_strengths(wins, 0.5, start={0: 4.0, 1: -9.0}) == pytest.approx(cold)
    assert log_strengths({}, 0.5) == {}


def test_odds_are_those_of_the_votes_when_the_prior_vanishes() -> None:
    # Three wins and one loss: odds 3 to 1.
    strengths = log_strengths({("a", "b"): 3.0, ("b", "a"): 1.0}, prior=1e-9)
    assert strengths["a"] - strengths["b"] == pytest.approx(math.log(3), abs=1e-5)


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
