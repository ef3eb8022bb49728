"""Intervals over questions: by bootstrap, and for values that do not vary."""

import random
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

from debate_rewards.metrics.ranges import Range, range_of
from debate_rewards.metrics.sums import Moments, pooled, value_of

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
        rows: Per question the moments of its statistics (`debate_rewards.metrics.sums`).
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
