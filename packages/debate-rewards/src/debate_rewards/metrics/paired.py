"""Before against after, or A against B, on the same questions: difference, interval and test."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Literal

from debate_rewards.metrics.intervals import RESAMPLES, quantile, unvaried_interval
from debate_rewards.metrics.ranges import Range

__all__ = ["Paired", "paired"]


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
