"""Packs of even work: rows of a micro-batch as tensors, and which of their tokens see which."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debate_train.batches.row_types import (
    SHARED,
    Batch,
    Floats,
    Ints,
    Row,
    Share,
    Unit,
    filling_order,
    needed_tokens,
    shared_length,
)

MIN_SHARED = 8
"""Fewest tokens that a node for two sequences must save; less costs more than it saves."""
_EVEN = 0.8
"""Nodes at least this share of the longest are padded to it and computed together."""


@dataclass(slots=True, eq=False)
class Node:
    """A run of tokens: `start` in the flat sequence, `depth` in its path."""

    parent: "Node | None"
    start: int
    depth: int
    length: int

    def __len__(self) -> int:
        return self.length


class PrefixForest:
    """Grows by one sequence at a time; equal beginnings are found between neighbours.

    Sequences in lexicographic order share all that any two of them have in common, except where
    a branch would save fewer than `MIN_SHARED` tokens.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.tokens = 0
        self._last: list[Node] = []

    def add(self, length: int, shared: int) -> int:
        """Add a sequence; return how many tokens it adds to the flat sequence.

        Args:
            length: its tokens.
            shared: how many of them its predecessor begins with, too.
        """
        path: list[Node] = []
        # Neighbours in lexicographic order share most, so only the last path need be looked at.
        for node in self._last:
            here = min(shared, node.depth + len(node)) - node.depth
            if here == len(node):
                path.append(node)
                continue
            if here >= MIN_SHARED:
                path.append(self._split(node, here))
            break
        depth = path[-1].depth + len(path[-1]) if path else 0
        if depth < length:
            parent = path[-1] if path else None
            path.append(Node(parent, self.tokens, depth, length - depth))
            self.nodes.append(path[-1])
            self.tokens += length - depth
        self._last = path
        return length - depth

    def positions(self) -> NDArray[np.int64]:
        """Return where in the flat sequence the tokens of the last added sequence stand."""
        runs = [np.arange(node.start, node.start + len(node)) for node in self._last]
        return np.concatenate(runs) if runs else np.zeros(0, np.int64)

    def in_order(self) -> list[Node]:
        """Return the nodes as they stand in the flat sequence; parents come before children."""
        return sorted(self.nodes, key=lambda node: node.start)

    def _split(self, node: Node, at: int) -> Node:
        """Cut a node in two and return the upper part; what hung below hangs below still."""
        upper = Node(node.parent, node.start, node.depth, at)
        node.parent, node.start, node.depth = upper, node.start + at, node.depth + at
        node.length -= at
        self.nodes.append(upper)
        return upper


@dataclass(frozen=True, slots=True)
class AttentionBlocks:
    """Nodes of similar length, each of which sees itself causally; padded on the right to L."""

    places_NL: Tensor
    """Tokens of each node as indices into the pack; padding repeats the node's first."""
    real_NL: Tensor
    """False on padding."""

    def gather(self, x: Tensor, fill: float | None = None) -> Tensor:
        """Return (N, heads, L, …) of x (1, heads, T, …), with `fill` on padding."""
        found = x[0].transpose(0, 1)[self.places_NL]
        if fill is not None:
            found[~self.real_NL] = fill
        return found.transpose(1, 2)

    def scatter(self, found: Tensor, into: Tensor) -> None:
        """Write (N, heads, L, …) without its padding into (1, heads, T, …)."""
        own = found.transpose(1, 2)[self.real_NL].to(into.dtype)
        into[0].transpose(0, 1)[self.places_NL[self.real_NL]] = own


@dataclass(frozen=True, slots=True)
class Layout:
    """Which tokens of a flat sequence see which: each node its ancestors and, causally, itself."""

    starts: tuple[int, ...]
    """Where each node begins; the last entry is the number of tokens."""
    parents: tuple[int, ...]
    """Number of the node before it in its path, -1 for a root; parents come first."""
    keys_K: Tensor
    """For each node its path's tokens, one node after the other: indices into the pack."""
    query_starts_N: Tensor
    key_starts_N: Tensor
    """Where the queries and keys of each node begin, and the end of the last: int32."""
    longest_run: int
    longest_path: int

    blocks: tuple[AttentionBlocks, ...]
    """Every node, as what sees itself causally."""
    ancestor_blocks: tuple[tuple[int, int, int], ...]
    """Start and end of each node with descendants, and where the last of these ends."""

    def to(self, device: torch.device) -> "Layout":
        """Return the layout on a device."""
        blocks = tuple(replace(block, **tensors_on(block, device)) for block in self.blocks)
        return replace(self, blocks=blocks, **tensors_on(self, device))

    def path(self, node: int) -> list[slice]:
        """Return the runs of tokens from the root to this node."""
        found: list[slice] = []
        while node >= 0:
            found.append(slice(self.starts[node], self.starts[node + 1]))
            node = self.parents[node]
        return found[::-1]


