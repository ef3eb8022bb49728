"""The training objective of a micro-batch, shared by all trainers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from debate_train.logps import token_logps
from debate_train.losses import Loss, LossInputs, Sft, token_weights
from debate_train.rows import Batch, Row


@dataclass(frozen=True, slots=True)
class RowTensors:
    """Right-padded rows, every tensor of shape (B, T); padding has mask 0."""

    tokens_BT: Tensor
    mask_BT: Tensor
    advantages_BT: Tensor
    sampler_logps_BT: Tensor
    temperatures_BT: Tensor
    streams_BT: Tensor
    versions_BT: Tensor
    segments_BT: Tensor


def collate(rows: Sequence[Row], device: torch.device) -> RowTensors:
    """Return rows of unequal length as padded tensors."""
    longest = max(len(row) for row in rows)

    def padded(name: str, fill: float) -> Tensor:
        first = getattr(rows[0], name)
        out = np.full((len(rows), longest), fill, first.dtype)
        for b, row in enumerate(rows):
            out[b, : len(row)] = getattr(row, name)
        return torch.from_numpy(out).to(device)

    return RowTensors(
        padded("tokens", 0),
        padded("mask", 0),
        padded("advantages", 0),
        padded("sampler_logps", 0),
        padded("temperatures", 1),
        padded("streams", 0),
        padded("versions", -1),
        padded("segments", 0),
    )


@dataclass(slots=True)
class StepStats:
    """Sums over the sampled tokens of a step, measured before the update."""

    sums: dict[str, float] = field(default_factory=dict)
    ratio_min: float = float("inf")
    ratio_max: float = float("-inf")

    def add(self, name: str, value: Tensor) -> None:
        """Add the sum of a tensor."""
        self.sums[name] = self.sums.get(name, 0.0) + float(value.detach().double().sum())

    def metrics(self, sampled_tokens: int) -> dict[str, float]:
        """Return the sums as means over sampled tokens; the loss stays a sum."""
        tokens = max(sampled_tokens, 1)
        found = {n: v if n == "loss" else v / tokens for n, v in self.sums.items()}
        if self.ratio_max > 0:
            found |= {"optim/ratio_min": self.ratio_min, "optim/ratio_max": self.ratio_max}
        return found


def micro_batch_loss(
    model: nn.Module,
    rows: RowTensors,
    batch: Batch,
    loss: Loss,
    reference_logps: Tensor | None,
    stats: StepStats,
) -> Tensor:
    """Return this micro-batch's share of the step's loss, a scalar with a gradient.

    The shares of all micro-batches (and ranks) add up to the step's loss: every denominator
    counts the whole step.
    """
    supervised = isinstance(loss, Sft)
    wanted_BT = rows.mask_BT > 0
    temperatures_BT = torch.ones_like(rows.temperatures_BT) if supervised else rows.temperatures_BT
    logps, entropies = token_logps(model, rows.tokens_BT, wanted_BT, temperatures_BT)
    old_logps = logps.detach() if supervised else rows.sampler_logps_BT[wanted_BT]
    losses = loss(LossInputs(logps, old_logps, rows.advantages_BT[wanted_BT]))
    if reference_logps is not None:
        kl = loss.kl(logps, reference_logps)
        losses = losses + loss.kl.weight * kl
        stats.add("optim/kl_reference", kl)
    weights_BT = token_weights(
        rows.mask_BT, rows.segments_BT, loss.normalise, batch.sampled_tokens, batch.turns
    )
    total = (losses * weights_BT[wanted_BT]).sum()
    stats.add("loss", total)
    stats.add("optim/entropy", entropies)
    if not supervised:
        _add_ratio_stats(stats, loss, logps.detach(), old_logps)
    return total


def accumulate(
    model: nn.Module,
    batch: Batch,
    loss: Loss,
    reference: Mapping[str, Tensor],
    tokens_per_micro_batch: int,
    backward: Callable[[Tensor], object],
) -> dict[str, float]:
    """Run forward and backward over all micro-batches of a step; return its metrics.

    `reference` holds the reference policy's trained parameters; empty without KL.
    """
    device = next(model.parameters()).device
    stats = StepStats()
    for chunk in batch.micro_batches(tokens_per_micro_batch):
        rows = collate(chunk, device)
        ref_logps = reference_logps(model, rows, reference, loss)
        backward(micro_batch_loss(model, rows, batch, loss, ref_logps, stats))
    return stats.metrics(batch.sampled_tokens)


def _add_ratio_stats(stats: StepStats, loss: Loss, logps: Tensor, old_logps: Tensor) -> None:
    difference = old_logps - logps
    stats.add("optim/kl_sample_train_v1", difference)
    stats.add("optim/kl_sample_train_v2", 0.5 * difference**2)
    ratio = torch.exp(-difference)
    if ratio.numel():
        stats.ratio_min = min(stats.ratio_min, float(ratio.min()))
        stats.ratio_max = max(stats.ratio_max, float(ratio.max()))
    if loss.type == "ppo_clip":
        outside = (ratio < 1 - loss.clip_low) | (ratio > 1 + loss.clip_high)
        stats.add("optim/clip_fraction", outside)


@torch.no_grad()
def reference_logps(
    model: nn.Module, rows: RowTensors, reference: Mapping[str, Tensor], loss: Loss
) -> Tensor | None:
    """Return the reference policy's log-probabilities of the sampled tokens, None without KL."""
    if loss.kl.weight == 0:
        return None
    tempered = not isinstance(loss, Sft)
    temperatures_BT = rows.temperatures_BT if tempered else torch.ones_like(rows.temperatures_BT)
    with swapped(model, reference):
        return token_logps(model, rows.tokens_BT, rows.mask_BT > 0, temperatures_BT)[0]


@contextmanager
def swapped(model: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Let the model hold these parameter values for a while."""
    parameters = {n: p for n, p in model.named_parameters() if n in tensors}
    own = {name: parameter.data for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            parameter.data = tensors[name]
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = own[name]


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are trained, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of the trained parameters."""
    return {name: p.detach().clone() for name, p in trainable(model).items()}
