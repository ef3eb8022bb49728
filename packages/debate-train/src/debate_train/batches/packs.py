"""Packs of even work: rows of a micro-batch as tensors, and the attention between their tokens."""

import math
from collections.abc import Sequence
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
CONTEXT_COST = 8192
"""Tokens of context at which attending to them costs as much as all else a token goes through."""
# Nodes at least this share of the longest are padded to it and computed together.
_EVEN_LENGTH_SHARE = 0.8
# Twenty halvings bring the cost limit within a millionth of the costliest pack.
_BISECTION_STEPS = 20
_ACTION_COLUMNS = ("advantages", "sampler_logps", "temperatures", "streams", "versions")


@dataclass(slots=True, eq=False)
class Node:
    """A run of tokens: `start` in the flat sequence, `depth` in the path from the root."""

    parent: "Node | None"
    start: int
    depth: int
    length: int

    def __len__(self) -> int:
        return self.length


class PrefixForest:
    """Trees of shared prefixes, grown sequence by sequence.

    Only neighbors are compared. Sequences in lexicographic order share every common prefix, except
    where a branch would save fewer than `MIN_SHARED` tokens.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.tokens = 0
        self._last_path: list[Node] = []

    def add(self, length: int, shared: int) -> int:
        """Add a sequence and count the tokens it adds to the flat sequence.

        Args:
            length: number of tokens.
            shared: length of the common prefix with the last sequence.
        """
        path: list[Node] = []
        # Neighbors in lexicographic order share most, so the last path is the only candidate.
        for node in self._last_path:
            shared_in_node = min(shared, node.depth + len(node)) - node.depth
            if shared_in_node == len(node):
                path.append(node)
                continue
            if shared_in_node >= MIN_SHARED:
                path.append(self._split(node, shared_in_node))
            break
        parent = None
        depth = 0
        if path:
            parent = path[-1]
            depth = parent.depth + len(parent)
        num_new = length - depth
        if num_new > 0:
            leaf = Node(parent=parent, start=self.tokens, depth=depth, length=num_new)
            path.append(leaf)
            self.nodes.append(leaf)
            self.tokens += num_new
        self._last_path = path
        return num_new

    def positions(self) -> NDArray[np.int64]:
        """Compute the indices of the last sequence's tokens in the flat sequence."""
        if not self._last_path:
            return np.zeros(0, np.int64)
        runs = [np.arange(node.start, node.start + len(node)) for node in self._last_path]
        return np.concatenate(runs)

    def in_order(self) -> list[Node]:
        """Sort the nodes by their start in the flat sequence; parents come before children."""
        return sorted(self.nodes, key=lambda node: node.start)

    def _split(self, node: Node, prefix_length: int) -> Node:
        # The old node becomes the lower half: its children keep their parent unchanged.
        upper = Node(
            parent=node.parent,
            start=node.start,
            depth=node.depth,
            length=prefix_length,
        )
        node.parent = upper
        node.start += prefix_length
        node.depth += prefix_length
        node.length -= prefix_length
        self.nodes.append(upper)
        return upper


@dataclass(frozen=True, slots=True)
class AttentionBlocks:
    """N nodes of similar length, each attending to itself causally; padded on the right to L."""

    indices_NL: Tensor
    """Tokens of each node as indices into the pack; padding repeats the node's first."""
    real_NL: Tensor
    """False on padding."""

    def gather(self, x: Tensor, fill: float | None = None) -> Tensor:
        """Copy x (1, heads, T, …) into blocks (N, heads, L, …), with `fill` on padding."""
        blocks = x[0].transpose(0, 1)[self.indices_NL]
        if fill is not None:
            blocks[~self.real_NL] = fill
        return blocks.transpose(1, 2)

    def scatter(self, blocks: Tensor, into: Tensor) -> None:
        """Write blocks (N, heads, L, …) without their padding into (1, heads, T, …)."""
        values = blocks.transpose(1, 2)[self.real_NL].to(into.dtype)
        into[0].transpose(0, 1)[self.indices_NL[self.real_NL]] = values


