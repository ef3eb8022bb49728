"""Statistics over questions: sums, bootstrap intervals, paired comparisons."""

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import add, itemgetter
from statistics import NormalDist, fmean
from typing import Literal

RESAMPLES = 2000

Range = tuple[float, float]
# Sum and weight of a ratio; or of points: their number and the sums of x, y, x², y² and xy.
Moments = tuple[float, ...]

_SHARES = frozenset(
    (
        "accuracy", "owed_accuracy", "correct", "avg@k", "pass@k", "cons@k", "maj@k", "mean@k",
        "format", "format_all", "format_strict", "unread", "flips", "decision", "strict_accuracy",
        "equal_share",
        "comparisons_made", "diversity", "unverifiable", "unmeasured", "maj", "central",
        "tokens_saved", "reached", "consistent", "both_orders", "first_shown", "pairs_in_both",
        "vote_win_rate", "tpr", "fpr", "wins", "unheard", "ok_when_right", "no_when_wrong",
        "critique", "for_right", "vote", "brier", "longer", "impersonates", "own_side",
        "verified",
    )
)  # fmt: skip
_DIFFERENCES = frozenset(("drift", "delta", "gap"))


def range_of(figure: str) -> Range | None:
    """Look up the least and the greatest value of a figure, `None` where it is not known.

    Args:
        figure: A name of `debate_metrics` or of an evaluation mode, such as `judge/accuracy`;
            parts before and after the figure's own word, as in `eval/` and `/round_1`, are allowed.
    """
    parts = set(figure.split("/"))
    if parts & _DIFFERENCES:
        return -1.0, 1.0
    return (0.0, 1.0) if parts & _SHARES else None


@dataclass(slots=True)
class Sums:
    """Running sums of statistics, by name."""

    moments: dict[str, Moments] = field(default_factory=dict)

    def add(self, name: str, value: float, weight: float = 1.0) -> None:
        """Observe `value`, a mean or sum over `weight` cases."""
        total, cases = self.moments.get(name, (0.0, 0.0))
        self.moments[name] = (total + value, cases + weight)

    def add_points(self, name: str, points: Iterable[tuple[float, float]]) -> None:
        """Observe points for a correlation."""
        point_moments = [(1.0, x, y, x * x, y * y, x * y) for x, y in points]
        if point_moments:
            columns = zip(*point_moments, strict=True)
            self.join(name, tuple(sum(column) for column in columns))

    def join(self, name: str, moments: Moments) -> None:
        """Add moments of the same statistic."""
        earlier = self.moments.get(name)
        if earlier is not None:
            moments = tuple(map(add, earlier, moments))
        self.moments[name] = moments

    def merge(self, other: "Sums") -> None:
        """Add all observations of another."""
        for name, moments in other.moments.items():
            self.join(name, moments)

    def values(self) -> dict[str, float]:
        """Compute the statistics that are defined."""
        values = {}
        for name, moments in self.moments.items():
            value = value_of(moments)
            if value is not None:
                values[name] = value
        return values


def value_of(moments: Sequence[float]) -> float | None:
    """Compute a ratio, or Pearson's correlation; `None` without weight or without spread."""
    if len(moments) == 2:
        total, weight = moments
        return total / weight if weight > 1e-12 else None
    count, x, y, xx, yy, xy = moments
    if count < 2:
        return None
    spread_x = xx - x * x / count
    spread_y = yy - y * y / count
    # What is left of equal values after rounding is no spread.
    if spread_x < 1e-9 or spread_y < 1e-9:
        return None
    return float((xy - x * y / count) / (spread_x * spread_y) ** 0.5)


