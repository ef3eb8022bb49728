"""Rows of a step: denominators, minibatches, and common prefixes of rows, in numpy."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from peft import PeftModel
    from torch import nn


Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]
Ints = NDArray[np.signedinteger[Any]]
Aggregation = Literal["token_sum", "token_mean_batch", "token_mean_group", "sequence_mean"]
Share = Literal["prefix", "rows", "none"]
"""What rows of a pack share: their common prefixes, a flat sequence, or nothing (padded)."""

SHARED = 2
"""Longest rows that a pack may hold where rows share prefixes: a debate whose agents read the same
in every round has no more tokens than that."""
TRUNK_TO_PACK = 8
"""How many times as long as the packs behind it a trunk may be."""
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
"""For each array: its value on tokens that were not sampled, its type over all tokens, in a row."""
_SAMPLED_ARRAYS = tuple(PER_TOKEN)[2:]
# Tokens compared at once when sequences are sorted; 16 KiB of key for each sequence.
_SORT_BLOCK = 4096


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence of T tokens with A sampled ones.

    `tokens` has shape (T,), all other arrays (A,): they describe sampled tokens as targets.
    `sampled_positions` are the ascending indices of these in `tokens`. `advantages` are Σ λ_s·A_s.
    `streams` has bit s set where stream s of the batch covers the token. `segments` numbers the
    turns of the row from 1.
    """

    # Arrays over all T tokens would be mostly filler: prompts are far longer than replies.
    tokens: Ints
    sampled_positions: Ints
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
    """Adapter of the trained policy that sampled the row and learns from it."""
    pair: int = -1
    """Number of the preference pair, whose two rows share a pack; -1 for a row without a pair."""
    credits: Floats | None = None
    """Summand of each stream in `advantages`, shape (S, A); None where only the sum is known."""

    @classmethod
    def of_tokens(
        cls, tokens: ArrayLike, mask: ArrayLike, *, credits: ArrayLike | None = None, **fields: Any
    ) -> "Row":
        """Build a row from arrays over all tokens.

        Args:
            tokens: ids of prompts and replies.
            mask: not 0 on sampled tokens.
            credits: shape (S, T), as the field.
            fields: the other fields, arrays of shape (T,). A missing array is 0 everywhere,
                `temperatures` 1 and `versions` -1.
        """
        sampled_positions = np.flatnonzero(np.asarray(mask)).astype(np.int32)
        for name in _SAMPLED_ARRAYS:
            fill, _, dtype = PER_TOKEN[name]
            values_T = fields.get(name)
            if values_T is None:
                values_A = np.full(len(sampled_positions), fill)
            else:
                values_A = np.asarray(values_T)[sampled_positions]
            fields[name] = values_A.astype(dtype)
        if credits is not None:
            credits = np.asarray(credits, np.float32)[:, sampled_positions]
        return cls(
            tokens=np.asarray(tokens, np.int32),
            sampled_positions=sampled_positions,
            credits=credits,
            **fields,
        )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def mask(self) -> Floats:
        """1 on sampled tokens, 0 on others; shape (T,)."""
        mask_T = np.zeros(len(self), np.float32)
        mask_T[self.sampled_positions] = 1
        return mask_T

    def over_tokens(self, name: str) -> NDArray[Any]:
        """Expand an array to all tokens, filled up as `PER_TOKEN` says; credits with 0."""
        fill, dtype, _ = PER_TOKEN.get(name, (0.0, np.float32, np.float32))
        values: NDArray[Any] = getattr(self, name)
        if name in ("tokens", "mask"):
            return values.astype(dtype)
        # Credits have an axis of streams before the one of tokens.
        expanded = np.full((*values.shape[:-1], len(self)), fill, dtype)
        expanded[..., self.sampled_positions] = values
        return expanded


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of a step, the names of their streams, and counts over the whole step.

    The counts are denominators of means, so every rank and micro-batch uses the same ones.
    """

    rows: tuple[Row, ...]
    streams: tuple[str, ...]
    sampled_tokens: int
    turns: int
    seed: int = 0
    """Draws the rows of each update, where a batch makes several."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Rows for the same pack: a row, or the two of a pair."""

    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    shared: tuple[int, ...]
    """Length of each row's common prefix with the row before it, maybe another unit's."""


