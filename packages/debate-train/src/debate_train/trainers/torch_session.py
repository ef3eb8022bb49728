"""How a batch becomes updates, and the session of the `torch` trainer."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn, optim
from torch.nn import Parameter
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from debate_protocol.plugins import install_command
from debate_rollout.engine import Weights
from debate_train.batches.forward import attention_of, check_packing, token_logps
from debate_train.batches.packs import Pack
from debate_train.batches.row_types import Batch
from debate_train.checkpoints.policy_files import load_policy, save_policy, write_tensors
from debate_train.checkpoints.trainer_state import (
    Counts,
    StoredTrainerState,
    load_torch_optimizer,
    save_torch_optimizer,
    set_schedule,
)
from debate_train.interrupts import RecipeError
from debate_train.losses import Loss, LossInputs
from debate_train.models.loaded_model import (
    ONLY,
    LoadedModel,
    adapter_of,
    export_weights,
    freeze_others,
    tokens_of_adapters,
    with_names,
)
from debate_train.trainers import references

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from debate_train.trainers.trainer import TrainerSettings


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
            name: float(value) / (updates if name.startswith(SHARES) else tokens)
            for name, value in self.sums.items()
        }
        extremes = (self.lows | self.highs).items()
        return found | {n: float(v) for n, v in extremes if not v.isinf()}


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
class UpdateLoop:
    """How a trainer learns from a batch. All processes make the same calls together."""

    model: nn.Module
    loss: Loss
    reference: references.Reference | None
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
        olds: list[list[Tensor | None]] = [[None] * len(part) for part in parts]
        references = olds
        if self.epochs * len(parts) > 1 and self.loss.ratio_against != "sampler":
            olds = self._scored(parts)
        if self.reference is not None:
            with self.reference.acting():
                references = self._scored(parts)
        both = zip(olds, references, strict=True)
        return [list(map(KnownLogps, old, reference)) for old, reference in both]

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


@dataclass(slots=True)
class Skips:
    """Counts updates that were skipped because their gradient was not finite."""

    in_a_row: int = 0

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
        } | {
            f"optim/grad_norm/{name}": fmean(update.adapter_norms[name] for update in made)
            for name in (made[0].adapter_norms if made else ())
        }


KEY = "trainer.use_liger_kernel"


def use_liger_kernel(model: "PreTrainedModel") -> None:
    """Replace what Liger Kernel computes faster; the loss stays ours.

    transformers' class of the model is changed with it, for every model of the process.

    Args:
        model: of transformers, or peft around one; on any device, trained on CUDA.

    Raises:
        RecipeError: The package or a CUDA device is missing, or it does not know the model.
    """
    if not torch.cuda.is_available():
        raise RecipeError(f"{KEY}: found no CUDA device; expected one, or false")
    try:
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN as KNOWN
        from transformers.integrations.liger import apply_liger_kernel
    except ImportError as error:
        raise RecipeError(
            f"{KEY}: liger-kernel cannot be imported ({error}); install it with: "
            f"{install_command('debate-train[liger]')}"
        ) from None
    if model.config.model_type not in KNOWN:
        raise RecipeError(
            f"{KEY}: found a model of type {model.config.model_type}; expected one of "
            f"{', '.join(sorted(KNOWN))}, or false"
        )
    apply_liger_kernel(model, {"cross_entropy": False, "fused_linear_cross_entropy": False})


def gradient_checkpointing(model: "PreTrainedModel", *, is_sharded: bool = False) -> None:
    """Keep only what enters each layer; what it needs for its gradient is computed again.

    Args:
        model: of transformers, or peft around one.
        is_sharded: whether ZeRO-3 holds the parameters. The newer way of torch then compares a
            whole parameter with the shard that it saw first, and fails.
    """
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": is_sharded})
    if is_sharded:  # The older way gives no gradient where nothing that enters has one (LoRA).
        model.enable_input_require_grads()


_TABLES = ("embed", "wte", "wpe", "lm_head")
"""What stands in the names of embeddings and output heads, whose rows are tokens or places."""


class MuonAndAdamW(Optimizer):
    """Steps matrices by Muon, and embeddings, output heads and vectors by AdamW.

    Both have their groups and states here. It counts the steps of each parameter, as AdamW does.

    Args:
        parameters: by their names in the model.
        muon: settings of torch's Muon.
        adamw: settings of torch's AdamW.
    """

    def __init__(
        self, parameters: Mapping[str, Parameter], muon: dict[str, Any], adamw: dict[str, Any]
    ) -> None:
        matrices = [p for name, p in parameters.items() if _is_matrix(name, p)]
        others = [p for name, p in parameters.items() if not _is_matrix(name, p)]
        self._parts: list[Optimizer] = []
        if matrices:
            self._parts.append(optim.Muon(matrices, **muon))
        if others:
            self._parts.append(optim.AdamW(others, **adamw))
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        for part, group in zip(self._parts, self.param_groups, strict=True):
            part.param_groups, part.state = [group], self.state

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Let each make its step."""
        loss = None if closure is None else closure()
        stepped = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        counts = [float(self.state[p].get("step", 0)) + 1 for p in stepped]
        for part in self._parts:
            part.step()
        for parameter, count in zip(stepped, counts, strict=True):
            self.state[parameter]["step"] = torch.tensor(count)
        return loss


def _is_matrix(name: str, parameter: Parameter) -> bool:
    return parameter.ndim == 2 and not any(part in name for part in _TABLES)