def tensors_on(record: Any, device: torch.device) -> dict[str, Any]:
    """Return the tensors of a dataclass on a device, by field."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}


def make_layout(forest: PrefixForest) -> Layout:
    """Return the layout of the pack that holds this forest."""
    nodes = forest.in_order()
    number = {id(node): n for n, node in enumerate(nodes)}
    parents = [-1 if n.parent is None else number[id(n.parent)] for n in nodes]
    starts = [node.start for node in nodes] + [forest.tokens]
    paths = [_path(node) for node in nodes]
    keys = [np.arange(part.start, part.start + len(part)) for path in paths for part in path]
    lengths = [sum(len(part) for part in path) for path in paths]
    return Layout(
        starts=tuple(starts),
        parents=tuple(parents),
        keys_K=torch.from_numpy(np.concatenate(keys)),
        query_starts_N=torch.tensor(starts, dtype=torch.int32),
        key_starts_N=torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32),
        longest_run=max(len(node) for node in nodes),
        longest_path=max(lengths),
        blocks=_blocks(nodes),
        ancestor_blocks=_ancestor_blocks(starts, parents),
    )


def _path(node: Node) -> list[Node]:
    found = [node]
    while found[-1].parent is not None:
        found.append(found[-1].parent)
    return found[::-1]


def _blocks(nodes: Sequence[Node]) -> tuple[AttentionBlocks, ...]:
    found: list[list[Node]] = []
    for node in sorted(nodes, key=lambda node: -len(node)):
        if not found or len(node) < _EVEN * len(found[-1][0]):
            found.append([])
        found[-1].append(node)
    return tuple(_padded_blocks(alike) for alike in found)


def _padded_blocks(nodes: Sequence[Node]) -> AttentionBlocks:
    steps = np.arange(len(nodes[0]))
    starts, lengths = ([[node.start] for node in nodes], [[len(node)] for node in nodes])
    real = steps < np.array(lengths)
    places = np.array(starts) + np.where(real, steps, 0)
    return AttentionBlocks(torch.from_numpy(places), torch.from_numpy(real))


def _ancestor_blocks(
    starts: Sequence[int], parents: Sequence[int]
) -> tuple[tuple[int, int, int], ...]:
    """Return the nodes with descendants, which follow them without a gap."""
    ends = list(starts[1:])
    # Children come after their parent: from the back, each hands on where its last descendant ends.
    for node in reversed(range(len(parents))):
        if parents[node] >= 0:
            ends[parents[node]] = max(ends[parents[node]], ends[node])
    return tuple(
        (start, after, end)
        for start, after, end in zip(starts, starts[1:], ends, strict=False)
        if end > after
    )


@dataclass(frozen=True, slots=True)
class Pack:
    """One micro-batch: tokens to compute, and the sampled tokens (actions) that carry loss.

    Every vector `_A` has one entry an action. `sources_A` says at which token of the flattened
    `tokens_BT` the action is predicted; one token may predict several actions.
    """

    tokens_BT: Tensor
    positions_BT: Tensor
    layout: Layout | None
    """None where rows are padded: plain causal attention, padding on the right."""
    sources_A: Tensor
    targets_A: Tensor
    advantages_A: Tensor
    sampler_logps_A: Tensor
    temperatures_A: Tensor
    weights_A: Tensor
    """What the loss of the action is multiplied by; denominators count the whole step."""
    streams_A: Tensor
    versions_A: Tensor
    rows_A: Tensor
    """Number of the row within the step's batch."""
    pairs_A: Tensor
    adapter: str | None = None
    """Of the trained policy's adapters the one that the pack is computed with."""

    def to(self, device: torch.device) -> "Pack":
        """Return the pack on a device."""
        layout = None if self.layout is None else self.layout.to(device)
        return replace(self, layout=layout, **tensors_on(self, device))