def let_speak(model: "nn.Module", adapter: str | None) -> None:
    """Activate an adapter of the model, and gradients of the adapter only.

    Args:
        model: peft's, where the adapter has a name.
        adapter: name, or `None` for a model without named adapters.
    """
    peft_model: PeftModel = model
    # peft walks through all modules to switch, which the packs of one adapter need only once.
    if adapter is not None and peft_model.active_adapter != adapter:
        peft_model.set_adapter(adapter)


def weigh(
    batch: "Batch", aggregation: Aggregation | Literal["pair_mean"]
) -> "tuple[Batch, list[Floats]]":
    """Compute the weight of each sampled token in an update, and the advantages to go with it.

    Each adapter is a policy: its rows have denominators as if it were trained alone.

    Args:
        batch: all rows of the step.
        aggregation: the loss's.

    Returns:
        The batch, with credits A_s · w_s / w and advantages their sum, such that w times them is
        the sum over streams of their own means; and w of each row, shape (A,).

    Source: `token_mean_group` is eq. 7 of Liu et al., "Self-Debate Reinforcement Learning". Its
    expectation is over the elements of the batch of Algorithm 1: (q, …) and (q_d, …) are two.
    """
    numbers_of_adapter: dict[str | None, list[int]] = {}
    for number, row in enumerate(batch.rows):
        numbers_of_adapter.setdefault(row.adapter, []).append(number)
    weighed_rows: dict[int, Row] = {}
    weights: dict[int, Floats] = {}
    for numbers in numbers_of_adapter.values():
        adapter_batch = replace(batch, rows=tuple(batch.rows[number] for number in numbers))
        weighed_batch, adapter_weights = _weigh_policy(adapter_batch, aggregation)
        weighed_rows |= zip(numbers, weighed_batch.rows, strict=True)
        weights |= zip(numbers, adapter_weights, strict=True)
    in_order = range(len(batch.rows))
    rows = tuple(weighed_rows[number] for number in in_order)
    return replace(batch, rows=rows), [weights[number] for number in in_order]


def _weigh_policy(
    batch: "Batch", aggregation: Aggregation | Literal["pair_mean"]
) -> "tuple[Batch, list[Floats]]":
    rows = batch.rows
    if aggregation == "pair_mean":
        return batch, _split_by_row(_pair_weights(rows), rows)
    units_A = None
    if aggregation != "token_sum":
        units_A = _unit_numbers(rows, aggregation)
    num_sampled = sum(len(row.sampled_positions) for row in rows)
    weights_A = _mean_weights(units_A, np.ones(num_sampled, np.bool_))
    credits = [row.credits for row in rows if row.credits is not None]
    if len(credits) < len(rows):
        return batch, _split_by_row(weights_A, rows)

    # The loss multiplies advantages by w, one weight for all streams. A stream that covers fewer
    # tokens has a smaller denominator, so its credits carry the quotient of both.
    streams_A = np.concatenate([row.streams for row in rows])
    scaled_SA = np.concatenate(credits, axis=1).astype(np.float64)
    for stream, credits_A in enumerate(scaled_SA):
        is_covered_A = (streams_A >> stream) & 1 > 0
        credits_A *= _mean_weights(units_A, is_covered_A) / weights_A
    scaled_rows = []
    for row, credits_SA in zip(rows, _split_by_row(scaled_SA, rows), strict=True):
        scaled_row = replace(row, advantages=credits_SA.sum(axis=0), credits=credits_SA)
        scaled_rows.append(scaled_row)
    return replace(batch, rows=tuple(scaled_rows)), _split_by_row(weights_A, rows)


def _unit_numbers(rows: "Sequence[Row]", aggregation: Aggregation) -> NDArray[np.int64]:
    """Number the unit of each sampled token: the turn, the prompt group, or the whole step."""
    units: list[NDArray[np.int64]] = []
    num_turns = 0
    for row in rows:
        if aggregation == "sequence_mean":
            units.append(row.segments.astype(np.int64) + num_turns)
            # Segments begin at 1, so one number between two rows stays unused.
            num_turns += int(row.segments.max(initial=0)) + 1
        else:
            unit = row.group if aggregation == "token_mean_group" else 0
            units.append(np.full(len(row.sampled_positions), unit, np.int64))
    return np.concatenate(units)