def pooled(rows: Iterable[Mapping[str, Moments]]) -> Sums:
    """Add up the sums of all rows."""
    total = Sums()
    for row in rows:
        total.merge(Sums(dict(row)))
    return total


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic, the interval around it, and the number of questions observed."""

    value: float
    low: float
    high: float
    questions: int


def bootstrap_interval(
    values_per_question: Sequence[float],
    seed: int = 0,
    level: float = 0.95,
    within: Range | None = None,
) -> tuple[float, float, float]:
    """Estimate a mean with a percentile interval, resampling questions.

    Args:
        values_per_question: One value per question, already averaged over its debates.
        seed: Repeats the resampling.
        level: Coverage of the interval, between 0 and 1.
        within: The least and the greatest value that a question can have; with it, equal values
            have the interval of `unvaried_interval` and not one without width.

    Returns:
        Mean, lower end, upper end.

    Raises:
        ValueError: There are no values, or the level is not between 0 and 1.
    """
    values = list(values_per_question)
    if not values:
        raise ValueError("bootstrap_interval: found no values, expected at least one question")
    rows = [{"mean": (float(value), 1.0)} for value in values]
    estimate = bootstrap_estimates(rows, seed, level)["mean"]
    if len(set(values)) == 1:
        return estimate.value, *unvaried_interval(estimate.value, len(values), within, level)
    return estimate.value, estimate.low, estimate.high


def unvaried_interval(
    value: float, questions: int, within: Range | None, level: float = 0.95
) -> tuple[float, float]:
    """Compute the interval of a mean where every question has the same value.

    Resampling equal values shows no variation at all. But of all questions in the population, a
    share of up to w = z² / (n + z²) may have other values, the upper end of Wilson's interval for 0
    of n; the interval puts this share at the least value and at the greatest. For shares of 0 and 1
    it is Wilson's.

    Args:
        value: The value of every question.
        questions: Their number n, at least 1.
        within: The least and the greatest value possible; `None` leaves the interval without width.
        level: Coverage of the interval, between 0 and 1.

    Source: Wilson (1927), Probable inference, the law of succession, and statistical inference.
    """
    if within is None:
        return value, value
    z_squared = NormalDist().inv_cdf((1 + level) / 2) ** 2
    share = z_squared / (questions + z_squared)
    least, greatest = within
    low = value + share * (least - value)
    high = value + share * (greatest - value)
    return min(value, low), max(value, high)


def bootstrap_estimates(
    rows: Sequence[Mapping[str, Moments]], seed: int = 0, level: float = 0.95
) -> dict[str, Estimate]:
    """Estimate every statistic with its percentile interval, resampling whole questions.

    A resample in which a statistic is not defined does not count for it. A share that is the same
    on every question has the interval of `unvaried_interval`.

    Args:
        rows: Per question the moments of its statistics (`debate_rewards.estimates`).
        seed: Repeats the resampling.
        level: Coverage of the interval, between 0 and 1.

    Raises:
        ValueError: The level is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"level: found {level}, expected one between 0 and 1")
    tail = (1 - level) / 2
    estimates = {}
    for name, value in pooled(rows).values().items():
        observed = [row[name] for row in rows if name in row]
        num_moments = len(observed[0])
        is_mean = num_moments == 2
        has_equal_values = len({value_of(moments) for moments in observed}) == 1
        if is_mean and has_equal_values:
            # Equal values resample to no width at all.
            low, high = unvaried_interval(value, len(observed), range_of(name), level)
        else:
            # A question without the statistic adds nothing to a resample.
            absent = (0.0,) * num_moments
            row_moments = [row.get(name, absent) for row in rows]
            resampled = _resampled_values(row_moments, seed)
            ordered = sorted(resampled) or [value]
            low = quantile(ordered, tail)
            high = quantile(ordered, 1 - tail)
        estimates[name] = Estimate(value=value, low=low, high=high, questions=len(observed))
    return estimates


def _resampled_values(row_moments: Sequence[Moments], seed: int) -> list[float]:
    """Compute a statistic on each resample of the questions, where it is defined."""
    columns = zip(*row_moments, strict=True)
    sums = [_resampled_sums(column, seed) for column in columns]
    values = map(value_of, zip(*sums, strict=True))
    return [value for value in values if value is not None]


