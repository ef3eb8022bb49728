"""The training objective of a pack, shared by all trainers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from debate_train.logps import token_logps
from debate_train.losses import Loss, LossInputs
from debate_train.packed_attention import attention_of
from debate_train.packs import Pack
from debate_train.references import Reference

SHARES = frozenset({"loss", "optim/preference_margin", "optim/preference_accuracy"})
"""Sums whose terms hold the step's denominators already."""


@dataclass(slots=True)
class StepStats:
    """Sums and extremes over the sampled tokens of a step, measured before the update.

    Every pack, an empty one too, leaves the same names: ranks can reduce them by name.
    """

    sums: dict[str, Tensor] = field(default_factory=dict)
    lows: dict[str, Tensor] = field(default_factory=dict)
    highs: dict[str, Tensor] = field(default_factory=dict)

    def add(self, name: str, values: Tensor) -> None:
        """Add the sum of a tensor."""
        found = values.detach().double().sum()
        self.sums[name] = self.sums[name] + found if name in self.sums else found

    def watch(self, low: str, high: str, values: Tensor) -> None:
        """Widen the range between these names to a tensor's."""
        found = values.detach().double()
        end = found.new_full((1,), float("inf"))
        least, most = torch.cat((found, end)).min(), torch.cat((found, -end)).max()
        self.lows[low] = torch.minimum(self.lows.get(low, least), least)
        self.highs[high] = torch.maximum(self.highs.get(high, most), most)

    def metrics(self, sampled_tokens: int) -> dict[str, float]:
        """Return the sums as means over sampled tokens; shares of the step stay sums."""
        tokens = max(sampled_tokens, 1)
        found = {n: float(v) / (1 if n in SHARES else tokens) for n, v in self.sums.items()}
        extremes = {n: float(v) for n, v in (self.lows | self.highs).items()}
        return found | {n: v for n, v in extremes.items() if abs(v) != float("inf")}


def pack_loss(
    model: nn.Module, pack: Pack, loss: Loss, reference: Reference | None, stats: StepStats
) -> Tensor:
    """Return this pack's share of the step's loss, a scalar with a gradient.

    The shares of all packs (and ranks) add up to the step's loss: the denominators in
    `weights_A` count the whole step.
    """
    if loss.supervised:
        pack = replace(pack, temperatures_A=torch.ones_like(pack.temperatures_A))
    reference_logps_A = None if reference is None else reference.logps(model, pack)
    logps_A, entropies_A = token_logps(model, pack)
    x = LossInputs(
        logps_A=logps_A,
        old_logps_A=pack.sampler_logps_A,
        sampler_logps_A=pack.sampler_logps_A,
        advantages_A=pack.advantages_A,
        weights_A=pack.weights_A,
        rows_A=pack.rows_A,
        pairs_A=pack.pairs_A,
        reference_logps_A=reference_logps_A,
    )
    total = loss(x)
    stats.add("loss", total)
    stats.add("optim/entropy", entropies_A)
    _measure(stats, loss, replace(x, logps_A=logps_A.detach()))
    return total


def accumulate(
    model: nn.Module,
    packs: Sequence[Pack],
    loss: Loss,
    reference: Reference | None,
    backward: Callable[[Tensor], object],
) -> StepStats:
    """Run forward and backward over one rank's packs of a step; return what was measured."""
    device = next(model.parameters()).device
    stats = StepStats()
    for pack in packs:
        # Held until the backward pass is done, which may compute layers again.
        with attention_of(model, pack):
            backward(pack_loss(model, pack.to(device), loss, reference, stats))
    return stats


def _measure(stats: StepStats, loss: Loss, x: LossInputs) -> None:
    """Add what every loss is watched by, and what this one names itself."""
    if not loss.supervised:
        gap_A = x.sampler_logps_A - x.logps_A
        stats.add("optim/kl_sample_train_v1", gap_A)
        stats.add("optim/kl_sample_train_v2", 0.5 * gap_A**2)
        stats.watch("optim/ratio_min", "optim/ratio_max", (x.logps_A - x.old_logps_A).exp())
    for name, values in loss.diagnostics(x).items():
        stats.add(name, values)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are trained, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of the trained parameters."""
    return {name: p.detach().clone() for name, p in trainable(model).items()}