@dataclass(frozen=True, slots=True)
class Layout:
    """Attention of a flat sequence: each node sees all ancestors and, causally, itself."""

    starts: tuple[int, ...]
    """Start of each node; the last entry is the number of tokens."""
    parents: tuple[int, ...]
    """Index of each node's parent, -1 for a root; parents come first."""
    keys_K: Tensor
    """Path of each node, one after the other, as indices of tokens in the pack."""
    query_starts_N: Tensor
    key_starts_N: Tensor
    """Starts of each node's queries and keys, and the end of the last: int32."""
    longest_run: int
    longest_path: int

    blocks: tuple[AttentionBlocks, ...]
    """Attention of every node to itself."""
    ancestor_blocks: tuple[tuple[int, int, int], ...]
    """Start and end of each node that has descendants, and the end of the last descendant."""

    def to(self, device: torch.device) -> "Layout":
        """Copy the layout to a device."""
        blocks = tuple(replace(block, **tensors_on(block, device)) for block in self.blocks)
        return replace(self, blocks=blocks, **tensors_on(self, device))

    def path(self, node: int) -> list[slice]:
        """List the runs of tokens from the root to a node."""
        runs: list[slice] = []
        while node >= 0:
            runs.append(slice(self.starts[node], self.starts[node + 1]))
            node = self.parents[node]
        return runs[::-1]


@dataclass(frozen=True, slots=True)
class Pack:
    """A micro-batch: tokens to compute, and the sampled tokens (actions) with a loss.

    Every vector `_A` has an entry for each action. `sources_A` indexes the predicting tokens in the
    flattened `tokens_BT`; a token may predict several actions.
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
    """Factor of the action's loss; denominators count the whole step."""
    streams_A: Tensor
    versions_A: Tensor
    rows_A: Tensor
    """Number of the row within the step's batch."""
    pairs_A: Tensor
    adapter: str | None = None
    """Adapter of the trained policy that computes the pack."""

    def to(self, device: torch.device) -> "Pack":
        """Copy the pack to a device."""
        layout = None if self.layout is None else self.layout.to(device)
        return replace(self, layout=layout, **tensors_on(self, device))


@dataclass(frozen=True, slots=True)
class PackPlan:
    """Rows of a pack to build; a plan is far smaller than the pack's tensors."""

    rows: tuple[Row, ...]
    weights: tuple[Floats, ...]
    numbers: tuple[int, ...]
    share: Share

    def build(self) -> Pack:
        """Build the pack."""
        batch = Batch(rows=self.rows, streams=(), sampled_tokens=0, turns=0)
        pack = make_pack(batch, self.weights, range(len(self.rows)), self.share)
        # The plan counts its own rows from 0; metrics need their numbers in the step.
        return replace(pack, rows_A=torch.tensor(self.numbers)[pack.rows_A])


class Packs(Sequence[Pack]):
    """Packs of a rank, each built when it is computed: plans of a whole step fit into memory."""

    def __init__(self, plans: Sequence[PackPlan]) -> None:
        self._plans = plans

    def __len__(self) -> int:
        return len(self._plans)

    def __getitem__(self, index: Any) -> Any:
        return self._plans[index].build()


class _PackFilling:
    """Number of tokens and cost of a pack while units are added to it."""

    def __init__(self, share: Share) -> None:
        self._forest = None if share == "none" else PrefixForest()
        self._num_rows = 0
        self._longest = 0
        self.tokens = 0
        self.cost = 0.0

    def add(self, unit: Unit) -> None:
        # The cost of a token is 1, plus its mean context in units of CONTEXT_COST. A causal run
        # of n tokens sees n / 2 on average; new tokens behind a prefix see all of the prefix too.
        if self._forest is None:
            self._num_rows += len(unit.rows)
            self._longest = max(self._longest, *unit.lengths)
            self.tokens = self._num_rows * self._longest
            self.cost = self.tokens * (1 + self._longest / 2 / CONTEXT_COST)
            return
        for length, shared in zip(unit.lengths, unit.shared, strict=True):
            num_new = self._forest.add(length, shared)
            self.cost += num_new * (1 + (length - num_new / 2) / CONTEXT_COST)
        self.tokens = self._forest.tokens


def tensors_on(record: Any, device: torch.device) -> dict[str, Any]:
    """Copy the tensors of a dataclass to a device, keyed by field."""
    tensors = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Tensor):
            tensors[field.name] = value.to(device)
    return tensors