def _resampled_sums(column: Sequence[float], seed: int) -> list[float]:
    """Sum a column over each resample."""
    count = len(column)
    # The weights of most figures: their sums are exact without adding.
    if column.count(1.0) == count:
        return [float(count)] * RESAMPLES
    if count == 1:
        return list(column) * RESAMPLES
    return [sum(choose(column)) for choose in _resamples(count, seed)]


@lru_cache(maxsize=2)
def _resamples(count: int, seed: int) -> "list[itemgetter[tuple[float, ...]]]":
    """Draw the questions of each resample; the figures of an evaluation share them."""
    rng = random.Random(seed)
    # Numbers are shared between the resamples: each takes 8 bytes a question.
    numbers = list(range(count))
    return [itemgetter(*rng.choices(numbers, k=count)) for _ in range(RESAMPLES)]


def quantile(ordered: Sequence[float], share: float) -> float:
    """Compute a quantile of sorted values, between two of them by straight line."""
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


@dataclass(frozen=True, slots=True)
class Paired:
    """The difference of two means over the same questions.

    Attributes:
        before: Mean over the questions that both sides answered.
        after: The same of the other side.
        difference: `after` − `before`.
        low: Lower end of the interval of the difference.
        high: Its upper end.
        p: Two-sided p-value of no difference.
        test: `mcnemar` (exact) where each question is 0 or 1 on both sides, else `bootstrap`.
        questions: Pairs.
        unpaired: Questions of only one side; no other field counts them.
        lost: Questions on which `after` is lower than `before`.
        won: Questions on which it is higher.
    """

    before: float
    after: float
    difference: float
    low: float
    high: float
    p: float
    test: Literal["mcnemar", "bootstrap"]
    questions: int
    unpaired: int
    lost: int
    won: int


def paired(
    before: Mapping[str, float],
    after: Mapping[str, float],
    *,
    level: float = 0.95,
    seed: int = 0,
    within: Range | None = (0.0, 1.0),
) -> Paired:
    """Compare two sides question by question.

    Where all values are 0 or 1 the test is McNemar's, exact: of the b + c questions on which the
    sides differ, p is the two-sided binomial probability of so uneven a split at 1/2; the
    interval is Tango's score interval. It does not shrink to a point where the sides never differ.

    Else questions are resampled in pairs: the interval is that of percentiles, and p the share of
    resampled differences at least as far from the observed difference as it is from 0, the observed
    sample counted as one of them. It is never below 2^(1 − n), the least that the signs of n
    differences can show. Below about 20 questions a bootstrap is too sure of itself. Equal
    differences have the interval of `unvaried_interval`.

    Args:
        before: Value by question id.
        after: The same of the other side.
        level: Coverage of the interval, between 0 and 1.
        seed: Repeats the resampling.
        within: The least and the greatest value that one side can have; `None`: not known.

    Raises:
        ValueError: The sides have no question in common, a value is not finite, or the level is
            not between 0 and 1.

    Source: McNemar (1947), exact form; Tango (1998), equivalence test and confidence interval for
    the difference in proportions for the paired-sample design; Efron and Tibshirani (1993),
    sections 13.3 and 16.4.
    """
    if not 0 < level < 1:
        raise ValueError(f"level: found {level}, expected one between 0 and 1")
    shared = [question for question in before if question in after]
    if not shared:
        raise ValueError(
            f"paired: found no question on both sides ({len(before)} and {len(after)} questions), "
            "expected the same questions"
        )
    before_values = [float(before[question]) for question in shared]
    after_values = [float(after[question]) for question in shared]
    all_values = before_values + after_values
    if not all(map(math.isfinite, all_values)):
        raise ValueError("paired: found a value that is not finite, expected numbers")
    differences = [float(after[question]) - float(before[question]) for question in shared]
    num_lost = sum(difference < 0 for difference in differences)
    num_won = sum(difference > 0 for difference in differences)
    test: Literal["mcnemar", "bootstrap"]
    # Right or wrong: only the questions on which the sides differ carry information, and their
    # distribution is known exactly.
    if all(value in (0.0, 1.0) for value in all_values):
        test = "mcnemar"
        p = mcnemar(num_lost, num_won)
        low, high = tango_interval(num_lost, num_won, len(shared), level)
    else:
        test = "bootstrap"
        difference_range = None
        if within is not None:
            least, greatest = within
            difference_range = (least - greatest, greatest - least)
        p, low, high = _bootstrap(differences, level, seed, difference_range)
    return Paired(
        before=fmean(before_values),
        after=fmean(after_values),
        difference=math.fsum(differences) / len(shared),
        low=low,
        high=high,
        p=p,
        test=test,
        questions=len(shared),
        unpaired=len(before) + len(after) - 2 * len(shared),
        lost=num_lost,
        won=num_won,
    )


