"""The training objective of a pack, and the updates that are made of a batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from types import MappingProxyType

import torch
from torch import Tensor, nn

from debate_train.batches.attention import attention_of
from debate_train.batches.logps import token_logps
from debate_train.batches.packs import Pack
from debate_train.losses import Loss
from debate_train.losses.loss import LossInputs
from debate_train.losses.references import Reference

SHARES = ("loss", "optim/loss_", "optim/preference_")
"""How sums begin whose terms hold the update's denominators already."""


@dataclass(slots=True)
class StepStats:
    """Sums and extremes over the sampled tokens of a batch, each measured before its update.

    Every pack, an empty one too, leaves the same names: ranks can reduce them by name.
    """

    sums: dict[str, Tensor] = field(default_factory=dict)
    lows: dict[str, Tensor] = field(default_factory=dict)
    highs: dict[str, Tensor] = field(default_factory=dict)
    epochs: int = 1
    """How often each token was measured."""
    updates: int = 1
    adapters: "dict[str, StepStats]" = field(default_factory=dict)
    """What was measured of each adapter that has a name; the rest is of packs without one."""

    def of(self, adapter: str | None) -> "StepStats":
        """Return where the packs of an adapter are measured."""
        return self if adapter is None else self.adapters.setdefault(adapter, StepStats())

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

    def on_cpu(self) -> "StepStats":
        """Return these values on the CPU, moved as one tensor: the device is waited for once."""
        if self.adapters:
            own = {name: stats.on_cpu() for name, stats in self.adapters.items()}
            return replace(replace(self, adapters={}).on_cpu(), adapters=own)
        groups = (self.sums, self.lows, self.highs)
        values = [value for group in groups for value in group.values()]
        if not values:
            return self
        moved = iter(torch.stack(values).cpu())
        sums, lows, highs = (dict(zip(group, moved, strict=False)) for group in groups)
        return replace(self, sums=sums, lows=lows, highs=highs)

    @classmethod
    def of_all(cls, found: "Sequence[StepStats]") -> "StepStats":
        """Return what all ranks measured as one; their values are on the CPU."""
        total = cls(epochs=found[0].epochs, updates=found[0].updates)
        for stats in found:
            for name, value in stats.sums.items():
                total.add(name, value)
            for name, value in stats.lows.items():
                total.lows[name] = torch.minimum(total.lows.get(name, value), value)
            for name, value in stats.highs.items():
                total.highs[name] = torch.maximum(total.highs.get(name, value), value)
        for name in dict.fromkeys(name for stats in found for name in stats.adapters):
            own = [stats.adapters[name] for stats in found if name in stats.adapters]
            total.adapters[name] = cls.of_all(own)
        return total

    def metrics(
        self, sampled_tokens: int, of_adapters: Mapping[str, int] = MappingProxyType({})
    ) -> dict[str, float]:
        """Return means over the batch's sampled tokens, and of shares their sums; of all updates.

        With one update this is what the policy was before it. Of adapters with names there are
        also those over the tokens of each, such as `optim/entropy/critic`.
        """
        here = self.on_cpu()
        parts = here.adapters
        found = StepStats.of_all([here, *parts.values()])._means(sampled_tokens)
        for adapter, part in parts.items():
            part.epochs, part.updates = here.epochs, here.updates
            own = part._means(of_adapters.get(adapter, 0))
            found |= {f"{name}/{adapter}": mean for name, mean in own.items()}
        return found

    def _means(self, sampled_tokens: int) -> dict[str, float]:
        tokens, updates = max(sampled_tokens * self.epochs, 1), max(self.updates, 1)
        found = {
            n: float(v) / (updates if n.startswith(SHARES) else tokens)
            for n, v in self.sums.items()
        }
        extremes = {n: float(v) for n, v in (self.lows | self.highs).items()}
        return found | {n: v for n, v in extremes.items() if abs(v) != float("inf")}


@dataclass(frozen=True, slots=True)
class KnownLogps:
    """Log-probabilities of a pack's actions that were found before the batch's first update."""

    old_A: Tensor | None = None
    """Of the trainer's own policy; None where no update lies in between."""
    reference_A: Tensor | None = None


def score(model: nn.Module, pack: Pack, loss: Loss) -> Tensor:
    """Return the log-probabilities of a pack's actions as this loss takes them, shape (A,)."""
    with attention_of(model, pack):
        pack = _at_temperature(pack.to(next(model.parameters()).device), loss)
        return token_logps(model, pack)[0].detach()


def _at_temperature(pack: Pack, loss: Loss) -> Pack:
    if not loss.supervised:
        return pack
    return replace(pack, temperatures_A=torch.ones_like(pack.temperatures_A))


def pack_loss(
    model: nn.Module, pack: Pack, loss: Loss, known: KnownLogps, stats: StepStats
) -> Tensor:
    """Return this pack's share of the update's loss, a scalar with a gradient.

    The shares of all packs (and ranks) add up to the loss: the denominators in `weights_A` count
    the whole update. A share that is not finite makes all of the gradient so, wherever it came
    from: every rank then skips the update.
    """
    pack = _at_temperature(pack, loss)
    logps_A, entropies_A = token_logps(model, pack)
    old_logps_A = pack.sampler_logps_A
    if known.old_A is not None:
        old_logps_A = known.old_A
    elif loss.ratio_against == "trainer":
        old_logps_A = logps_A.detach()
    x = LossInputs(
        logps_A=logps_A,
        old_logps_A=old_logps_A,
        sampler_logps_A=pack.sampler_logps_A,
        advantages_A=pack.advantages_A,
        weights_A=pack.weights_A,
        rows_A=pack.rows_A,
        pairs_A=pack.pairs_A,
        reference_logps_A=known.reference_A,
    )
    total = loss(x)
    stats.add("loss", total)
    stats.add("optim/entropy", entropies_A)
    _measure(stats, loss, replace(x, logps_A=logps_A.detach()), known)
    return total * torch.where(total.detach().isfinite(), 1.0, float("nan"))


