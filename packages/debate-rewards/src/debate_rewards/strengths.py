"""Bradley-Terry strengths of compared turns or agents."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from debate_protocol.types import TurnKey
from debate_rewards.votes import Ties, Vote, points

# Largest change of a log strength at which the fit has converged.
TOLERANCE = 1e-10
MAX_STEPS = 1_000
_LONGEST_STEP = 2.0

Item = TypeVar("Item", bound=Hashable)
# Wins of the first over the second; a tie is half a win for each.
Results = Mapping[tuple[Item, Item], float]


def wins_of(
    votes: Iterable[Vote],
    ties: Ties,
    item: Callable[[TurnKey], Item],
) -> dict[tuple[Item, Item], float]:
    """Count the wins of each turn, or of the `item` it belongs to, against each other one."""
    wins: dict[tuple[Item, Item], float] = {}
    for vote in votes:
        share = points(vote.verdict, ties)
        if share is None:
            continue
        left = item(vote.left)
        right = item(vote.right)
        wins[left, right] = wins.get((left, right), 0.0) + share.up
        wins[right, left] = wins.get((right, left), 0.0) + share.down
    return wins


def log_strengths(
    wins: Results[Item],
    prior: float,
    start: Mapping[Item, float] | None = None,
) -> dict[Item, float]:
    """Fit the log strength of each item, at the maximum of likelihood times prior.

    Args:
        wins: Wins of the first of a pair over the second, in both orders.
        prior: Wins, and losses, of each item against a fictitious item of log strength 0.
        start: First guess of the search, such as the strengths of nearly the same wins.

    Newton's method: the logarithm of the product is strictly concave.
    """
    # Wins name each pair in both orders, so that every item comes first in some.
    items = list(dict.fromkeys(first for first, _ in wins))
    index_of = {item: index for index, item in enumerate(items)}
    num_games = [[0.0] * len(items) for _ in items]
    # Each item also wins `prior` games of 2 · prior against the fictitious item.
    num_wins = [prior] * len(items)
    for (winner, loser), count in wins.items():
        winner_index = index_of[winner]
        loser_index = index_of[loser]
        num_wins[winner_index] += count
        num_games[winner_index][loser_index] += count
        num_games[loser_index][winner_index] += count

    first_guess = start or {}
    strengths = [first_guess.get(item, 0.0) for item in items]
    for _ in range(MAX_STEPS):
        curvature, slope = _derivatives(strengths, num_games, num_wins, prior)
        steps = _solve(curvature, slope)
        largest = max((abs(step) for step in steps), default=0.0)
        # Far from the maximum a full step may go past it.
        scale = 1.0
        if largest > _LONGEST_STEP:
            scale = _LONGEST_STEP / largest
        for index, step in enumerate(steps):
            strengths[index] += scale * step
        if largest < TOLERANCE:
            break
    return dict(zip(items, strengths, strict=True))


def _derivatives(
    strengths: Sequence[float],
    num_games: Sequence[Sequence[float]],
    num_wins: Sequence[float],
    prior: float,
) -> tuple[list[list[float]], list[float]]:
    """Compute minus the second derivatives, and the first, of the logarithm of the product."""
    curvature = [[-0.0] * len(strengths) for _ in strengths]
    slope = list(num_wins)
    for i, strength in enumerate(strengths):
        # The prior's games: 2·prior of them against strength 0.
        win_chance = 1 / (1 + math.exp(-strength))
        slope[i] -= 2 * prior * win_chance
        total = 2 * prior * win_chance * (1 - win_chance)
        for j, count in enumerate(num_games[i]):
            if count:
                win_chance = 1 / (1 + math.exp(strengths[j] - strength))
                slope[i] -= count * win_chance
                curvature[i][j] = -count * win_chance * (1 - win_chance)
                total -= curvature[i][j]
        curvature[i][i] = total
    return curvature, slope


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solve matrix · x = right by elimination, and overwrite both."""
    size = len(right)
    for i in range(size):
        row = matrix[i]
        # Each diagonal element exceeds the rest of its row together: no pivot search is needed.
        pivot = row[i]
        for j in range(i + 1, size):
            lower_row = matrix[j]
            if lower_row[i]:
                factor = lower_row[i] / pivot
                for k in range(i + 1, size):
                    lower_row[k] -= factor * row[k]
                right[j] -= factor * right[i]
    for i in reversed(range(size)):
        row = matrix[i]
        solved_sum = sum(row[k] * right[k] for k in range(i + 1, size))
        right[i] = (right[i] - solved_sum) / row[i]
    return right