def _mean_weights(units_A: NDArray[np.int64] | None, is_counted_A: Bools) -> NDArray[np.float64]:
    """Compute 1 / (units · tokens of the unit) for counted tokens, 0 for others; 1 for no units."""
    weights_A = is_counted_A.astype(np.float64)
    if units_A is None or not is_counted_A.any():
        return weights_A
    # Only counted tokens make a unit: a turn that the stream does not cover is in no denominator.
    numbers, unit_of_token, unit_sizes = np.unique(
        units_A[is_counted_A],
        return_inverse=True,
        return_counts=True,
    )
    weights_A[is_counted_A] = 1 / (len(numbers) * unit_sizes[unit_of_token])
    return weights_A


def _pair_weights(rows: "Sequence[Row]") -> NDArray[np.float64]:
    """Compute 1 / pairs for the sampled tokens of paired rows, 0 for others.

    Raises:
        ValueError: A pair is not a chosen and a rejected row.
    """
    signs_of_pairs: dict[int, list[float]] = {}
    for row in rows:
        if row.pair >= 0:
            # The sign of a row's advantages says which side of the pair it is.
            sign = float(np.sign(row.advantages.sum()))
            signs_of_pairs.setdefault(row.pair, []).append(sign)
    for pair, signs in signs_of_pairs.items():
        if sorted(signs) != [-1.0, 1.0]:
            raise ValueError(
                f"preference pair {pair}: found rows with advantages of sign {signs}; expected one "
                "positive (chosen) and one negative (rejected)"
            )
    # Each token of a pair has the pair's weight: the loss sums a pair up before it weighs it.
    pair_weight = 1 / max(len(signs_of_pairs), 1)
    row_weights = [pair_weight if row.pair >= 0 else 0.0 for row in rows]
    num_sampled = [len(row.sampled_positions) for row in rows]
    return np.repeat(row_weights, num_sampled)


def _split_by_row(values: NDArray[np.float64], rows: "Sequence[Row]") -> "list[Floats]":
    # `np.split` takes the inner borders alone, and the last end is none.
    ends = np.cumsum([len(row.sampled_positions) for row in rows])[:-1]
    return [row_values.astype(np.float32) for row_values in np.split(values, ends, axis=-1)]


def shared_length(first: Ints, second: Ints) -> int:
    """Count the tokens of the common prefix of two sequences."""
    length = min(len(first), len(second))
    is_different = first[:length] != second[:length]
    if not is_different.any():
        return length
    return int(is_different.argmax())


def lexicographic(sequences: Sequence[Ints]) -> list[int]:
    """Order sequences so as to make neighbors of common prefixes."""

    def sort_from(numbers: Sequence[int], start: int) -> list[int]:
        # A block at a time: keys of all tokens would take as much room as the rows themselves.
        numbers_of_block: dict[bytes, list[int]] = {}
        for number in numbers:
            tokens = sequences[number][start : start + _SORT_BLOCK]
            # Big-endian bytes sort like the numbers that they encode.
            key = tokens.astype(">u4").tobytes()
            numbers_of_block.setdefault(key, []).append(number)
        ordered: list[int] = []
        for key in sorted(numbers_of_block):
            equal = numbers_of_block[key]
            # Equal sequences that end within this block have nothing left to compare.
            continues = len(key) == 4 * _SORT_BLOCK
            if len(equal) > 1 and continues:
                equal = sort_from(equal, start + _SORT_BLOCK)
            ordered += equal
        return ordered

    return sort_from(range(len(sequences)), 0)


def needed_tokens(row: Row) -> int:
    """Count the tokens of a row before the last action: the others predict no action."""
    if not len(row.sampled_positions):
        return 0
    return int(row.sampled_positions[-1])


