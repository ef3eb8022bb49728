"""Packs: the rows of a micro-batch as tensors for one forward and backward pass."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from debate_train.packed_rows.pack_layout import Layout, make_layout, tensors_on
from debate_train.packed_rows.prefix_forest import PrefixForest, Share, shared_length

if TYPE_CHECKING:
    from debate_train.batches.row_types import Batch, Floats, Ints, Row


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


def needed_tokens(row: "Row") -> int:
    """Return how many tokens of a row predict something: those before its last action."""
    actions = np.flatnonzero(row.mask[1:])
    return int(actions[-1]) + 1 if len(actions) else 0


def make_pack(
    batch: "Batch", weights: Sequence["Floats"], numbers: Sequence[int], share: Share
) -> Pack:
    """Return the pack of these rows of the batch, in this order.

    Args:
        batch: the rows of a step.
        weights: of each row of the batch what its tokens' losses are multiplied by.
        numbers: which rows, all of one adapter.
        share: `prefix` computes what neighbours begin with once; `none` pads.
    """
    rows = [batch.rows[number] for number in numbers]
    inputs = [row.tokens[: needed_tokens(row)] for row in rows]
    tokens_BT, positions_BT, places, layout = (
        _padded(inputs) if share == "none" else _flat(inputs, share == "prefix")
    )
    actions = [np.flatnonzero(row.mask[1:]) + 1 for row in rows]
    counts = [len(t) for t in actions]

    def picked(arrays: Sequence["Floats | Ints"]) -> Tensor:
        found = [array[t] for array, t in zip(arrays, actions, strict=True)]
        return torch.from_numpy(np.concatenate(found))

    def repeated(values: Sequence[int]) -> Tensor:
        return torch.from_numpy(np.repeat(np.asarray(values, np.int64), counts))

    return Pack(
        tokens_BT,
        positions_BT,
        layout,
        sources_A=picked([np.append(0, place) for place in places]),
        targets_A=picked([row.tokens for row in rows]),
        advantages_A=picked([row.advantages for row in rows]),
        sampler_logps_A=picked([row.sampler_logps for row in rows]),
        temperatures_A=picked([row.temperatures for row in rows]),
        weights_A=picked([weights[number] for number in numbers]),
        streams_A=picked([row.streams for row in rows]),
        versions_A=picked([row.versions for row in rows]),
        rows_A=repeated(numbers),
        pairs_A=repeated([row.pair for row in rows]),
        adapter=rows[0].adapter,
    )


def empty_pack(share: Share) -> Pack:
    """Return a pack of one token that carries no loss: every rank runs as many packs as others."""
    one = [np.zeros(1, np.int64)]
    tokens_BT, positions_BT, _, layout = _padded(one) if share == "none" else _flat(one)
    ints, floats = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    return Pack(
        tokens_BT,
        positions_BT,
        layout,
        sources_A=ints,
        targets_A=ints,
        advantages_A=floats,
        sampler_logps_A=floats,
        temperatures_A=floats,
        weights_A=floats,
        streams_A=ints,
        versions_A=ints,
        rows_A=ints,
        pairs_A=ints,
    )


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