def make_layout(forest: PrefixForest) -> Layout:
    """Build the layout of a pack from the forest of prefixes."""
    nodes = forest.in_order()
    starts = [node.start for node in nodes] + [forest.tokens]
    number_of = {id(node): number for number, node in enumerate(nodes)}
    parents = []
    keys = []
    path_lengths = []
    for node in nodes:
        parents.append(-1 if node.parent is None else number_of[id(node.parent)])
        path = [node]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        for ancestor in reversed(path):
            keys.append(np.arange(ancestor.start, ancestor.start + len(ancestor)))
        path_lengths.append(node.depth + len(node))
    return Layout(
        starts=tuple(starts),
        parents=tuple(parents),
        keys_K=torch.from_numpy(np.concatenate(keys)),
        query_starts_N=torch.tensor(starts, dtype=torch.int32),
        key_starts_N=torch.tensor([0, *np.cumsum(path_lengths)], dtype=torch.int32),
        longest_run=max(len(node) for node in nodes),
        longest_path=max(path_lengths),
        blocks=_self_blocks(nodes),
        ancestor_blocks=_ancestor_blocks(starts, parents),
    )


def _self_blocks(nodes: Sequence[Node]) -> tuple[AttentionBlocks, ...]:
    # One call for all nodes of about one length: a kernel's launch costs more than some padding.
    groups: list[list[Node]] = []
    for node in sorted(nodes, key=lambda node: -len(node)):
        if not groups or len(node) < _EVEN_LENGTH_SHARE * len(groups[-1][0]):
            groups.append([])
        groups[-1].append(node)
    blocks = []
    for group in groups:
        starts_N1 = np.array([[node.start] for node in group])
        lengths_N1 = np.array([[len(node)] for node in group])
        offsets_L = np.arange(len(group[0]))
        real_NL = offsets_L < lengths_N1
        indices_NL = starts_N1 + np.where(real_NL, offsets_L, 0)
        blocks.append(
            AttentionBlocks(
                indices_NL=torch.from_numpy(indices_NL),
                real_NL=torch.from_numpy(real_NL),
            )
        )
    return tuple(blocks)


def _ancestor_blocks(
    starts: Sequence[int], parents: Sequence[int]
) -> tuple[tuple[int, int, int], ...]:
    # Descendants follow their ancestor without a gap, so one end per node describes them all.
    # Children come after their parent: from the back, each passes on its last descendant's end.
    last_ends = list(starts[1:])
    for node in reversed(range(len(parents))):
        parent = parents[node]
        if parent >= 0:
            last_ends[parent] = max(last_ends[parent], last_ends[node])
    blocks = []
    for node, last_end in enumerate(last_ends):
        node_end = starts[node + 1]
        if last_end > node_end:
            blocks.append((starts[node], node_end, last_end))
    return tuple(blocks)


def make_pack(
    batch: "Batch", weights: Sequence["Floats"], numbers: Sequence[int], share: Share
) -> Pack:
    """Build the pack of some rows of the batch, in the order of their numbers.

    Args:
        batch: the rows of a step.
        weights: factors of the sampled tokens' losses, shape (A,) for each row of the batch.
        numbers: numbers of the rows to pack, all with the same adapter.
        share: `prefix` computes a common prefix of neighbors once; `none` pads.
    """
    rows = [batch.rows[number] for number in numbers]
    # Tokens behind the last action predict nothing; one token is the least a model computes.
    inputs = [row.tokens[: max(1, needed_tokens(row))] for row in rows]
    if share == "none":
        tokens_BT, positions_BT, flat_indices = _padded(inputs)
        layout = None
    else:
        tokens_BT, positions_BT, flat_indices, layout = _flat(inputs, share == "prefix")

    targets = []
    sources = []
    columns: dict[str, list[NDArray[Any]]] = {name: [] for name in _ACTION_COLUMNS}
    row_weights = []
    num_actions = []
    for row, number, indices in zip(rows, numbers, flat_indices, strict=True):
        # No token precedes the first of a row, so nothing predicts it: it is no action.
        first = int(np.searchsorted(row.sampled_positions, 1))
        positions = row.sampled_positions[first:]
        num_actions.append(len(positions))
        sources.append(indices[positions - 1])
        targets.append(row.tokens[positions])
        row_weights.append(weights[number][first:])
        for name, values in columns.items():
            values.append(getattr(row, name)[first:])
    vectors = {name: torch.from_numpy(np.concatenate(values)) for name, values in columns.items()}
    return Pack(
        tokens_BT=tokens_BT,
        positions_BT=positions_BT,
        layout=layout,
        sources_A=torch.from_numpy(np.concatenate(sources)),
        targets_A=torch.from_numpy(np.concatenate(targets)).long(),
        advantages_A=vectors["advantages"],
        sampler_logps_A=vectors["sampler_logps"],
        temperatures_A=vectors["temperatures"],
        weights_A=torch.from_numpy(np.concatenate(row_weights)),
        streams_A=vectors["streams"],
        versions_A=vectors["versions"].long(),
        rows_A=torch.from_numpy(np.repeat(numbers, num_actions)),
        pairs_A=torch.from_numpy(np.repeat([row.pair for row in rows], num_actions)),
        adapter=rows[0].adapter,
    )


