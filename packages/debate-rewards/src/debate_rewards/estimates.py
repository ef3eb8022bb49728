"""Statistics over questions: sums, bootstrap intervals, paired comparisons."""

import math
import random
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import add
from statistics import NormalDist, fmean
from typing import Literal

Range = tuple[float, float]

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
    """Return the least and the greatest value of a figure, None where it is not known.

    Args:
        figure: A name of `debate_metrics` or of an evaluation mode, such as `judge/accuracy`;
            parts before and after the figure's own word, as in `eval/` and `/round_1`, are allowed.
    """
    parts = set(figure.split("/"))
    if parts & _DIFFERENCES:
        return -1.0, 1.0
    return (0.0, 1.0) if parts & _SHARES else None


# Sum and weight of a ratio; or of points: their number and the sums of x, y, x², y² and xy.
Moments = tuple[float, ...]


@dataclass(slots=True)
class Sums:
    """Per statistic what was summed so far."""

    moments: dict[str, Moments] = field(default_factory=dict)

    def add(self, name: str, value: float, weight: float = 1.0) -> None:
        """Observe `value`, which is a mean, or sum, over `weight` cases."""
        total, cases = self.moments.get(name, (0.0, 0.0))
        self.moments[name] = (total + value, cases + weight)

    def add_points(self, name: str, points: Iterable[tuple[float, float]]) -> None:
        """Observe points whose correlation is wanted."""
        rows = [(1.0, x, y, x * x, y * y, x * y) for x, y in points]
        if rows:
            self.join(name, tuple(map(sum, zip(*rows, strict=True))))

    def join(self, name: str, moments: Moments) -> None:
        """Add moments of the same statistic."""
        known = self.moments.get(name)
        self.moments[name] = moments if known is None else tuple(map(add, known, moments))

    def merge(self, other: "Sums") -> None:
        """Add all that another has observed."""
        for name, moments in other.moments.items():
            self.join(name, moments)

    def values(self) -> dict[str, float]:
        """Return the statistics that are defined."""
        found = {name: value_of(moments) for name, moments in self.moments.items()}
        return {name: value for name, value in found.items() if value is not None}


def value_of(moments: Sequence[float]) -> float | None:
    """Return a ratio, or Pearson's correlation; None without weight or without spread."""
    if len(moments) == 2:
        return moments[0] / moments[1] if moments[1] > 1e-12 else None
    count, x, y, xx, yy, xy = moments
    if count < 2:
        return None
    spread_x, spread_y = xx - x * x / count, yy - y * y / count
    if spread_x < 1e-9 or spread_y < 1e-9:
        return None
    return float((xy - x * y / count) / (spread_x * spread_y) ** 0.5)


def pooled(rows: Iterable[Mapping[str, Moments]]) -> Sums:
    """Return the sums of all rows together."""
    total = Sums()
    for row in rows:
        total.merge(Sums(dict(row)))
    return total


RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic with its interval, and on how many questions it was observed."""

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
    """Return the mean and a percentile interval for it, resampling questions.

    Args:
        values_per_question: One value per question, already averaged over its debates.
        seed: Repeats the resampling.
        level: Coverage of the interval, between 0 and 1.
        within: The least and the greatest value that a question can have; with it, values that are
            all the same have the interval of `unvaried_interval` and not one without width.

    Returns:
        Mean, lower end, upper end.

    Raises:
        ValueError: There are no values, or the level is not between 0 and 1.
    """
    values = list(values_per_question)
    if not values:
        raise ValueError("bootstrap_interval: found no values, expected at least one question")
    rows = [{"mean": (float(value), 1.0)} for value in values]
    found = bootstrap_estimates(rows, seed, level)["mean"]
    if len(set(values)) == 1:
        return found.value, *unvaried_interval(found.value, len(values), within, level)
    return found.value, found.low, found.high


def unvaried_interval(
    value: float, questions: int, within: Range | None, level: float = 0.95
) -> tuple[float, float]:
    """Return the interval of a mean where every question has the same value.

    Resampling equal values shows no variation at all. But of all questions that could have been
    drawn, a share of up to w = z² / (n + z²) may have other values, the upper end of Wilson's
    interval for 0 of n; the interval has that share at the least value and at the greatest. For
    shares of 0 and 1 it is Wilson's.

    Args:
        value: Of every question.
        questions: Their number n, at least 1.
        within: The least and the greatest value possible; None leaves the interval without width.
        level: Coverage of the interval, between 0 and 1.

    Source: Wilson (1927), Probable inference, the law of succession, and statistical inference.
    """
    if within is None:
        return value, value
    square = NormalDist().inv_cdf((1 + level) / 2) ** 2
    share = square / (questions + square)
    least, greatest = within
    low, high = value + share * (least - value), value + share * (greatest - value)
    return min(value, low), max(value, high)


def bootstrap_estimates(
    rows: Sequence[Mapping[str, Moments]], seed: int = 0, level: float = 0.95
) -> dict[str, Estimate]:
    """Return every statistic with its percentile interval, resampling whole questions.

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
    values = pooled(rows).values()
    columns = {name: _columns(name, rows) for name in values}
    drawn: dict[str, list[float]] = {name: [] for name in values}
    for chosen in _resamples(len(rows), seed):
        for name, sides in columns.items():
            value = value_of([sum(map(side.__getitem__, chosen)) for side in sides])
            if value is not None:
                drawn[name].append(value)
    tail = (1 - level) / 2
    estimates = {}
    for name, value in values.items():
        ordered = sorted(drawn[name]) or [value]
        ends = quantile(ordered, tail), quantile(ordered, 1 - tail)
        observed = [row[name] for row in rows if name in row]
        if len(observed[0]) == 2 and len({value_of(moments) for moments in observed}) == 1:
            ends = unvaried_interval(value, len(observed), range_of(name), level)
        estimates[name] = Estimate(value, *ends, len(observed))
    return estimates


