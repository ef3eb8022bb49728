"""Rows of a step: denominators, minibatches, and what rows begin with in common; numpy alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from peft import PeftModel
    from torch import nn


Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Aggregation = Literal["token_sum", "token_mean_batch", "token_mean_group", "sequence_mean"]


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence; every array has shape (T,) and speaks of the token as a target.

    `mask` is 1 on sampled tokens; `advantages` are Σ λ_s·A_s, 0 elsewhere. `streams` has bit s
    set where stream s of the batch covers the token. `segments` numbers the turns of the row
    from 1, 0 on tokens that nobody sampled.
    """

    tokens: Ints
    mask: Floats
    advantages: Floats
    sampler_logps: Floats
    temperatures: Floats
    streams: Ints
    versions: Ints
    segments: Ints
    agent: int
    debate: int
    group: int = 0
    """Number of the first prompt of the row's agent, within the step."""
    adapter: str | None = None
    """Of the trained policy's adapters the one that sampled the row and learns from it."""
    pair: int = -1
    """Rows with the same number, which land in one pack; -1 stands alone."""
    credits: Floats | None = None
    """What each stream adds to `advantages`, shape (S, T); None where nothing keeps them apart."""

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step, the names of their streams, and counts over the whole step.

    The counts are the denominators of means, so they hold for every rank and micro-batch.
    """

    rows: tuple[Row, ...]
    streams: tuple[str, ...]
    sampled_tokens: int
    turns: int
    seed: int = 0
    """Draws which rows each update takes, where a batch makes several."""


Bools = NDArray[np.bool_]


def weigh(
    batch: "Batch", aggregation: Aggregation | Literal["pair_mean"]
) -> "tuple[Batch, list[Floats]]":
    """Return the rows of one optimizer step ready for a loss, and what each token counts.

    Args:
        batch: all rows of the step.
        aggregation: the loss's.

    Returns:
        The batch, its credits A_s · w_s / w and advantages their sum, such that w times them is
        the sum over streams of their own means; and w of each row, shape (T,).

    Source: `token_mean_group` is eq. 7 of Liu et al., "Self-Debate Reinforcement Learning". Its
    expectation is over the elements of the batch of Algorithm 1: (q, …) and (q_d, …) are two.
    """
    if not batch.rows:
        return batch, []
    rows, sampled = batch.rows, np.concatenate([row.mask > 0 for row in batch.rows])
    if aggregation == "pair_mean":
        return batch, _split(_pair_weights(rows), rows)
    units = None if aggregation == "token_sum" else _units(rows, aggregation)
    weights = _weights(units, sampled)
    credits = [row.credits for row in rows if row.credits is not None]
    if len(credits) < len(rows):
        return batch, _split(weights, rows)
    covers = np.concatenate([row.streams for row in rows])
    scaled = np.concatenate(credits, axis=1).astype(np.float64)
    for stream, values in enumerate(scaled):
        own = _weights(units, sampled & ((covers >> stream) & 1 > 0))
        values *= np.divide(own, weights, where=sampled, out=np.zeros_like(own))
    parts = zip(rows, _split(scaled, rows), strict=True)
    ready = tuple(replace(row, advantages=part.sum(axis=0), credits=part) for row, part in parts)
    return replace(batch, rows=ready), _split(weights, rows)


def _units(rows: "Sequence[Row]", aggregation: Aggregation) -> NDArray[np.int64]:
    """Return for each token the number of the unit that it belongs to."""
    found, turns = [], 0
    for row in rows:
        if aggregation == "sequence_mean":
            found.append(row.segments + turns)
            turns += int(row.segments.max(initial=0)) + 1
        else:
            unit = row.group if aggregation == "token_mean_group" else 0
            found.append(np.full(len(row), unit, np.int64))
    return np.concatenate(found)


def _weights(units: NDArray[np.int64] | None, counted: Bools) -> NDArray[np.float64]:
    """Return 1 / (units · tokens of the unit) of each counted token, 0 of others."""
    weights = counted.astype(np.float64)
    if units is not None and counted.any():
        names, place, sizes = np.unique(units[counted], return_inverse=True, return_counts=True)
        weights[counted] = 1 / (len(names) * sizes[place])
    return weights


def _pair_weights(rows: "Sequence[Row]") -> NDArray[np.float64]:
    """Return 1 / pairs for the sampled tokens of paired rows, 0 for others.

    Raises:
        ValueError: A pair is not one chosen and one rejected row.
    """
    signs: dict[int, list[float]] = {}
    for row in rows:
        if row.pair >= 0:
            signs.setdefault(row.pair, []).append(float(np.sign(row.advantages.sum())))
    for pair, found in signs.items():
        if sorted(found) != [-1.0, 1.0]:
            raise ValueError(
                f"preference pair {pair}: found rows with advantages of sign {found}; expected one "
                "positive (chosen) and one negative (rejected)"
            )
    each = 1 / max(len(signs), 1)
    return np.concatenate([(row.mask > 0) * (each if row.pair >= 0 else 0.0) for row in rows])


def _split(values: NDArray[np.float64], rows: "Sequence[Row]") -> "list[Floats]":
    ends = np.cumsum([len(row) for row in rows])[:-1]
    return [part.astype(np.float32) for part in np.split(values, ends, axis=-1)]


def let_speak(model: "nn.Module", adapter: str | None) -> None:
    """Let the model be the policy of this adapter, whose parameters alone have gradients then.

    Args:
        model: peft's, where the adapter has a name.
        adapter: None where the model has no adapters with names.
    """
    speaking: PeftModel = model
    if adapter is not None and speaking.active_adapter != adapter:
        speaking.set_adapter(adapter)


Share = Literal["prefix", "rows", "none"]
"""What rows of a pack share: what they begin with, a flat sequence, or nothing (padded)."""


def shared_length(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """Return how many tokens both begin with."""
    size = min(len(one), len(other))
    different = np.flatnonzero(one[:size] != other[:size])
    return int(different[0]) if len(different) else size


def lexicographic(sequences: Sequence[NDArray[np.int64]]) -> list[int]:
    """Return the order in which sequences that begin alike are neighbours."""
    return sorted(range(len(sequences)), key=lambda k: sequences[k].astype(">i8").tobytes())


def minibatches(batch: "Batch", size: int | None) -> "list[Batch]":
    """Return the rows of a batch in equal parts of about `size`, drawn by the batch's seed.

    The rows of one prompt stay together, unless they are more than that, and so do the two of a
    preference pair, which count as one. Parts differ by the rows of a prompt at most. Each part is
    the batch of one update: its counts are denominators of its own. With None there is one part.
    """
    if size is None or not batch.rows:
        return [batch]
    members: dict[object, list[int]] = {}
    for number, row in enumerate(batch.rows):
        members.setdefault(("pair", row.pair) if row.pair >= 0 else number, []).append(number)
    groups: dict[int, list[list[int]]] = {}
    for member in members.values():
        groups.setdefault(batch.rows[member[0]].group, []).append(member)
    units = [unit for own in groups.values() for unit in ([own] if len(own) <= size else zip(own))]
    drawn = [units[place] for place in np.random.default_rng(batch.seed).permutation(len(units))]
    # A unit belongs to the part that its middle lies in.
    counts = np.array([len(unit) for unit in drawn])
    parts = part_count(len(members), size)
    places = (np.cumsum(counts) - counts / 2) * parts // len(members)
    taken: dict[float, list[int]] = {}
    for place, unit in zip(places, drawn, strict=True):
        taken.setdefault(place, []).extend(number for member in unit for number in member)
    # Rows keep their order within a part: what begins alike stays together.
    return [_taken(batch, sorted(numbers)) for numbers in taken.values()]


def part_count(rows: int, size: int | None) -> int:
    """Return into how many minibatches so many rows are split."""
    return 1 if size is None else max(1, -(-rows // size))


def _taken(batch: "Batch", numbers: Sequence[int]) -> "Batch":
    rows = tuple(batch.rows[number] for number in numbers)
    return replace(
        batch,
        rows=rows,
        sampled_tokens=sum(int(row.mask.sum()) for row in rows),
        turns=sum(int(row.segments.max(initial=0)) for row in rows),
    )