def empty(row: "Row", share: Share) -> PackPlan:
    """Plan a pack of a single token without loss: collectives need as many packs on every rank."""
    silent_row = Row.of_tokens(
        row.tokens[:1],
        [0],
        agent=row.agent,
        debate=row.debate,
        adapter=row.adapter,
    )
    return PackPlan(
        rows=(silent_row,),
        weights=(silent_row.advantages,),
        numbers=(0,),
        share=share,
    )


def _padded(inputs: Sequence["Ints"]) -> tuple[Tensor, Tensor, list["Ints"]]:
    """Pad rows on the right; list the indices of each row's tokens when flattened."""
    longest = max(len(tokens) for tokens in inputs)
    tokens_BT = np.zeros((len(inputs), longest), np.int64)
    flat_indices: list[Ints] = []
    for number, tokens in enumerate(inputs):
        tokens_BT[number, : len(tokens)] = tokens
        flat_indices.append(number * longest + np.arange(len(tokens)))
    positions_BT = np.broadcast_to(np.arange(longest), tokens_BT.shape).copy()
    return torch.from_numpy(tokens_BT), torch.from_numpy(positions_BT), flat_indices


def _flat(
    inputs: Sequence["Ints"], shares_prefixes: bool
) -> tuple[Tensor, Tensor, list["Ints"], Layout]:
    """Concatenate rows; list the indices of each row's tokens in the sequence."""
    forest = PrefixForest()
    flat_indices: list[Ints] = []
    previous: Ints = np.zeros(0, np.int64)
    for tokens in inputs:
        shared = shared_length(previous, tokens) if shares_prefixes else 0
        forest.add(len(tokens), shared)
        flat_indices.append(forest.positions())
        previous = tokens
    tokens_1T = np.zeros((1, forest.tokens), np.int64)
    positions_1T = np.zeros_like(tokens_1T)
    for tokens, indices in zip(inputs, flat_indices, strict=True):
        tokens_1T[0, indices] = tokens
        positions_1T[0, indices] = np.arange(len(tokens))
    layout = make_layout(forest)
    return torch.from_numpy(tokens_1T), torch.from_numpy(positions_1T), flat_indices, layout


