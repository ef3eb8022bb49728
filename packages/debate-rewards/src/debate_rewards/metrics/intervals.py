"""Bootstrap intervals over questions."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    values_per_question: Sequence[float], seed: int = 0, level: float = 0.95
) -> tuple[float, float, float]:
    """Return the mean and a percentile interval for it, resampling questions.

    Args:
        values_per_question: One value per question, already averaged over its debates.
        seed: Repeats the resampling.
        level: Coverage of the interval, between 0 and 1.

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
    return found.value, found.low, found.high


def bootstrap_estimates(
    rows: Sequence[Mapping[str, Moments]], seed: int = 0, level: float = 0.95
) -> dict[str, Estimate]:
    """Return every statistic with its percentile interval, resampling whole questions.

    A resample in which a statistic is not defined does not count for it.

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
    rng = random.Random(seed)
    drawn: dict[str, list[float]] = {name: [] for name in values}
    for _ in range(RESAMPLES):
        chosen = rng.choices(range(len(rows)), k=len(rows))
        for name, sides in columns.items():
            value = value_of([sum(map(side.__getitem__, chosen)) for side in sides])
            if value is not None:
                drawn[name].append(value)
    tail = (1 - level) / 2
    estimates = {}
    for name, value in values.items():
        ordered = sorted(drawn[name]) or [value]
        ends = _quantile(ordered, tail), _quantile(ordered, 1 - tail)
        estimates[name] = Estimate(value, *ends, sum(name in row for row in rows))
    return estimates


def _columns(name: str, rows: Sequence[Mapping[str, Moments]]) -> list[list[float]]:
    width = max(len(row[name]) for row in rows if name in row)
    absent = (0.0,) * width
    return [list(side) for side in zip(*(row.get(name, absent) for row in rows), strict=True)]


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
