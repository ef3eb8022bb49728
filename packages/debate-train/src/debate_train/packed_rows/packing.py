"""From the rows of a step to packs of even work: as many for every rank, none above the budget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from debate_train.packed_rows.packs import Pack, empty_pack, make_pack, needed_tokens
from debate_train.packed_rows.prefix_forest import PrefixForest, Share, lexicographic, shared_length

if TYPE_CHECKING:
    from debate_train.batches.row_types import Batch, Floats

CONTEXT_COST = 8192
"""Tokens of context at which attending to them costs as much as all else a token goes through."""
_SEARCH_STEPS = 20


@dataclass(frozen=True, slots=True)
class _Unit:
    """Rows that must stand in one pack: a row, or the two of a pair."""

    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    shared: tuple[int, ...]
    """How many tokens each row begins with as the row before it does, maybe another unit's."""


def pack(
    batch: "Batch",
    weights: Sequence["Floats"],
    token_budget: int,
    *,
    ranks: int = 1,
    share: Share = "prefix",
) -> list[list[Pack]]:
    """Return packs for every rank: the same number, of even cost.

    Where rows are of several adapters, each adapter has packs of its own, one adapter's after the
    other's: what rows begin with has other hidden states under another adapter.

    Args:
        batch: the rows of a step; those without an action are left out.
        weights: of each row what its tokens' losses are multiplied by, shape (T,).
        token_budget: most tokens of a pack, padding included; a row that is longer is alone.
        ranks: processes that share the step.
        share: what rows may share; see `make_pack`.
    """
    given: list[list[Pack]] = [[] for _ in range(ranks)]
    for adapter in dict.fromkeys(row.adapter for row in batch.rows):
        numbers = [n for n, row in enumerate(batch.rows) if row.adapter == adapter]
        parts = _even_parts(_units(batch, numbers, share), token_budget, ranks, share)
        packs = [
            (cost, make_pack(batch, weights, [n for unit in part for n in unit.rows], share))
            for cost, part in parts
        ]
        empty = replace(empty_pack(share), adapter=adapter)
        for own, packed in zip(given, _dealt(packs, ranks, empty), strict=True):
            own += packed
    return given


def _dealt(packs: Sequence[tuple[float, Pack]], ranks: int, empty: Pack) -> list[list[Pack]]:
    """Return as many packs for every rank, of about the same cost; some may be empty."""
    each = -(-len(packs) // ranks)
    given: list[list[Pack]] = [[] for _ in range(ranks)]
    load = [0.0] * ranks
    for cost, made in sorted(packs, key=lambda found: -found[0]):
        free = [rank for rank in range(ranks) if len(given[rank]) < each]
        rank = min(free, key=lambda rank: load[rank])
        given[rank].append(made)
        load[rank] += cost
    return [own + [empty] * (each - len(own)) for own in given]


def _units(batch: "Batch", rows: Sequence[int], share: Share) -> list[_Unit]:
    """Return those of the rows that have actions in the order in which packs are filled."""
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
        units.append(_Unit(tuple(group), tuple(len(inputs[n]) for n in group), tuple(shared)))
    return units


class _Filling(Protocol):
    """A pack that is being filled: what it would hold and cost with one more unit."""

    tokens: int
    cost: float

    def add(self, unit: _Unit) -> None: ...


class _FillingFlat:
    def __init__(self) -> None:
        self._forest = PrefixForest()
        self.tokens, self.cost = 0, 0.0

    def add(self, unit: _Unit) -> None:
        for length, shared in zip(unit.lengths, unit.shared, strict=True):
            new = self._forest.add(length, shared)
            self.cost += new * (1 + (length - new / 2) / CONTEXT_COST)
        self.tokens = self._forest.tokens


class _FillingPadded:
    def __init__(self) -> None:
        self._rows = self._longest = 0
        self.tokens, self.cost = 0, 0.0

    def add(self, unit: _Unit) -> None:
        self._rows += len(unit.rows)
        self._longest = max(self._longest, *unit.lengths)
        self.tokens = self._rows * self._longest
        self.cost = self.tokens * (1 + self._longest / 2 / CONTEXT_COST)


def _even_parts(
    units: Sequence[_Unit], token_budget: int, ranks: int, share: Share
) -> list[tuple[float, list[_Unit]]]:
    """Return runs of units, each with its cost: as few a rank as the budget allows, then even."""
    parts = _filled(units, token_budget, float("inf"), share)
    if not parts:
        return []
    wanted = -(-len(parts) // ranks) * ranks
    low, high = 0.0, max(cost for cost, _ in parts)
    # The lowest limit on a pack's cost that still needs no more packs; a bisection suffices.
    for _ in range(_SEARCH_STEPS):
        middle = (low + high) / 2
        found = _filled(units, token_budget, middle, share)
        if len(found) <= wanted:
            parts, high = found, middle
        else:
            low = middle
    return parts


def _filled(
    units: Sequence[_Unit], token_budget: int, most: float, share: Share
) -> list[tuple[float, list[_Unit]]]:
    """Return runs of units, each as long as budget and cost allow."""
    parts: list[tuple[float, list[_Unit]]] = []
    filling, own = _start(share), list[_Unit]()
    for unit in units:
        before = filling.cost
        filling.add(unit)
        if own and (filling.tokens > token_budget or filling.cost > most):
            parts.append((before, own))
            filling, own = _start(share), []
            filling.add(unit)
        own.append(unit)
    return [*parts, (filling.cost, own)] if own else parts


def _start(share: Share) -> _Filling:
    return _FillingPadded() if share == "none" else _FillingFlat()
