"""Controls that deal values out at random: the same values, which say nothing any more."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from debate_rewards.credits import Credit
from debate_rewards.votes.ballots import Vote

_Value = TypeVar("_Value")


def shuffled_credits(credits: Sequence[Credit], transcript_id: str) -> list[Credit]:
    """Permute the values of each round among its agents that have one; failures stay."""
    rounds: dict[int, list[int]] = {}
    for index, credit in enumerate(credits):
        if credit.value is not None and not credit.penalty:
            rounds.setdefault(credit.round, []).append(index)
    values = _dealt([credit.value for credit in credits], rounds, transcript_id)
    return [replace(c, value=v) for c, v in zip(credits, values, strict=True)]


def shuffled_verdicts(
    values: Sequence[float | None], votes: Sequence[Vote], transcript_id: str
) -> list[float | None]:
    """Permute the values of a debate's votes among those of each round that have one."""
    rounds: dict[int, list[int]] = {}
    for index, (value, vote) in enumerate(zip(values, votes, strict=True)):
        if value is not None:
            rounds.setdefault(vote.judge[1], []).append(index)
    return _dealt(values, rounds, f"{transcript_id}\nverdicts")


def _dealt(values: Sequence[_Value], rounds: dict[int, list[int]], name: str) -> list[_Value]:
    dealt = list(values)
    for round_, indices in rounds.items():
        digest = hashlib.sha256(f"{name}\n{round_}".encode()).digest()
        order = random.Random(int.from_bytes(digest, "big")).sample(indices, len(indices))
        for index, source in zip(indices, order, strict=True):
            dealt[index] = values[source]
    return dealt