@lru_cache(maxsize=2)
def _resamples(count: int, seed: int) -> list["array[int]"]:
    """Return which questions each resample has; the figures of an evaluation share them."""
    rng = random.Random(seed)
    return [array("I", rng.choices(range(count), k=count)) for _ in range(RESAMPLES)]


def _columns(name: str, rows: Sequence[Mapping[str, Moments]]) -> list[list[float]]:
    width = max(len(row[name]) for row in rows if name in row)
    absent = (0.0,) * width
    return [list(side) for side in zip(*(row.get(name, absent) for row in rows), strict=True)]


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, between two of them by straight line."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


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
        unpaired: Questions that only one side has; they count in nothing here.
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
    sides differ, p is the two-sided binomial probability of so uneven a division at 1/2; the
    interval is Tango's score interval. It does not shrink to a point where the sides never differ.

    Else questions are resampled in pairs: the interval is that of percentiles, and p the share of
    resampled differences at least as far from the one observed as that is from 0, the observed
    sample counted as one of them. It is never below 2^(1 − n), the least that the signs of n
    differences can show. Below about 20 questions a bootstrap is too sure of itself. Differences
    that are all the same have the interval of `unvaried_interval`.

    Args:
        before: Value by question id.
        after: The same of the other side.
        level: Coverage of the interval, between 0 and 1.
        seed: Repeats the resampling.
        within: The least and the greatest value that one side can have; None: not known.

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
    pairs = [(float(before[question]), float(after[question])) for question in shared]
    if not all(math.isfinite(value) for pair in pairs for value in pair):
        raise ValueError("paired: found a value that is not finite, expected numbers")
    differences = [later - earlier for earlier, later in pairs]
    lost, won = sum(d < 0 for d in differences), sum(d > 0 for d in differences)
    test: Literal["mcnemar", "bootstrap"]
    if all(value in (0.0, 1.0) for pair in pairs for value in pair):
        test, p = "mcnemar", mcnemar(lost, won)
        low, high = tango_interval(lost, won, len(pairs), level)
    else:
        test = "bootstrap"
        span = None if within is None else (within[0] - within[1], within[1] - within[0])
        p, low, high = _bootstrap(differences, level, seed, span)
    means = fmean(earlier for earlier, _ in pairs), fmean(later for _, later in pairs)
    unpaired = len(before) + len(after) - 2 * len(pairs)
    difference = math.fsum(differences) / len(pairs)
    return Paired(*means, difference, low, high, p, test, len(pairs), unpaired, lost, won)


def mcnemar(lost: int, won: int) -> float:
    """Return the two-sided p-value of McNemar's exact test.

    Args:
        lost: Questions that turned from right to wrong.
        won: Questions that turned from wrong to right.
    """
    together = lost + won
    tail = sum(math.comb(together, k) for k in range(min(lost, won) + 1))
    return min(1.0, 2 * tail / (1 << together))


def tango_interval(lost: int, won: int, questions: int, level: float) -> tuple[float, float]:
    """Return Tango's score interval of the difference (won − lost) / questions.

    These are the differences Δ that a score test at 1 − level does not reject: with q the share of
    lost questions that is most likely if the difference is Δ,

        |won − lost − n·Δ| ≤ z · sqrt(n · (2·q + Δ·(1 − Δ)))
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    observed = (won - lost) / questions

    def excess(delta: float) -> float:
        """Return by how much the statistic exceeds z, positive where Δ is rejected."""
        linear = (2 * questions - won + lost) * delta - won - lost
        root = math.sqrt(max(0.0, linear**2 + 8 * questions * lost * delta * (1 - delta)))
        share = (root - linear) / (4 * questions)
        variance = questions * (2 * share + delta * (1 - delta))
        return abs(won - lost - questions * delta) - z * math.sqrt(max(0.0, variance))

    return _boundary(excess, observed, -1.0), _boundary(excess, observed, 1.0)


def _boundary(excess: Callable[[float], float], inside: float, outside: float) -> float:
    """Return where a function changes its sign, by bisection."""
    for _ in range(60):
        middle = (inside + outside) / 2
        if excess(middle) > 0:
            outside = middle
        else:
            inside = middle
    return inside


def _bootstrap(
    differences: Sequence[float], level: float, seed: int, span: Range | None
) -> tuple[float, float, float]:
    """Return p and the ends of the interval of the mean difference."""
    count = len(differences)
    observed = math.fsum(differences) / count
    floor = min(1.0, 2.0 ** (1 - count))
    if min(differences) == max(differences):
        p = 1.0 if observed == 0 else floor
        return p, *unvaried_interval(observed, count, span, level)
    rng = random.Random(seed)
    means = sorted(math.fsum(rng.choices(differences, k=count)) / count for _ in range(RESAMPLES))
    # Sums in another order may differ in the last bits; what is equally far counts as far.
    far = abs(observed) * (1 - 1e-12)
    p = (1 + sum(abs(mean - observed) >= far for mean in means)) / (RESAMPLES + 1)
    tail = (1 - level) / 2
    return max(p, floor), quantile(means, tail), quantile(means, 1 - tail)