def mcnemar(lost: int, won: int) -> float:
    """Compute the two-sided p-value of McNemar's exact test.

    Args:
        lost: Questions that turned from right to wrong.
        won: Questions that turned from wrong to right.
    """
    num_changed = lost + won
    tail = sum(math.comb(num_changed, k) for k in range(min(lost, won) + 1))
    # Integers up to the division: 2^n as a float would overflow.
    return min(1.0, 2 * tail / (1 << num_changed))


def tango_interval(lost: int, won: int, questions: int, level: float) -> tuple[float, float]:
    """Compute Tango's score interval of the difference (won − lost) / questions.

    A score test at 1 − level does not reject the differences Δ in it: with q the most likely share
    of lost questions if the difference is Δ,

        |won − lost − n·Δ| ≤ z · sqrt(n · (2·q + Δ·(1 − Δ)))
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    observed = (won - lost) / questions

    # The observed difference is never rejected and an impossible one is, so that each end of the
    # interval is the one change of sign between them.
    def excess(delta: float) -> float:
        """Compute the statistic minus z, positive where Δ is rejected."""
        linear = (2 * questions - won + lost) * delta - won - lost
        # The most likely share q solves a quadratic equation with this discriminant. Rounding may
        # push it, and the variance, just below 0.
        discriminant = linear**2 + 8 * questions * lost * delta * (1 - delta)
        root = math.sqrt(max(0.0, discriminant))
        share = (root - linear) / (4 * questions)
        variance = questions * (2 * share + delta * (1 - delta))
        return abs(won - lost - questions * delta) - z * math.sqrt(max(0.0, variance))

    return _boundary(excess, observed, -1.0), _boundary(excess, observed, 1.0)


def _boundary(excess: Callable[[float], float], inside: float, outside: float) -> float:
    """Find the change of a function's sign, by bisection."""
    # 60 halvings of a range of at most 2 end below the spacing of floats near 1.
    for _ in range(60):
        middle = (inside + outside) / 2
        if excess(middle) > 0:
            outside = middle
        else:
            inside = middle
    return inside


def _bootstrap(
    differences: Sequence[float], level: float, seed: int, difference_range: Range | None
) -> tuple[float, float, float]:
    """Compute p and the ends of the interval of the mean difference."""
    count = len(differences)
    observed = math.fsum(differences) / count
    # The signs of n differences cannot show less.
    least_p = min(1.0, 2.0 ** (1 - count))
    if min(differences) == max(differences):
        p = 1.0 if observed == 0 else least_p
        return p, *unvaried_interval(observed, count, difference_range, level)
    rng = random.Random(seed)
    means = []
    for _ in range(RESAMPLES):
        means.append(math.fsum(rng.choices(differences, k=count)) / count)
    means.sort()
    # Sums in another order may differ in the last bits; what is equally far counts as far.
    far = abs(observed) * (1 - 1e-12)
    num_far = sum(abs(mean - observed) >= far for mean in means)
    # The observed sample counts as one of the resamples: p is never 0.
    p = (1 + num_far) / (RESAMPLES + 1)
    tail = (1 - level) / 2
    return max(p, least_p), quantile(means, tail), quantile(means, 1 - tail)
