"""Paired comparisons and intervals of values that do not vary, by hand and against SciPy."""

import random
from statistics import NormalDist, fmean

import pytest

from debate_rewards.estimates import (
    bootstrap_interval,
    mcnemar,
    paired,
    tango_interval,
    unvaried_interval,
)

Z = NormalDist().inv_cdf(0.975)


def sides(lost, won, right, wrong):
    """Return 0/1 values of the questions of a fourfold table."""
    pairs = [(1, 0)] * lost + [(0, 1)] * won + [(1, 1)] * right + [(0, 0)] * wrong
    before = {f"q{n}": float(pair[0]) for n, pair in enumerate(pairs)}
    return before, {f"q{n}": float(pair[1]) for n, pair in enumerate(pairs)}


def test_paired_counts_single_answers_by_hand():
    found = paired(*sides(1, 6, 2, 1))
    # 7 questions differ, 1 of them for the worse: 2 · (1 + 7) / 2^7 = .125.
    assert (found.test, found.p, found.questions) == ("mcnemar", 0.125, 10)
    assert (found.lost, found.won, found.unpaired) == (1, 6, 0)
    assert (found.before, found.after, found.difference) == (0.3, 0.8, 0.5)
    assert found.low < 0.5 < found.high


def test_mcnemar_is_the_binomial_test():
    stats = pytest.importorskip("scipy.stats")
    for lost in range(0, 12, 2):
        for won in range(0, 12, 2):
            expected = stats.binomtest(won, lost + won).pvalue if lost + won else 1.0
            assert mcnemar(lost, won) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("table", [(3, 9, 20, 8), (0, 0, 5, 0), (0, 4, 3, 3), (7, 0, 1, 2)])
def test_tango_interval_ends_where_the_score_test_rejects(table):
    optimize = pytest.importorskip("scipy.optimize")
    stats = pytest.importorskip("scipy.stats")
    lost, won, *_ = table
    count = sum(table)

    def rejected(delta):
        # The share q of lost questions that is most likely where won − lost is Δ, found
        # numerically; then the score statistic with the variance of that.
        def unlikely(q):
            rest = 1 - 2 * q - delta
            return -stats.multinomial.logpmf(
                [lost, won, count - lost - won], count, [q, q + delta, rest]
            )

        room = max(0.0, -delta) + 1e-12, (1 - delta) / 2 - 1e-12
        q = optimize.minimize_scalar(unlikely, bounds=room, options={"xatol": 1e-10}).x
        spread = (count * (2 * q + delta * (1 - delta))) ** 0.5
        return abs(won - lost - count * delta) > Z * spread

    low, high = tango_interval(lost, won, count, 0.95)
    assert -1 <= low < (won - lost) / count < high <= 1 or high == 1
    for end, away in ((low, -1), (high, 1)):
        assert not rejected(end - away * 1e-4)
        if abs(end) < 1 - 1e-3:
            assert rejected(end + away * 1e-4)


def test_paired_interval_has_width_when_nothing_differs():
    found = paired(*sides(0, 0, 5, 0))
    # Score interval without a differing question: ± z² / (n + z²).
    bound = Z * Z / (5 + Z * Z)
    assert (found.p, found.difference) == (1.0, 0.0)
    assert (found.low, found.high) == (pytest.approx(-bound), pytest.approx(bound))


def graded(seed, questions, gain):
    rng = random.Random(seed)
    before = {f"q{n}": rng.randrange(4) / 4 for n in range(questions)}
    after = {q: min(1.0, value + gain * rng.randrange(3) / 4) for q, value in before.items()}
    return before, after


def test_paired_bootstrap_is_that_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    before, after = graded(5, 60, 0.4)
    found = paired(before, after)
    differences = [after[q] - before[q] for q in before]
    theirs = stats.bootstrap(
        (differences,), lambda x, axis: x.mean(axis), n_resamples=20_000, method="percentile",
        rng=1,
    )  # fmt: skip
    spread = theirs.standard_error
    assert found.test == "bootstrap"
    # Standard error of a 2.5 % quantile of 2,000 draws: sqrt(.025·.975/2000)/φ(1.96) = .06 spreads.
    assert found.low == pytest.approx(theirs.confidence_interval.low, abs=4 * 0.063 * spread)
    assert found.high == pytest.approx(theirs.confidence_interval.high, abs=4 * 0.063 * spread)