def make_pack(
    batch: "Batch", weights: Sequence["Floats"], numbers: Sequence[int], share: Share
) -> Pack:
    """Return the pack of these rows of the batch, in this order.

    Args:
        batch: the rows of a step.
        weights: of each row of the batch what its sampled tokens' losses are multiplied by.
        numbers: which rows, all of one adapter.
        share: `prefix` computes what neighbours begin with once; `none` pads.
    """
    rows = [batch.rows[number] for number in numbers]
    inputs = [row.tokens[: max(1, needed_tokens(row))] for row in rows]
    tokens_BT, positions_BT, places, layout = (
        _padded(inputs) if share == "none" else _flat(inputs, share == "prefix")
    )
    # Nothing stands before the first token of a row that could predict it.
    firsts = [int(np.searchsorted(row.places, 1)) for row in rows]
    actions = [row.places[first:] for row, first in zip(rows, firsts, strict=True)]
    counts = [len(t) for t in actions]

    def joined(arrays: Iterable["Floats | Ints"]) -> Tensor:
        return torch.from_numpy(np.concatenate(list(arrays)))

    def picked(arrays: Iterable["Floats | Ints"]) -> Tensor:
        return joined(array[first:] for array, first in zip(arrays, firsts, strict=True))

    names = ("advantages", "sampler_logps", "temperatures", "streams")
    return Pack(
        tokens_BT,
        positions_BT,
        layout,
        sources_A=joined(place[t - 1] for place, t in zip(places, actions, strict=True)),
        targets_A=joined(row.tokens[t] for row, t in zip(rows, actions, strict=True)).long(),
        weights_A=picked(weights[number] for number in numbers),
        versions_A=picked(row.versions for row in rows).long(),
        rows_A=torch.from_numpy(np.repeat(numbers, counts)),
        pairs_A=torch.from_numpy(np.repeat([row.pair for row in rows], counts)),
        adapter=rows[0].adapter,
        **{f"{name}_A": picked(getattr(row, name) for row in rows) for name in names},
    )


@dataclass(frozen=True, slots=True)
class Planned:
    """What a pack is made of, which is smaller."""

    rows: tuple[Row, ...]
    weights: tuple[Floats, ...]
    numbers: tuple[int, ...]
    share: Share

    def make(self) -> Pack:
        """Return the pack."""
        batch = Batch(self.rows, (), 0, 0)
        made = make_pack(batch, self.weights, range(len(self.rows)), self.share)
        return replace(made, rows_A=torch.tensor(self.numbers)[made.rows_A])


class Packs(Sequence[Pack]):
    """Packs of one rank, each made when and where it is computed."""

    def __init__(self, planned: Sequence[Planned]) -> None:
        self._planned = planned

    def __len__(self) -> int:
        return len(self._planned)

    def __getitem__(self, place: Any) -> Any:
        return self._planned[place].make()


def empty(row: "Row", share: Share) -> Planned:
    """Return a pack of one token that carries no loss: every rank runs as many packs as others."""
    silent = Row.of_tokens(
        row.tokens[:1], [0], agent=row.agent, debate=row.debate, adapter=row.adapter
    )
    return Planned((silent,), (silent.advantages,), (0,), share)


def _padded(inputs: Sequence["Ints"]) -> tuple[Tensor, Tensor, list["Ints"], Layout | None]:
    """Return rows padded on the right, and the place of each row's tokens when flattened."""
    longest = max(len(tokens) for tokens in inputs)
    tokens_BT = np.zeros((len(inputs), longest), np.int64)
    for b, tokens in enumerate(inputs):
        tokens_BT[b, : len(tokens)] = tokens
    positions_BT = np.broadcast_to(np.arange(longest), tokens_BT.shape).copy()
    places = [b * longest + np.arange(len(tokens)) for b, tokens in enumerate(inputs)]
    return torch.from_numpy(tokens_BT), torch.from_numpy(positions_BT), places, None


def _flat(
    inputs: Sequence["Ints"], shared: bool = True
) -> tuple[Tensor, Tensor, list["Ints"], Layout | None]:
    """Return rows as one flat sequence, the place of each row's tokens in it, and its layout."""
    forest, places, before = PrefixForest(), [], np.zeros(0, np.int64)
    for tokens in inputs:
        forest.add(len(tokens), shared_length(before, tokens) if shared else 0)
        places.append(forest.positions())
        before = tokens
    tokens_1T = np.zeros((1, forest.tokens), np.int64)
    positions_1T = np.zeros_like(tokens_1T)
    for tokens, place in zip(inputs, places, strict=True):
        tokens_1T[0, place] = tokens
        positions_1T[0, place] = np.arange(len(tokens))
    return torch.from_numpy(tokens_1T), torch.from_numpy(positions_1T), places, make_layout(forest)


CONTEXT_COST = 8192
"""Tokens of context at which attending to them costs as much as all else a token goes through."""
_SEARCH_STEPS = 20


