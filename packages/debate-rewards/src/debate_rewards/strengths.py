"""Bradley-Terry strengths of what votes compare."""

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
    votes: Iterable[Vote], ties: Ties, item: Callable[[TurnKey], Item]
) -> dict[tuple[Item, Item], float]:
    """Return how often each turn, or what `item` makes of it, won against each other one."""
    wins: dict[tuple[Item, Item], float] = {}
    for vote in votes:
        given = points(vote.verdict, ties)
        if given is not None:
            left, right = item(vote.left), item(vote.right)
            wins[left, right] = wins.get((left, right), 0.0) + given.up
            wins[right, left] = wins.get((right, left), 0.0) + given.down
    return wins


def log_strengths(
    wins: Results[Item], prior: float, start: Mapping[Item, float] | None = None
) -> dict[Item, float]:
    """Return the log strength of each item that maximises likelihood times prior.

    Args:
        wins: Wins of the first of a pair over the second, in both orders.
        prior: Wins, and losses, of each item against a fictitious item of log strength 0.
        start: Where the search begins, such as the strengths of nearly the same wins.

    Newton's method: the logarithm of the product is strictly concave.
    """
    places = {item: place for place, item in enumerate(dict.fromkeys(a for a, _ in wins))}
    games = [[0.0] * len(places) for _ in places]
    won = [prior] * len(places)
    for (a, b), count in wins.items():
        won[places[a]] += count
        games[places[a]][places[b]] += count
        games[places[b]][places[a]] += count
    strength = [(start or {}).get(item, 0.0) for item in places]
    for _ in range(MAX_STEPS):
        change = _solved(*_derivatives(strength, games, won, prior))
        largest = max(map(abs, change), default=0.0)
        # Far from the top a full step may go past it.
        scale = min(1.0, _LONGEST_STEP / largest) if largest else 1.0
        strength = [own + scale * step for own, step in zip(strength, change, strict=True)]
        if largest < TOLERANCE:
            break
    return dict(zip(places, strength, strict=True))


def _derivatives(
    strength: Sequence[float], games: Sequence[Sequence[float]], won: Sequence[float], prior: float
) -> tuple[list[list[float]], list[float]]:
    """Return minus the second derivatives, and the first, of the logarithm of the product."""
    curved, slope = [[-0.0] * len(strength) for _ in strength], list(won)
    for i, own in enumerate(strength):
        share = 1 / (1 + math.exp(-own))
        slope[i] -= 2 * prior * share
        total = 2 * prior * share * (1 - share)
        for j, played in enumerate(games[i]):
            if played:
                share = 1 / (1 + math.exp(strength[j] - own))
                slope[i] -= played * share
                curved[i][j] = -played * share * (1 - share)
                total -= curved[i][j]
        curved[i][i] = total
    return curved, slope


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Return x of matrix · x = right, both of which are overwritten.

    The diagonal is larger than the rest of its row together, so that no pivot is looked for.
    """
    size = len(right)
    for i in range(size):
        row, pivot = matrix[i], matrix[i][i]
        for j in range(i + 1, size):
            below = matrix[j]
            if below[i]:
                factor = below[i] / pivot
                for k in range(i + 1, size):
                    below[k] -= factor * row[k]
                right[j] -= factor * right[i]
    for i in reversed(range(size)):
        row = matrix[i]
        known = sum(row[k] * right[k] for k in range(i + 1, size))
        right[i] = (right[i] - known) / row[i]
    return right
