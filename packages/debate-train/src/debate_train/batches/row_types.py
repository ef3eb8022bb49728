"""Rows of a step: denominators, minibatches, and what rows begin with in common; numpy alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from peft import PeftModel
    from torch import nn


Floats = NDArray[np.float32]
Ints = NDArray[np.signedinteger[Any]]
Aggregation = Literal["token_sum", "token_mean_batch", "token_mean_group", "sequence_mean"]

PER_TOKEN: Mapping[str, tuple[float, type[np.generic], type[np.generic]]] = {
    "tokens": (0, np.int64, np.int32),
    "mask": (0.0, np.float32, np.float32),
    "advantages": (0.0, np.float32, np.float32),
    "sampler_logps": (0.0, np.float32, np.float32),
    "temperatures": (1.0, np.float32, np.float32),
    "streams": (0, np.int64, np.int64),
    "versions": (-1, np.int64, np.int32),
    "segments": (0, np.int64, np.int16),
}
"""Of each array: the value on tokens that nobody sampled, its type over all tokens, and a row's."""
_SAMPLED = tuple(PER_TOKEN)[2:]


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence of T tokens, A of which were sampled; nothing else is kept of the others.

    `tokens` has shape (T,), all other arrays (A,): each speaks of a sampled token as a target.
    `places` says where in `tokens` these stand, ascending. `advantages` are Σ λ_s·A_s. `streams`
    has bit s set where stream s of the batch covers the token. `segments` numbers the turns of the
    row from 1.
    """

    tokens: Ints
    places: Ints
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
    """What each stream adds to `advantages`, shape (S, A); None where nothing keeps them apart."""

    @classmethod
    def of_tokens(
        cls, tokens: ArrayLike, mask: ArrayLike, *, credits: ArrayLike | None = None, **fields: Any
    ) -> "Row":
        """Return a row of arrays over all its tokens.

        Args:
            tokens: of prompts and replies.
            mask: not 0 on sampled tokens.
            credits: shape (S, T), as the field.
            fields: the other fields, arrays of shape (T,); one that is left out is 0 everywhere,
                `temperatures` 1 and `versions` -1.
        """
        places = np.flatnonzero(np.asarray(mask)).astype(np.int32)
        for name in _SAMPLED:
            fill, _, dtype = PER_TOKEN[name]
            given = fields.get(name)
            values = np.full(len(places), fill) if given is None else np.asarray(given)[places]
            fields[name] = values.astype(dtype)
        if credits is not None:
            credits = np.asarray(credits, np.float32)[:, places]
        return cls(np.asarray(tokens, np.int32), places, credits=credits, **fields)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def mask(self) -> Floats:
        """1 on sampled tokens, 0 on others; shape (T,)."""
        mask_T = np.zeros(len(self), np.float32)
        mask_T[self.places] = 1
        return mask_T

    def over_tokens(self, name: str) -> NDArray[Any]:
        """Return an array over all tokens, as `PER_TOKEN` says; credits are 0 on others."""
        fill, dtype, _ = PER_TOKEN.get(name, (0.0, np.float32, np.float32))
        values: NDArray[Any] = getattr(self, name)
        if name in ("tokens", "mask"):
            return values.astype(dtype)
        found = np.full((*values.shape[:-1], len(self)), fill, dtype)
        found[..., self.places] = values
        return found


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
    """Return the rows of one optimizer step ready for a loss, and what each sampled token counts.

    Args:
        batch: all rows of the step.
        aggregation: the loss's.

    Returns:
        The batch, its credits A_s · w_s / w and advantages their sum, such that w times them is
        the sum over streams of their own means; and w of each row, shape (A,).

    Source: `token_mean_group` is eq. 7 of Liu et al., "Self-Debate Reinforcement Learning". Its
    expectation is over the elements of the batch of Algorithm 1: (q, …) and (q_d, …) are two.
    """
    if not batch.rows:
        return batch, []
    rows = batch.rows
    if aggregation == "pair_mean":
        return batch, _split(_pair_weights(rows), rows)
    units = None if aggregation == "token_sum" else _units(rows, aggregation)
    weights = _weights(units, np.ones(sum(len(row.places) for row in rows), np.bool_))
    credits = [row.credits for row in rows if row.credits is not None]
    if len(credits) < len(rows):
        return batch, _split(weights, rows)
    covers = np.concatenate([row.streams for row in rows])
    scaled = np.concatenate(credits, axis=1).astype(np.float64)
    for stream, values in enumerate(scaled):
        values *= _weights(units, (covers >> stream) & 1 > 0) / weights
    parts = zip(rows, _split(scaled, rows), strict=True)
    ready = tuple(replace(row, advantages=part.sum(axis=0), credits=part) for row, part in parts)
    return replace(batch, rows=ready), _split(weights, rows)


def _units(rows: "Sequence[Row]", aggregation: Aggregation) -> NDArray[np.int64]:
    """Return for each sampled token the number of the unit that it belongs to."""
    found, turns = [], 0
    for row in rows:
        if aggregation == "sequence_mean":
            found.append(row.segments.astype(np.int64) + turns)
            turns += int(row.segments.max(initial=0)) + 1
        else:
            unit = row.group if aggregation == "token_mean_group" else 0
            found.append(np.full(len(row.places), unit, np.int64))
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
    return np.repeat(
        [each if row.pair >= 0 else 0.0 for row in rows], [len(row.places) for row in rows]
    )


def _split(values: NDArray[np.float64], rows: "Sequence[Row]") -> "list[Floats]":
    ends = np.cumsum([len(row.places) for row in rows])[:-1]
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


SHARED = 2
"""Longest rows that a pack may hold where rows begin alike: a debate whose agents read the same in
every round has no more tokens than that."""


def shared_length(one: Ints, other: Ints) -> int:
    """Return how many tokens both begin with."""
    size = min(len(one), len(other))
    different = one[:size] != other[:size]
    return int(different.argmax()) if different.any() else size


_BLOCK = 4096


def lexicographic(sequences: Sequence[Ints]) -> list[int]:
    """Return the order in which sequences that begin alike are neighbours."""

    def ordered(numbers: Sequence[int], start: int) -> list[int]:
        # A block at a time: keys of all tokens would take as much room as the rows themselves.
        alike: dict[bytes, list[int]] = {}
        for k in numbers:
            block = sequences[k][start : start + _BLOCK].astype(">u4").tobytes()
            alike.setdefault(block, []).append(k)
        found: list[int] = []
        for block in sorted(alike):
            own = alike[block]
            goes_on = len(own) > 1 and len(block) == 4 * _BLOCK
            found += ordered(own, start + _BLOCK) if goes_on else own
        return found

    return ordered(range(len(sequences)), 0)


def needed_tokens(row: Row) -> int:
    """Return how many tokens of a row predict something: those before its last action."""
    return int(row.places[-1]) if len(row.places) else 0


@dataclass(frozen=True, slots=True)
class Unit:
    """Rows that must stand in one pack: a row, or the two of a pair."""

    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    shared: tuple[int, ...]
    """How many tokens each row begins with as the row before it does, maybe another unit's."""


def filling_order(batch: Batch, rows: Sequence[int], share: Share) -> list[Unit]:
    """Return the rows that have actions, in the order in which packs are filled."""
    inputs = {n: batch.rows[n].tokens[: needed_tokens(batch.rows[n])] for n in rows}
    numbers = [n for n, tokens in inputs.items() if len(tokens)]
    if share == "none":
        numbers.sort(key=lambda n: -len(inputs[n]))
    elif share == "prefix":
        numbers = [numbers[k] for k in lexicographic([inputs[n] for n in numbers])]
    groups: dict[int, list[int]] = {}
    for n in numbers:
        pair = batch.rows[n].pair
        groups.setdefault(pair if pair >= 0 else -1 - n, []).append(n)
    units, before = [], np.zeros(0, np.int64)
    for group in groups.values():
        shared = []
        for n in group:
            shared.append(shared_length(before, inputs[n]) if share == "prefix" else 0)
            before = inputs[n]
        units.append(Unit(tuple(group), tuple(len(inputs[n]) for n in group), tuple(shared)))
    return units


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
        sampled_tokens=sum(len(row.places) for row in rows),
        turns=sum(int(row.segments.max(initial=0)) for row in rows),
    )
