"""What fewer samples would have given: expectations over all subsets of k of n samples."""

import math
from collections.abc import Sequence

__all__ = ["majority_of_subsets", "pass_at", "right_in_most"]


def pass_at(right: int, samples: int, k: int) -> float:
    """Return the chance that at least one of k samples, drawn without replacement, is right.

    Args:
        right: Right samples.
        samples: All samples, at least k.
        k: Samples drawn.

    Source: Chen et al. (2021), Evaluating large language models trained on code, equation 1: the
    unbiased estimate 1 − C(n − c, k) / C(n, k).
    """
    _check(samples, k)
    return 1 - math.comb(samples - right, k) / math.comb(samples, k)


def right_in_most(right: int, samples: int, k: int) -> float:
    """Return the chance that more than half of k samples, drawn without replacement, are right.

    Args:
        right: Right samples.
        samples: All samples, at least k.
        k: Samples drawn.
    """
    _check(samples, k)
    ways = sum(
        math.comb(right, hits) * math.comb(samples - right, k - hits)
        for hits in range(k // 2 + 1, k + 1)
    )
    return ways / math.comb(samples, k)


def majority_of_subsets(
    classes: Sequence[int | None], right: frozenset[int], most: int
) -> list[float]:
    """Return, for k = 1 … most, how often the majority of k samples is right.

    That is the mean over all subsets of k samples of the share of right classes among the largest
    ones: ties count in expectation. A subset in which nobody answers is wrong.

    Args:
        classes: The class of each sample's answer, None for a sample without one.
        right: Classes that are the right answer.
        most: The largest k, at most the number of samples.

    Returns:
        The values of k = 1, …, most.
    """
    _check(len(classes), most)
    sizes: dict[int, int] = {}
    for number in classes:
        if number is not None:
            sizes[number] = sizes.get(number, 0) + 1
    silent = len(classes) - sum(sizes.values())
    found = [0.0] * most
    for number in right & sizes.keys():
        others = [size for other, size in sizes.items() if other != number]
        for votes in range(1, min(sizes[number], most) + 1):
            own = math.comb(sizes[number], votes)
            for rest, ways in enumerate(_won_against(others, silent, votes, most - votes)):
                found[votes + rest - 1] += own * ways
    return [ways / math.comb(len(classes), k) for k, ways in enumerate(found, 1)]


def _won_against(others: Sequence[int], silent: int, votes: int, most: int) -> list[float]:
    """Return for 0 … most drawn samples of other classes the ways to draw them and not lose.

    A way in which t other classes have as many votes counts 1 / (t + 1).
    """
    ways = [[0] * (most + 1)]
    for drawn in range(min(silent, most) + 1):
        ways[0][drawn] = math.comb(silent, drawn)
    for size in others:
        # Row t holds the ways in which t classes have as many votes as the one in question.
        grown = [[0] * (most + 1) for _ in range(len(ways) + (size >= votes and votes <= most))]
        for ties, row in enumerate(ways):
            for before, known in enumerate(row):
                if not known:
                    continue
                for drawn in range(min(size, votes, most - before) + 1):
                    grown[ties + (drawn == votes)][before + drawn] += known * math.comb(size, drawn)
        while len(grown) > 1 and not any(grown[-1]):
            grown.pop()
        ways = grown
    return [
        sum(row[drawn] / (ties + 1) for ties, row in enumerate(ways)) for drawn in range(most + 1)
    ]


def _check(samples: int, k: int) -> None:
    if not 1 <= k <= samples:
        raise ValueError(f"k: found {k}, expected 1 to {samples}, the number of samples")