class TorchTrainerSession:
    """An open `TorchTrainer`."""

    def __init__(
        self, config: "TrainerSettings", loaded: LoadedModel, loss: Loss, total_steps: int
    ) -> None:
        self._config, self._loaded, self._loss = config, loaded, loss
        self._model = loaded.model
        self._model.to(_device(config.named_device()))
        if config.use_liger_kernel:
            use_liger_kernel(self._model)
        if config.gradient_checkpointing:
            gradient_checkpointing(self._model)
        self._parameters = freeze_others(loaded)
        check_packing(self._model, config.packing)
        self._skips = Skips()
        self._is_whole = self._has_updated = True
        self._reference = references.open_reference(loss.reference_policy, self._model)
        self._write_reference(references.values_of(loss.reference_policy, loaded))
        self._optimizer = config.make_optimizer(self._parameters)
        self._schedule = LambdaLR(
            self._optimizer, lambda step: config.rate_factor(step, total_steps)
        )

    def step(self, batch: Batch) -> dict[str, float]:
        """Make the updates of a batch; one with a non-finite gradient is skipped and counted."""
        started = time.perf_counter()
        batch = with_names(batch, self._loaded)
        self._model.train()
        rate = float(self._optimizer.param_groups[0]["lr"])
        learning = UpdateLoop(
            self._model,
            self._loss,
            self._reference,
            self._config.epochs,
            backward=lambda share: share.backward(),  # type: ignore[no-untyped-call]
            update=self._update,
        )
        began = time.perf_counter()
        plan = self._config.plan(batch, self._loss)[0]
        packed = time.perf_counter()
        self._is_whole = self._has_updated = False
        try:
            stats, made = learning.learn(plan)
        except Exception:
            self._is_whole = not self._has_updated
            raise
        set_schedule(self._schedule, self._schedule.last_epoch + 1)
        self._is_whole = True
        return {
            **stats.metrics(batch.sampled_tokens, tokens_of_adapters(batch)),
            **self._skips.metrics(made),
            "optim/learning_rate": rate,
            "time/pack_s": packed - began,
            "time/train_s": time.perf_counter() - started,
        }

    def score(self, batch: Batch) -> list[float]:
        """Return the log-probability of each row's actions together."""
        self._model.eval()
        packs = self._config.packs(with_names(batch, self._loaded), self._loss)[0]
        found = row_logps(self._model, packs, self._loss)
        return [found.get(number, 0.0) for number in range(len(batch.rows))]

    def _update(self) -> Update:
        # Each adapter is a policy of its own: what one learns does not shorten another's step.
        own: dict[str | None, list[nn.Parameter]] = {}
        for name, parameter in self._parameters.items():
            own.setdefault(adapter_of(name), []).append(parameter)
        most = self._config.max_grad_norm
        norms = {who: float(clip_grad_norm_(group, most)) for who, group in own.items()}
        norm = next(iter(norms.values())) if len(norms) == 1 else math.hypot(*norms.values())
        is_finite = norm < float("inf")
        if is_finite:
            self._has_updated = True
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        named = {who: found for who, found in norms.items() if who not in (None, ONLY)}
        return Update(norm, not is_finite, named)

    @property
    def completed(self) -> int | None:
        """Steps that the weights stand after; None in the middle of one."""
        return self._schedule.last_epoch if self._is_whole else None

    def weights(self, version: int) -> Weights:
        """Return the policy's weights; they share memory with the model."""
        return export_weights(self._loaded, version)

    def save(self, directory: Path) -> None:
        """Write policy, optimizer, schedule and reference."""
        save_policy(directory, self._loaded)
        steps, skipped = self._schedule.last_epoch, self._skips.in_a_row
        save_torch_optimizer(
            directory,
            self._optimizer,
            self._parameters,
            lambda updates, numbers: Counts(
                schedule_steps=steps,
                optimizer_steps=updates,
                skipped_in_a_row=skipped,
                scalars=numbers,
            ),
        )
        kept = references.in_checkpoints(self._loss.reference_policy, self._reference)
        if kept is not None:
            with kept.acting():
                write_tensors(directory, references.REFERENCE, kept.parameters.items())

    def load(self, directory: Path) -> None:
        """Read what any trainer saved."""
        load_policy(directory, self._loaded)
        parameters = self._parameters
        shapes = {n: tuple(p.shape) for n, p in parameters.items()}
        stored = StoredTrainerState(directory, shapes, self._config.optimizer.state_layout())
        load_torch_optimizer(stored, self._optimizer, parameters)
        set_schedule(self._schedule, stored.counts.schedule_steps)
        self._skips.in_a_row = stored.counts.skipped_in_a_row
        if references.in_checkpoints(self._loss.reference_policy, self._reference) is not None:
            self._write_reference(references.stored_reference(directory))

    @torch.no_grad()
    def _write_reference(self, read: references.Read | None) -> None:
        """Let a kept reference hold these values."""
        if read is None or not isinstance(self._reference, references.KeptReference):
            return
        with self._reference.acting():
            for name, parameter in self._reference.parameters.items():
                parameter.copy_(read(name))

    def close(self) -> None:
        """Free optimizer state and reference."""
        if self._config.gradient_checkpointing:
            self._model.gradient_checkpointing_disable()
        self._optimizer.zero_grad(set_to_none=True)
        self._optimizer.state.clear()
        self._reference = None


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