def filling_order(batch: Batch, rows: Sequence[int], share: Share) -> list[Unit]:
    """Order the rows with actions as packs are filled.

    Args:
        batch: the rows of a step.
        rows: numbers of the rows to order.
        share: rows with shared prefixes are sorted by tokens, padded rows by falling length.
    """
    inputs: dict[int, Ints] = {}
    for number in rows:
        row = batch.rows[number]
        if needed_tokens(row):
            inputs[number] = row.tokens[: needed_tokens(row)]
    ordered = list(inputs)
    if share == "none":
        # Rows of one length side by side need the least padding.
        ordered.sort(key=lambda number: -len(inputs[number]))
    elif share == "prefix":
        order = lexicographic(list(inputs.values()))
        ordered = [ordered[index] for index in order]

    # A dict keeps the place of a pair's first row; the second moves there.
    rows_of_unit: dict[int, list[int]] = {}
    for number in ordered:
        pair = batch.rows[number].pair
        # Negative keys, below those of pairs, are free for rows of no pair.
        key = pair if pair >= 0 else -1 - number
        rows_of_unit.setdefault(key, []).append(number)
    units = []
    previous: Ints = np.zeros(0, np.int64)
    for unit_rows in rows_of_unit.values():
        lengths = []
        shared_lengths = []
        for number in unit_rows:
            tokens = inputs[number]
            shared = shared_length(previous, tokens) if share == "prefix" else 0
            lengths.append(len(tokens))
            shared_lengths.append(shared)
            previous = tokens
        unit = Unit(
            rows=tuple(unit_rows),
            lengths=tuple(lengths),
            shared=tuple(shared_lengths),
        )
        units.append(unit)
    return units


def minibatches(batch: "Batch", size: int | None) -> "list[Batch]":
    """Split the rows of a batch evenly into parts of about `size`, drawn by the batch's seed.

    The rows of a prompt stay together, unless they are more than `size`. So do the two rows of a
    preference pair, and count once. Sizes differ by the rows of a prompt at most. Each part is
    the batch of an update, with new denominators. A size of `None` gives a single part.
    """
    if size is None or not batch.rows:
        return [batch]
    pairs_and_rows: dict[object, list[int]] = {}
    for number, row in enumerate(batch.rows):
        # A tuple never equals the number of a row of no pair.
        key = ("pair", row.pair) if row.pair >= 0 else number
        pairs_and_rows.setdefault(key, []).append(number)
    groups: dict[int, list[list[int]]] = {}
    for members in pairs_and_rows.values():
        group = batch.rows[members[0]].group
        groups.setdefault(group, []).append(members)
    # A group too large for an update is dealt pair by pair, row by row.
    units: list[list[list[int]]] = []
    for group_members in groups.values():
        if len(group_members) <= size:
            units.append(group_members)
        else:
            units += [[members] for members in group_members]
    order = np.random.default_rng(batch.seed).permutation(len(units))
    shuffled = [units[index] for index in order]

    # A unit belongs to the minibatch that holds its middle, if units are laid end to end.
    total_size = len(pairs_and_rows)
    num_minibatches = part_count(total_size, size)
    unit_sizes = np.array([len(unit) for unit in shuffled])
    middles = np.cumsum(unit_sizes) - unit_sizes / 2
    minibatch_of_unit = middles * num_minibatches // total_size
    rows_of_minibatch: dict[float, list[int]] = {}
    for minibatch, unit in zip(minibatch_of_unit, shuffled, strict=True):
        numbers = rows_of_minibatch.setdefault(minibatch, [])
        for members in unit:
            numbers += members
    # Rows keep their order within a minibatch: common prefixes stay together.
    return [_select_rows(batch, sorted(numbers)) for numbers in rows_of_minibatch.values()]


def part_count(rows: int, size: int | None) -> int:
    """Count the minibatches of about `size` rows."""
    if size is None:
        return 1
    return max(1, math.ceil(rows / size))


def _select_rows(batch: "Batch", numbers: Sequence[int]) -> "Batch":
    rows = tuple(batch.rows[number] for number in numbers)
    return replace(
        batch,
        rows=rows,
        sampled_tokens=sum(len(row.sampled_positions) for row in rows),
        turns=sum(int(row.segments.max(initial=0)) for row in rows),
    )