@pytest.mark.parametrize("seed", range(4))
def test_paired_bootstrap_p_goes_with_the_permutation_test(seed):
    stats = pytest.importorskip("scipy.stats")
    before, after = graded(seed, 80, 0.0)
    rng = random.Random(seed + 10)
    after = {q: value + rng.choice([-0.25, 0.25, 0.3, 0.0]) for q, value in after.items()}
    found = paired(before, after, within=None)
    differences = [after[q] - before[q] for q in before]
    theirs = stats.permutation_test(
        (differences,), lambda x, axis: x.mean(axis), permutation_type="samples",
        n_resamples=20_000, vectorized=True, rng=seed,
    ).pvalue  # fmt: skip
    # Two shares of draws, each with its own error, and what the two tests differ by at 80 pairs.
    error = 4 * (theirs * (1 - theirs) / 2000) ** 0.5
    assert found.p == pytest.approx(theirs, abs=error + 0.02)


def test_paired_test_is_of_its_size_where_nothing_changed():
    rng = random.Random(3)
    found = []
    for trial in range(120):
        before = {str(n): rng.random() for n in range(20)}
        after = {str(n): rng.random() for n in range(20)}
        found.append(paired(before, after, seed=trial).p)
    # 6 of 120 expected below .05, standard deviation 2.4; p is uniform, with mean 1/2.
    assert 1 <= sum(p < 0.05 for p in found) <= 16
    assert fmean(found) == pytest.approx(0.5, abs=4 * (1 / 12 / 120) ** 0.5)


def test_paired_differences_that_are_all_the_same_have_width_and_no_certain_p():
    before = {str(n): 0.25 for n in range(4)}
    found = paired(before, dict.fromkeys(before, 0.5))
    share = Z * Z / (4 + Z * Z)
    assert found.p == 2**-3
    assert found.low == pytest.approx(0.25 - share * 1.25)
    assert found.high == pytest.approx(0.25 + share * 0.75)
    same = paired(before, before)
    assert (same.p, same.low, same.high) == (1.0, pytest.approx(-share), pytest.approx(share))


def test_paired_bootstrap_of_few_questions_is_not_surer_than_their_signs():
    # No resample of +.2, +.3 and +.4 is as far from their mean as that is from 0.
    found = paired(dict.fromkeys("abc", 0.1), {"a": 0.3, "b": 0.4, "c": 0.5})
    assert (found.test, found.p) == ("bootstrap", 2**-2)


def test_paired_takes_questions_of_both_sides_and_counts_the_others():
    found = paired({"a": 0.0, "b": 1.0, "c": 0.5}, {"b": 0.5, "c": 1.0, "d": 0.0})
    assert (found.questions, found.unpaired) == (2, 2)
    assert (found.before, found.after, found.difference) == (0.75, 0.75, 0.0)


def test_paired_repeats_by_seed():
    before, after = graded(2, 30, 0.5)
    assert paired(before, after, seed=4) == paired(before, after, seed=4)
    assert paired(before, after, seed=4) != paired(before, after, seed=5)


@pytest.mark.parametrize(
    ("before", "after", "level", "said"),
    [
        ({"a": 1.0}, {"b": 1.0}, 0.95, "no question on both sides"),
        ({"a": 1.0}, {"a": float("nan")}, 0.95, "not finite"),
        ({"a": 1.0}, {"a": 1.0}, 1.0, "level: found 1.0"),
    ],
)
def test_paired_refuses_what_cannot_be_compared(before, after, level, said):
    with pytest.raises(ValueError, match=said):
        paired(before, after, level=level)


@pytest.mark.parametrize("right", [0, 5])
def test_unvaried_interval_of_single_answers_is_wilsons(right):
    stats = pytest.importorskip("scipy.stats")
    theirs = stats.binomtest(right, 5).proportion_ci(method="wilson")
    found = unvaried_interval(right / 5, 5, (0.0, 1.0))
    assert found == (pytest.approx(theirs.low), pytest.approx(theirs.high))


def test_bootstrap_interval_has_width_at_none_of_five_right():
    mean, low, high = bootstrap_interval([0.0] * 5, within=(0.0, 1.0))
    assert (mean, low) == (0.0, 0.0)
    assert high == pytest.approx(Z * Z / (5 + Z * Z))
    # Half of each question is right: those that are not could be all wrong, or all right.
    share = Z * Z / (5 + Z * Z)
    _, low, high = bootstrap_interval([0.5] * 5, within=(0.0, 1.0))
    assert (low, high) == (pytest.approx(0.5 - share / 2), pytest.approx(0.5 + share / 2))
    assert bootstrap_interval([3.0] * 5) == (3.0, 3.0, 3.0)