def pack(
    batch: "Batch",
    weights: Sequence["Floats"],
    token_budget: int,
    *,
    ranks: int = 1,
    share: Share = "prefix",
) -> list[Packs]:
    """Return packs for every rank: the same number, of even cost.

    Where rows are of several adapters, each adapter has packs of its own, one adapter's after the
    other's: what rows begin with has other hidden states under another adapter.

    Args:
        batch: the rows of a step; those without an action are left out.
        weights: of each row what its sampled tokens' losses are multiplied by, shape (A,).
        token_budget: most tokens of a pack, padding included. A row that is longer begins a pack
            of its own, and rows whose larger part stands there already join it, up to `SHARED`
            times the longest row: another pack would compute that part again.
        ranks: processes that share the step.
        share: what rows may share; see `make_pack`.
    """
    given: list[list[Planned]] = [[] for _ in range(ranks)]
    for adapter in dict.fromkeys(row.adapter for row in batch.rows):
        numbers = [n for n, row in enumerate(batch.rows) if row.adapter == adapter]
        parts = _even_parts(filling_order(batch, numbers, share), token_budget, ranks, share)
        planned = []
        for cost, part in parts:
            own = [n for unit in part for n in unit.rows]
            rows, counts = tuple(batch.rows[n] for n in own), tuple(weights[n] for n in own)
            planned.append((cost, Planned(rows, counts, tuple(own), share)))
        idle = empty(batch.rows[numbers[0]], share)
        for held, dealt in zip(given, _dealt(planned, ranks, idle), strict=True):
            held += dealt
    return [Packs(own) for own in given]


def _dealt(
    packs: Sequence[tuple[float, Planned]], ranks: int, idle: Planned
) -> list[list[Planned]]:
    """Return as many packs for every rank, of about the same cost; some may be empty."""
    each = -(-len(packs) // ranks)
    given: list[list[Planned]] = [[] for _ in range(ranks)]
    load = [0.0] * ranks
    for cost, made in sorted(packs, key=lambda found: -found[0]):
        free = [rank for rank in range(ranks) if len(given[rank]) < each]
        rank = min(free, key=lambda rank: load[rank])
        given[rank].append(made)
        load[rank] += cost
    return [own + [idle] * (each - len(own)) for own in given]


class _Filling:
    """A pack that is being filled: the tokens that it holds, and what they cost."""

    def __init__(self, share: Share) -> None:
        self._forest = None if share == "none" else PrefixForest()
        self._rows = self._longest = 0
        self.tokens, self.cost = 0, 0.0

    def add(self, unit: Unit) -> None:
        if self._forest is None:
            self._rows += len(unit.rows)
            self._longest = max(self._longest, *unit.lengths)
            self.tokens = self._rows * self._longest
            self.cost = self.tokens * (1 + self._longest / 2 / CONTEXT_COST)
            return
        for length, shared in zip(unit.lengths, unit.shared, strict=True):
            new = self._forest.add(length, shared)
            self.cost += new * (1 + (length - new / 2) / CONTEXT_COST)
        self.tokens = self._forest.tokens


def _even_parts(
    units: Sequence[Unit], token_budget: int, ranks: int, share: Share
) -> list[tuple[float, list[Unit]]]:
    """Return runs of units, each with its cost: as few a rank as the budget allows, then even."""
    parts = _filled(units, token_budget, float("inf"), share)
    if not parts:
        return []
    wanted = -(-len(parts) // ranks) * ranks
    low, high = 0.0, max(cost for cost, _ in parts)
    # One rank does not wait for another: it gains nothing by computing a beginning again.
    least = sum(cost for cost, _ in parts) * (1 + 1e-9) if ranks == 1 else float("inf")
    # The lowest limit on a pack's cost that still needs no more packs; a bisection suffices.
    for _ in range(_SEARCH_STEPS):
        middle = (low + high) / 2
        found = _filled(units, token_budget, middle, share)
        if len(found) <= wanted and sum(cost for cost, _ in found) <= least:
            parts, high = found, middle
        else:
            low = middle
    return parts


def _filled(
    units: Sequence[Unit], token_budget: int, most: float, share: Share
) -> list[tuple[float, list[Unit]]]:
    """Return runs of units, each as long as budget and cost allow."""
    parts: list[tuple[float, list[Unit]]] = []
    filling, own = _Filling(share), list[Unit]()
    longest = max((length for unit in units for length in unit.lengths), default=0)
    for unit in units:
        before, held = filling.cost, filling.tokens
        filling.add(unit)
        joins = 2 * (filling.tokens - held) <= sum(unit.lengths)
        budget = max(token_budget, SHARED * longest) if joins else token_budget
        if own and (filling.tokens > budget or filling.cost > most):
            parts.append((before, own))
            filling, own = _Filling(share), []
            filling.add(unit)
        own.append(unit)
    return [*parts, (filling.cost, own)] if own else parts
