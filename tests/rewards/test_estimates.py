"""Means, intervals and paired comparisons, by hand and against SciPy."""

import random
from statistics import NormalDist, fmean

import pytest

from debate_rewards.estimates import (
    Sums,
    bootstrap_estimates,
    bootstrap_interval,
    mcnemar,
    paired,
    tango_interval,
    unvaried_interval,
    value_of,
)

Z = NormalDist().inv_cdf(0.975)


# ---- intervals ------------------------------------------------------------------------------


def test_values_that_do_not_vary_have_an_interval_inside_their_range() -> None:
    assert bootstrap_interval([3.0] * 5) == (3.0, 3.0, 3.0)
    share = Z * Z / (5 + Z * Z)
    none_right = bootstrap_interval([0.0] * 5, within=(0.0, 1.0))
    assert none_right == pytest.approx((0.0, 0.0, share))
    # Half of each question is right: those that are not could be all wrong, or all right.
    half_right = bootstrap_interval([0.5] * 5, within=(0.0, 1.0))
    assert half_right == pytest.approx((0.5, 0.5 - share / 2, 0.5 + share / 2))


@pytest.mark.parametrize("num_right", [0, 5])
def test_the_interval_of_single_answers_is_that_of_wilson(num_right: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    wilson = stats.binomtest(num_right, 5).proportion_ci(method="wilson")
    interval = unvaried_interval(num_right / 5, 5, (0.0, 1.0))
    assert interval == pytest.approx((wilson.low, wilson.high))


def test_estimates_weigh_questions_by_what_was_observed() -> None:
    # 1 of 1 and 0 of 3: the ratio of sums is 1/4, not the mean of the questions' ratios.
    estimates = bootstrap_estimates([{"x": (1.0, 1.0)}, {"x": (0.0, 3.0)}, {"y": (1.0, 1.0)}])
    assert estimates["x"].value == 1 / 4
    assert (estimates["x"].questions, estimates["y"].questions) == (2, 1)
    assert (estimates["x"].low, estimates["x"].high) == (0, 1)


def test_points_have_the_correlation_of_pearson() -> None:
    sums = Sums()
    # x = 1, 2, 4 and y = 2, 1, 3: means 7/3 and 2; Σ xy = 2 + 2 + 12 − 3 · 14/3 = 2;
    # spreads 21 − 49/3 = 14/3 and 14 − 12 = 2: 2 / √(28/3).
    sums.add_points("r", [(1, 2), (2, 1), (4, 3)])
    assert sums.values()["r"] == pytest.approx(2 / (28 / 3) ** 0.5)
    assert value_of((3.0, 3.0, 6.0, 3.0, 14.0, 6.0)) is None  # x has no spread.


# ---- paired comparisons ---------------------------------------------------------------------


def graded(seed: int, num_questions: int, gain: float) -> tuple[dict[str, float], ...]:
    rng = random.Random(seed)
    before = {f"q{number}": rng.randrange(4) / 4 for number in range(num_questions)}
    after = {}
    for question, value in before.items():
        after[question] = min(1.0, value + gain * rng.randrange(3) / 4)
    return before, after


@pytest.mark.parametrize(("lost", "won"), [(0, 0), (0, 5), (3, 9), (10, 10)])
def test_mcnemar_is_the_binomial_test(lost: int, won: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    expected = stats.binomtest(won, lost + won).pvalue if lost + won else 1.0
    assert mcnemar(lost, won) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("table", [(3, 9, 20, 8), (0, 0, 5, 0), (0, 4, 3, 3), (7, 0, 1, 2)])
def test_the_interval_of_tango_ends_where_the_score_test_rejects(table: tuple[int, ...]) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    stats = pytest.importorskip("scipy.stats")
    lost, won, *_ = table
    count = sum(table)

    def is_rejected(delta: float) -> bool:
        # The share of lost questions that is most likely where won − lost is Δ, by search; then
        # the score statistic with the variance of that.
        def surprise(share: float) -> float:
            shares = [share, share + delta, 1 - 2 * share - delta]
            counts = [lost, won, count - lost - won]
            return float(-stats.multinomial.logpmf(counts, count, shares))

        bounds = (max(0.0, -delta) + 1e-12, (1 - delta) / 2 - 1e-12)
        search = optimize.minimize_scalar(surprise, bounds=bounds, options={"xatol": 1e-10})
        spread = (count * (2 * search.x + delta * (1 - delta))) ** 0.5
        return bool(abs(won - lost - count * delta) > Z * spread)

    interval = tango_interval(lost, won, count, 0.95)
    assert interval[0] < (won - lost) / count < interval[1]
    for end, outside in zip(interval, (-1e-4, 1e-4), strict=True):
        assert not is_rejected(end - outside)
        if abs(end) < 1 - 1e-3:
            assert is_rejected(end + outside)


def test_the_paired_bootstrap_is_that_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    before, after = graded(5, 60, 0.4)
    comparison = paired(before, after)
    differences = [after[question] - before[question] for question in before]
    scipy = stats.bootstrap((differences,), fmean, vectorized=False, n_resamples=4_000, rng=1)
    assert comparison.test == "bootstrap"
    # Standard error of a 2.5 % quantile of 2,000 draws: √(.025·.975/2000)/φ(1.96) = .06 spreads;
    # SciPy corrects the bias of its interval by less than that.
    tolerance = 5 * 0.063 * scipy.standard_error
    assert comparison.low == pytest.approx(scipy.confidence_interval.low, abs=tolerance)
    assert comparison.high == pytest.approx(scipy.confidence_interval.high, abs=tolerance)


@pytest.mark.parametrize("seed", range(2))
def test_p_goes_with_the_permutation_test(seed: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    before, after = graded(seed, 80, 0.0)
    rng = random.Random(seed + 10)
    after = {key: value + rng.choice([-0.25, 0.25, 0.3, 0.0]) for key, value in after.items()}
    comparison = paired(before, after, within=None)
    differences = [after[question] - before[question] for question in before]
    permuted = stats.permutation_test(
        (differences,),
        lambda x, axis: x.mean(axis),
        permutation_type="samples",
        n_resamples=10_000,
        vectorized=True,
        rng=seed,
    )
    # Two shares of draws, each with an error, and what the tests differ by at 80 pairs.
    error = 4 * (permuted.pvalue * (1 - permuted.pvalue) / 2000) ** 0.5
    assert comparison.p == pytest.approx(permuted.pvalue, abs=error + 0.02)


def test_differences_that_are_all_the_same_have_width_and_no_certain_p() -> None:
    before = dict.fromkeys("abcd", 0.25)
    share = Z * Z / (4 + Z * Z)
    better = paired(before, dict.fromkeys(before, 0.5))
    assert better.p == 2**-3
    assert (better.low, better.high) == pytest.approx((0.25 - share * 1.25, 0.25 + share * 0.75))
    same = paired(before, before)
    assert (same.p, same.low, same.high) == pytest.approx((1.0, -share, share))


def test_questions_of_one_side_are_counted_and_left_out() -> None:
    comparison = paired({"a": 0.0, "b": 1.0, "c": 0.5}, {"b": 0.5, "c": 1.0, "d": 0.0})
    assert (comparison.questions, comparison.unpaired) == (2, 2)
    assert (comparison.before, comparison.after, comparison.difference) == (0.75, 0.75, 0.0)
