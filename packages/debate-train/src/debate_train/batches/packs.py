"""Packs of even work: rows of a micro-batch as tensors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debate_train.batches.prefix_forest import (
    Layout,
    PrefixForest,
    make_layout,
    tensors_on,
)
from debate_train.batches.row_types import (
    SHARED,
    TRUNK_TO_PACK,
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

CONTEXT_COST = 8192
"""Tokens of context at which attending to them costs as much as all else a token goes through."""
RECOMPUTED_SHARE = 0.25
"""Most of a group's tokens that go forward twice: a twelfth of its time, as a forward pass is a
third of an update (an eighth with adapters, where it is half)."""
NO_TOKENS: Ints = np.zeros(0, np.int64)
# Twenty halvings bring the cost limit within a millionth of the costliest pack.
_BISECTION_STEPS = 20
_ACTION_COLUMNS = ("advantages", "sampler_logps", "temperatures", "streams", "versions")


@dataclass(frozen=True, slots=True)
class TrunkRun:
    """A run of a trunk's tokens, behind the runs before it."""

    tokens_1T: Tensor
    positions_1T: Tensor
    layout: Layout
    keeps_activations: bool
    """Whether its backward pass has the activations of its forward pass, or computes them again."""

    def to(self, device: torch.device) -> "TrunkRun":
        """Copy the run to a device."""
        return replace(self, layout=self.layout.to(device), **tensors_on(self, device))


@dataclass(frozen=True, slots=True, eq=False)
class Trunk:
    """Tokens that the rows of several packs begin with, all or some of them."""

    tokens: Ints
    runs: tuple[TrunkRun, ...]
    adapter: str | None

    @property
    def layout(self) -> Layout:
        """Attention of the last run."""
        return self.runs[-1].layout

    def to(self, device: torch.device) -> "Trunk":
        """Copy the trunk to a device."""
        return replace(self, runs=tuple(run.to(device) for run in self.runs))


@dataclass(frozen=True, slots=True)
class Pack:
    """A micro-batch: tokens to compute, and the sampled tokens (actions) with a loss.

    Every vector `_A` has an entry for each action. `sources_A` indexes the predicting tokens in the
    flattened `tokens_BT`, behind those of a trunk; a token may predict several actions.
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
    trunk: Trunk | None = None
    """What its rows begin with, and other packs' rows, too."""

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
    trunk: Trunk | None = None

    def build(self) -> Pack:
        """Build the pack."""
        batch = Batch(rows=self.rows, streams=(), sampled_tokens=0, turns=0)
        pack = make_pack(batch, self.weights, range(len(self.rows)), self.share, self.trunk)
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
            mean_context = length - num_new / 2
            self.cost += num_new * (1 + mean_context / CONTEXT_COST)
        self.tokens = self._forest.tokens


def make_pack(
    batch: "Batch",
    weights: Sequence["Floats"],
    numbers: Sequence[int],
    share: Share,
    trunk: Trunk | None = None,
) -> Pack:
    """Build the pack of some rows of the batch, in the order of their numbers.

    Args:
        batch: the rows of a step.
        weights: factors of the sampled tokens' losses, shape (A,) for each row of the batch.
        numbers: numbers of the rows to pack, all with the same adapter.
        share: `prefix` computes a common prefix of neighbors once; `none` pads.
        trunk: what the rows begin with, computed before the pack; rows that have less of it in
            common come later.
    """
    rows = [batch.rows[number] for number in numbers]
    # Tokens behind the last action predict nothing; one token is the least a model computes.
    inputs = [row.tokens[: max(1, needed_tokens(row))] for row in rows]
    if share == "none":
        tokens_BT, positions_BT, flat_indices = _padded(inputs)
        layout = None
    else:
        trunk_tokens = NO_TOKENS if trunk is None else trunk.tokens
        tokens_BT, positions_BT, flat_indices, layout = _flat(
            inputs, share == "prefix", trunk_tokens
        )

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
        # The token before an action predicts it; with a shared prefix it may be another row's.
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
        trunk=trunk,
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
    inputs: Sequence["Ints"], shares_prefixes: bool, trunk_tokens: Ints = NO_TOKENS
) -> tuple[Tensor, Tensor, list["Ints"], Layout]:
    """Concatenate rows; list the indices of each row's tokens in the sequence behind a trunk."""
    forest = PrefixForest()
    depths = [trunk_depth(trunk_tokens, tokens) for tokens in inputs]
    if len(trunk_tokens):
        forest.grow_trunk(len(trunk_tokens), depths)
    flat_indices: list[Ints] = []
    previous = NO_TOKENS
    previous_depth = 0
    for tokens, depth in zip(inputs, depths, strict=True):
        shared = shared_length(previous, tokens) if shares_prefixes else 0
        if depth != previous_depth:
            # The row leaves the trunk elsewhere than its neighbor: the trunk is what they share.
            forest.follow_trunk(depth)
            shared = depth
        forest.add(len(tokens), shared)
        flat_indices.append(forest.positions())
        previous = tokens
        previous_depth = depth
    tokens_1K = np.zeros((1, forest.tokens), np.int64)
    positions_1K = np.zeros_like(tokens_1K)
    for tokens, indices in zip(inputs, flat_indices, strict=True):
        tokens_1K[0, indices] = tokens
        positions_1K[0, indices] = np.arange(len(tokens))
    layout = make_layout(forest, len(trunk_tokens))
    tokens_1T = torch.from_numpy(tokens_1K[:, len(trunk_tokens) :])
    positions_1T = torch.from_numpy(positions_1K[:, len(trunk_tokens) :])
    return tokens_1T, positions_1T, flat_indices, layout