def accumulate(
    model: nn.Module,
    packs: Sequence[Pack],
    loss: Loss,
    known: Sequence[KnownLogps],
    backward: Callable[[Tensor], object],
    stats: StepStats,
) -> None:
    """Run forward and backward over one process's packs of an update."""
    device = next(model.parameters()).device
    for pack, logps in zip(packs, known, strict=True):
        # Held until the backward pass is done, which may compute layers again.
        with attention_of(model, pack):
            own = stats.of(pack.adapter)
            backward(pack_loss(model, pack.to(device), loss, logps, own))


def _measure(stats: StepStats, loss: Loss, x: LossInputs, known: KnownLogps) -> None:
    """Add what every loss is watched by, and what this one names itself."""
    if not loss.supervised:
        # Of the batch's first update where several move the policy away from the sampler.
        gap_A = x.sampler_logps_A - (x.logps_A if known.old_A is None else known.old_A)
        stats.add("optim/kl_sample_train_v1", gap_A)
        stats.add("optim/kl_sample_train_v2", 0.5 * gap_A**2)
        stats.watch("optim/ratio_min", "optim/ratio_max", (x.logps_A - x.old_logps_A).exp())
    for name, values in loss.diagnostics(x).items():
        stats.add(name, values)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are trained, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


@dataclass(frozen=True, slots=True)
class Update:
    """What became of one optimizer step."""

    grad_norm: float
    """Before clipping; not finite where the step was skipped."""
    is_skipped: bool
    adapter_norms: Mapping[str, float] = field(default_factory=dict)
    """The same of each adapter that has a name."""


@dataclass(frozen=True, slots=True)
class Learning:
    """How a trainer learns from a batch. All processes make the same calls together."""

    model: nn.Module
    loss: Loss
    reference: Reference | None
    epochs: int
    backward: Callable[[Tensor], object]
    update: Callable[[], Update]
    """Clip, make the optimizer step unless the gradient is not finite, and drop the gradient."""

    def learn(self, parts: Sequence[Sequence[Pack]]) -> tuple[StepStats, list[Update]]:
        """Make `epochs` passes over the parts of a batch, an update for each.

        Args:
            parts: this process's packs of each part; as many for every process.

        Returns:
            What was measured of this process's packs, each time before their update.
        """
        known = self._known(parts)
        stats, made = StepStats(), list[Update]()
        for _ in range(self.epochs):
            for part, logps in zip(parts, known, strict=True):
                if part:
                    accumulate(self.model, part, self.loss, logps, self.backward, stats)
                    made.append(self.update())
        stats.epochs, stats.updates = self.epochs, len(made)
        return stats, made

    def _known(self, parts: Sequence[Sequence[Pack]]) -> list[list[KnownLogps]]:
        """Score what the loss compares with, before the first update."""
        nothing: list[list[Tensor | None]] = [[None] * len(part) for part in parts]
        olds, references = nothing, nothing
        if self.epochs * len(parts) > 1 and self.loss.ratio_against != "sampler":
            olds = self._scored(parts)
        if self.reference is not None:
            with self.reference.acting():
                references = self._scored(parts)
        return [
            [KnownLogps(*pair) for pair in zip(*both, strict=True)]
            for both in zip(olds, references, strict=True)
        ]

    @torch.no_grad()
    def _scored(self, parts: Sequence[Sequence[Pack]]) -> "list[list[Tensor | None]]":
        return [[score(self.model, pack, self.loss) for pack in part] for part in parts]


def row_logps(model: nn.Module, packs: Sequence[Pack], loss: Loss) -> dict[int, float]:
    """Return the sum of the log-probabilities of each row's actions, by the row's number."""
    found: dict[int, float] = {}
    with torch.no_grad():
        for pack in packs:
            logps = score(model, pack, loss).double().tolist()
            for row, logp in zip(pack.rows_A.tolist(), logps, strict=True):
                found[row] = found.get(row, 0.0) + logp
    return found


class Skips:
    """Counts updates that were skipped because their gradient was not finite."""

    def __init__(self, in_a_row: int = 0) -> None:
        self.in_a_row = in_a_row

    def metrics(self, made: Sequence[Update]) -> dict[str, float]:
        """Count the updates of a batch; return their number and mean norm as metrics."""
        for update in made:
            self.in_a_row = self.in_a_row + 1 if update.is_skipped else 0
        norms = [update.grad_norm for update in made]
        return {
            "optim/grad_norm": sum(norms) / max(1, len(norms)),
            "optim/updates": float(len(made)),
            "optim/skipped": float(sum(update.is_skipped for update in made)),
            "optim/skipped_in_a_row": float(self.in_a_row),
            **{
                f"optim/grad_norm/{name}": fmean(update.adapter_norms[name] for update in made)
                for name in (made[0].adapter_norms if made else ())
            },
        }