def pack(
    batch: "Batch",
    weights: Sequence["Floats"],
    token_budget: int,
    *,
    ranks: int = 1,
    share: Share = "prefix",
) -> list[Packs]:
    """Pack the rows of a step for every rank: the same number of packs, of even cost.

    Each adapter has packs of its own, adapter after adapter: hidden states of a prefix depend on
    the adapter.

    Args:
        batch: the rows of a step; rows without an action are left out.
        weights: factors of the sampled tokens' losses, shape (A,) for each row.
        token_budget: most tokens of a pack, padding included. A longer row begins a new pack.
            Rows with at least half of their tokens in the pack join it, up to `SHARED` times the
            longest row: another pack would compute the shared part again.
        ranks: number of processes.
        share: sharing between rows; see `make_pack`.
    """
    plans_of_ranks: list[list[PackPlan]] = [[] for _ in range(ranks)]
    for adapter in dict.fromkeys(row.adapter for row in batch.rows):
        adapter_rows = [n for n, row in enumerate(batch.rows) if row.adapter == adapter]
        units = filling_order(batch, adapter_rows, share)
        plans = []
        for cost, pack_units in _even_packs(units, token_budget, ranks, share):
            numbers: list[int] = []
            for unit in pack_units:
                numbers += unit.rows
            plan = PackPlan(
                rows=tuple(batch.rows[number] for number in numbers),
                weights=tuple(weights[number] for number in numbers),
                numbers=tuple(numbers),
                share=share,
            )
            plans.append((cost, plan))
        idle_plan = empty(batch.rows[adapter_rows[0]], share)
        new_plans = _deal(plans, ranks, idle_plan)
        for rank in range(ranks):
            plans_of_ranks[rank] += new_plans[rank]
    return [Packs(plans) for plans in plans_of_ranks]


def _deal(
    plans: Sequence[tuple[float, PackPlan]], ranks: int, idle_plan: PackPlan
) -> list[list[PackPlan]]:
    """Deal plans to ranks: the same number for each, of about the same cost."""
    per_rank = math.ceil(len(plans) / ranks)
    dealt: list[list[PackPlan]] = [[] for _ in range(ranks)]
    loads = [0.0] * ranks
    # Costly packs first, each to the rank with the least work so far: the cheap ones at the end
    # even out what differs.
    for cost, plan in sorted(plans, key=lambda cost_and_plan: -cost_and_plan[0]):
        free_ranks = [rank for rank in range(ranks) if len(dealt[rank]) < per_rank]
        rank = min(free_ranks, key=lambda rank: loads[rank])
        dealt[rank].append(plan)
        loads[rank] += cost
    for rank_plans in dealt:
        rank_plans += [idle_plan] * (per_rank - len(rank_plans))
    return dealt


def _even_packs(
    units: Sequence[Unit], token_budget: int, ranks: int, share: Share
) -> list[tuple[float, list[Unit]]]:
    """Divide units into packs with costs: as few a rank as the budget allows, then even.

    A bisection finds the lowest limit on a pack's cost for this number of packs.
    """
    packs = _fill_packs(units, token_budget, math.inf, share)
    if not packs:
        return []
    num_packs = math.ceil(len(packs) / ranks) * ranks
    # One rank waits for no other: it gains nothing from even packs that compute a prefix again.
    # The slack is for rounding, as the same costs may be added up in another order.
    max_total = math.inf
    if ranks == 1:
        max_total = sum(cost for cost, _ in packs) * (1 + 1e-9)
    low = 0.0
    high = max(cost for cost, _ in packs)
    for _ in range(_BISECTION_STEPS):
        limit = (low + high) / 2
        candidate = _fill_packs(units, token_budget, limit, share)
        total = sum(cost for cost, _ in candidate)
        if len(candidate) <= num_packs and total <= max_total:
            packs = candidate
            high = limit
        else:
            low = limit
    return packs


def _fill_packs(
    units: Sequence[Unit], token_budget: int, max_cost: float, share: Share
) -> list[tuple[float, list[Unit]]]:
    """Divide units, in order, into packs as large as token budget and cost allow."""
    longest = max((max(unit.lengths) for unit in units), default=0)
    packs: list[tuple[float, list[Unit]]] = []
    pack_units: list[Unit] = []
    filling = _PackFilling(share)
    for unit in units:
        cost_before = filling.cost
        tokens_before = filling.tokens
        filling.add(unit)
        # A unit with at least half of its tokens in the pack joins beyond the budget: in another
        # pack its prefix would be computed again.
        budget = token_budget
        if 2 * (filling.tokens - tokens_before) <= sum(unit.lengths):
            budget = max(token_budget, SHARED * longest)
        is_too_large = filling.tokens > budget or filling.cost > max_cost
        # A unit alone is accepted at any size, as rows cannot be cut.
        if pack_units and is_too_large:
            packs.append((cost_before, pack_units))
            pack_units = []
            filling = _PackFilling(share)
            filling.add(unit)
        pack_units.append(unit)
    if pack_units:
        packs.append((filling.cost, pack_units))
    return packs
