"""Advantages of a group of replies, as published methods compute them."""

from statistics import stdev

import pytest

from debate_rewards.group_advantages import GROUP_METHODS, group_mean, std_factor

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


def test_an_empty_reply_is_divided_by_one() -> None:
    assert METHODS["GRPO"].token_weights([0.0, 1.0], [0, 1]) == pytest.approx(
        [-0.5 / (0.5**0.5 + 1e-6), 0.5 / (0.5**0.5 + 1e-6)]
    )


def test_the_mean_of_equal_values_is_exact() -> None:
    # 0.1 + 0.1 + 0.1 is not 3 · 0.1 in floating point.
    assert group_mean([0.1] * 3) == 0.1
    assert group_mean([0.0, 0.5, 1.0]) == 0.5
    assert std_factor([0.2, 0.6]) == pytest.approx(1 / (stdev([0.2, 0.6]) + 1e-6))
