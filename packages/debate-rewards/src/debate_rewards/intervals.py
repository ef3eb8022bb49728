"""Bootstrap intervals over questions."""

import random
from collections.abc import Sequence

RESAMPLES = 2000


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
    if not 0 < level < 1:
        raise ValueError(f"bootstrap_interval: found level {level}, expected one between 0 and 1")
    rng = random.Random(seed)
    count = len(values)
    means = sorted(sum(rng.choices(values, k=count)) / count for _ in range(RESAMPLES))
    tail = (1 - level) / 2
    return sum(values) / count, _quantile(means, tail), _quantile(means, 1 - tail)


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