def trunk_depth(trunk_tokens: "Ints", tokens: "Ints") -> int:
    """Count the tokens that a row takes from a trunk, all but its last at most."""
    # A pack without a token would have nothing to compute.
    return min(shared_length(trunk_tokens, tokens), len(tokens) - 1)


def pack(
    batch: "Batch",
    weights: Sequence["Floats"],
    token_budget: int,
    *,
    ranks: int = 1,
    share: Share = "prefix",
    with_trunks: bool = False,
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
        with_trunks: divide packs beyond the budget into packs behind a trunk. Only for a single
            process: ranks with other trunks would make other passes.
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
            for plan in new_plans[rank]:
                if with_trunks and share == "prefix":
                    plans_of_ranks[rank] += divide(plan, token_budget)
                else:
                    plans_of_ranks[rank].append(plan)
    return [Packs(plans) for plans in plans_of_ranks]


def divide(plan: PackPlan, token_budget: int) -> list[PackPlan]:
    """Divide a pack beyond the budget into packs behind a trunk, where that saves memory."""
    inputs = [row.tokens[: max(1, needed_tokens(row))] for row in plan.rows]
    num_tokens = _flat(inputs, shares_prefixes=True)[3].starts[-1]
    if num_tokens <= token_budget:
        return [plan]
    # The longest beginning of two neighbors: in a debate that all agents read alike, what they
    # read in the last round. Other rows share a part of it.
    trunk_tokens = NO_TOKENS
    for tokens, next_tokens in pairwise(inputs):
        shared = shared_length(tokens, next_tokens)
        if shared > len(trunk_tokens):
            trunk_tokens = tokens[:shared]
    depths = [trunk_depth(trunk_tokens, tokens) for tokens in inputs]
    # Rows that share most with the trunk come first; rows of a pair stay together.
    rows_of_unit: dict[int, list[int]] = {}
    by_depth = sorted(range(len(depths)), key=lambda number: -depths[number])
    for number in by_depth:
        pair = plan.rows[number].pair
        # Negative keys, below those of pairs, are free for rows of no pair.
        key = pair if pair >= 0 else -1 - number
        rows_of_unit.setdefault(key, []).append(number)
    units = list(rows_of_unit.values())
    unit_sizes = []
    for rows in units:
        num_behind_trunk = [len(inputs[row]) - depths[row] for row in rows]
        unit_sizes.append(sum(num_behind_trunk))

    # Packs far smaller than their trunk save little memory, and each costs a pass.
    trunk_size = len(trunk_tokens)
    pack_size = max(token_budget - trunk_size, trunk_size // TRUNK_TO_PACK, *unit_sizes)
    # Tokens of the trunk beyond the budget go forward twice, up to a share of all tokens.
    excess = max(trunk_size + pack_size - token_budget, 0)
    num_recomputed = min(excess, trunk_size, int(RECOMPUTED_SHARE * num_tokens))
    # Either run of the trunk is in memory at its backward pass; the second beside a pack.
    num_with_pack = trunk_size - num_recomputed + pack_size
    if max(num_with_pack, num_recomputed) >= num_tokens:
        return [plan]
    trunk = _make_trunk(trunk_tokens, num_recomputed, plan.rows[0].adapter)
    total_size = sum(unit_sizes)
    num_packs = math.ceil(total_size / pack_size)
    even_size = max(total_size / num_packs, *unit_sizes)
    rows_of_packs: list[list[int]] = [[]]
    size = 0
    for rows, unit_size in zip(units, unit_sizes, strict=True):
        if rows_of_packs[-1] and size + unit_size > even_size:
            rows_of_packs.append([])
            size = 0
        rows_of_packs[-1] += rows
        size += unit_size
    return [_select(plan, rows, depths, trunk) for rows in rows_of_packs]


def _make_trunk(tokens: "Ints", num_recomputed: int, adapter: str | None) -> Trunk:
    """Build a trunk of two runs, or of one: the first is computed again in its backward pass."""
    runs = []
    for start, end in ((0, num_recomputed), (num_recomputed, len(tokens))):
        if start == end:
            continue
        # The first run is the trunk of the second.
        tokens_1T, positions_1T, _, layout = _flat([tokens[:end]], False, tokens[:start])
        run = TrunkRun(
            tokens_1T=tokens_1T,
            positions_1T=positions_1T,
            layout=layout,
            keeps_activations=start == num_recomputed,
        )
        runs.append(run)
    return Trunk(tokens, tuple(runs), adapter)


def _select(
    plan: PackPlan, numbers: Sequence[int], depths: Sequence[int], trunk: Trunk
) -> PackPlan:
    """Select rows for a pack behind a trunk."""
    # What descends from a node must follow without a gap: who shares most comes first.
    ordered = sorted(numbers, key=lambda number: -depths[number])
    return PackPlan(
        rows=tuple(plan.rows[number] for number in ordered),
        weights=tuple(plan.weights[number] for number in ordered),
        numbers=tuple(plan.numbers[number] for number in ordered),
        share=plan.share,
        trunk=trunk,
    )


def _deal(
    plans: Sequence[tuple[float, PackPlan]], ranks: int, idle_plan: PackPlan
) -> list[list[PackPlan]]:
    """Deal plans to ranks: the same number for each, of about the same cost."""
    per_rank = math.ceil(len(plans) / ranks)
    dealt: list[list[PackPlan]] = [[] for _ in range(ranks)]
    loads = [0.0] * ranks
    # Costly packs first, each to the rank with the least work so far: the cheap ones at the end
    # even out what differs.
    costly_first = sorted(plans, key=lambda cost_and_plan: -cost_and_plan[0])
    for cost, plan in costly_first:
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
        num_new = filling.tokens - tokens_before
        if 2 * num_new <= sum(unit.lengths):
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
