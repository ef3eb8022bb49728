"""How a batch becomes updates, and the session of the `torch` trainer."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR

from debate_protocol.plugins import install_command
from debate_rollout.engine import Weights
from debate_train.batches.forward import attention_of, check_packing, token_logps
from debate_train.batches.packs import Pack, Trunk
from debate_train.batches.row_types import Batch
from debate_train.batches.trunks import TrunkPass
from debate_train.checkpoints.policy_files import load_policy, save_policy, write_tensors
from debate_train.checkpoints.trainer_state import (
    Counts,
    StoredTrainerState,
    load_torch_optimizer,
    save_torch_optimizer,
    set_schedule,
)
from debate_train.errors import RecipeError
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


_SHARE_PREFIXES = ("loss", "optim/loss_", "optim/preference_")
"""Prefixes of sums whose terms already contain the update's denominators."""
_LIGER_KEY = "trainer.use_liger_kernel"


@dataclass(slots=True)
class StepStats:
    """Sums and extremes over the sampled tokens of a batch, each measured before its update.

    Every pack, even an empty pack, adds the same names: ranks can reduce them by name.
    """

    sums: dict[str, Tensor] = field(default_factory=dict)
    lows: dict[str, Tensor] = field(default_factory=dict)
    highs: dict[str, Tensor] = field(default_factory=dict)
    epochs: int = 1
    """Measurements of each token."""
    updates: int = 1
    adapters: "dict[str, StepStats]" = field(default_factory=dict)
    """Measurements of each named adapter; the other fields are of packs without one."""

    def of(self, adapter: str | None) -> "StepStats":
        """Look up the stats of an adapter's packs."""
        return self if adapter is None else self.adapters.setdefault(adapter, StepStats())

    def add(self, name: str, values: Tensor) -> None:
        """Add the sum of a tensor, in float64: a step sums up many thousands of tokens."""
        total = values.detach().double().sum()
        if name in self.sums:
            total = self.sums[name] + total
        self.sums[name] = total

    def watch(self, low: str, high: str, values: Tensor) -> None:
        """Widen the range between two names to a tensor's values."""
        wide_values = values.detach().double()
        # Infinities make the extremes of an empty pack neutral.
        infinity = wide_values.new_full((1,), float("inf"))
        minimum = torch.cat((wide_values, infinity)).min()
        maximum = torch.cat((wide_values, -infinity)).max()
        self.lows[low] = torch.minimum(self.lows.get(low, minimum), minimum)
        self.highs[high] = torch.maximum(self.highs.get(high, maximum), maximum)

    def on_cpu(self) -> "StepStats":
        """Move the values to the CPU as one tensor: the device is waited for once."""
        if self.adapters:
            adapters = {name: stats.on_cpu() for name, stats in self.adapters.items()}
            unnamed = replace(self, adapters={}).on_cpu()
            return replace(unnamed, adapters=adapters)
        values = [*self.sums.values(), *self.lows.values(), *self.highs.values()]
        if not values:
            return self
        moved = iter(torch.stack(values).cpu())
        return replace(
            self,
            sums={name: next(moved) for name in self.sums},
            lows={name: next(moved) for name in self.lows},
            highs={name: next(moved) for name in self.highs},
        )

    @classmethod
    def of_all(cls, rank_stats: "Sequence[StepStats]") -> "StepStats":
        """Merge the stats of all ranks; their values are on the CPU."""
        merged = cls(epochs=rank_stats[0].epochs, updates=rank_stats[0].updates)
        adapters: dict[str, list[StepStats]] = {}
        for stats in rank_stats:
            for name, value in stats.sums.items():
                merged.add(name, value)
            for name, value in stats.lows.items():
                merged.lows[name] = torch.minimum(merged.lows.get(name, value), value)
            for name, value in stats.highs.items():
                merged.highs[name] = torch.maximum(merged.highs.get(name, value), value)
            for name, adapter_stats in stats.adapters.items():
                adapters.setdefault(name, []).append(adapter_stats)
        for name, adapter_stats_of_ranks in adapters.items():
            merged.adapters[name] = cls.of_all(adapter_stats_of_ranks)
        return merged

    def metrics(
        self, sampled_tokens: int, of_adapters: Mapping[str, int] = MappingProxyType({})
    ) -> dict[str, float]:
        """Compute means over the batch's sampled tokens and over all updates.

        With one update they describe the policy before it. Named adapters also have means over
        their own tokens, such as `optim/entropy/critic`.

        Args:
            sampled_tokens: number of sampled tokens of the batch.
            of_adapters: the same of each named adapter.
        """
        cpu_stats = self.on_cpu()
        adapters = cpu_stats.adapters
        merged = StepStats.of_all([cpu_stats, *adapters.values()])
        metrics = merged._means(sampled_tokens)
        for adapter, stats in adapters.items():
            stats.epochs = cpu_stats.epochs
            stats.updates = cpu_stats.updates
            for name, mean in stats._means(of_adapters.get(adapter, 0)).items():
                metrics[f"{name}/{adapter}"] = mean
        return metrics

    def _means(self, sampled_tokens: int) -> dict[str, float]:
        num_tokens = max(sampled_tokens * self.epochs, 1)
        num_updates = max(self.updates, 1)
        means = {}
        for name, total in self.sums.items():
            # A share of a loss is divided by its tokens already, so the mean is over updates.
            divisor = num_updates if name.startswith(_SHARE_PREFIXES) else num_tokens
            means[name] = float(total) / divisor
        for name, extreme in (self.lows | self.highs).items():
            if not extreme.isinf():
                means[name] = float(extreme)
        return means


@dataclass(frozen=True, slots=True)
class KnownLogps:
    """Log-probabilities of a pack's actions, computed before the batch's first update."""

    old_A: Tensor | None = None
    """Under the trainer's own policy; None where no update lies in between."""
    reference_A: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """Outcome of an optimizer step."""

    grad_norm: float
    """Norm before clipping; not finite where the step was skipped."""
    is_skipped: bool
    adapter_norms: Mapping[str, float] = field(default_factory=dict)
    """The same of each named adapter."""


@dataclass(slots=True)
class Skips:
    """Counts skipped updates, after gradients that were not finite."""

    in_a_row: int = 0

    def metrics(self, updates: Sequence[Update]) -> dict[str, float]:
        """Count the updates of a batch, and compute their number and mean norms as metrics."""
        for update in updates:
            self.in_a_row = self.in_a_row + 1 if update.is_skipped else 0
        norms = [update.grad_norm for update in updates]
        metrics = {
            "optim/grad_norm": sum(norms) / max(1, len(norms)),
            "optim/updates": float(len(updates)),
            "optim/skipped": float(sum(update.is_skipped for update in updates)),
            "optim/skipped_in_a_row": float(self.in_a_row),
        }
        if updates:
            for name in updates[0].adapter_norms:
                adapter_norms = [update.adapter_norms[name] for update in updates]
                metrics[f"optim/grad_norm/{name}"] = fmean(adapter_norms)
        return metrics


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Select the trained parameters, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def with_trunks(
    model: nn.Module, packs: Sequence[Pack], backward: Callable[[Tensor], object] | None = None
) -> Iterator[tuple[Pack, TrunkPass | None]]:
    """Yield each pack on the model's device, with the pass over its trunk.

    A trunk goes forward before the first of its packs and, with `backward`, back after the last.
    """
    device = next(model.parameters()).device
    trunk: Trunk | None = None
    trunk_pass: TrunkPass | None = None
    # The `None` at the end takes the last trunk back.
    for pack in chain(packs, [None]):
        next_trunk = None if pack is None else pack.trunk
        if trunk is not None and next_trunk is not trunk:
            if trunk_pass is not None and backward is not None:
                with attention_of(model, trunk):
                    trunk_pass.backward(backward)
            trunk_pass = None
        if next_trunk is not None and next_trunk is not trunk:
            with attention_of(model, next_trunk):
                trunk_pass = TrunkPass(model, next_trunk.to(device))
        trunk = next_trunk
        if pack is not None:
            yield pack.to(device), trunk_pass


def score(model: nn.Module, packs: Sequence[Pack], loss: Loss) -> Iterator[tuple[Pack, Tensor]]:
    """Yield each pack with the log-probabilities of its actions as a loss takes them, (A,)."""
    for pack, trunk in with_trunks(model, packs):
        with attention_of(model, pack):
            logps_A, _ = token_logps(model, _at_loss_temperature(pack, loss), trunk)
        yield pack, logps_A.detach()


def row_logps(model: nn.Module, packs: Sequence[Pack], loss: Loss) -> dict[int, float]:
    """Sum the log-probabilities of each row's actions, by the row's number."""
    sums: dict[int, float] = {}
    with torch.no_grad():
        for pack, logps_A in score(model, packs, loss):
            logps = logps_A.double().tolist()
            for row, logp in zip(pack.rows_A.tolist(), logps, strict=True):
                sums[row] = sums.get(row, 0.0) + logp
    return sums


def _at_loss_temperature(pack: Pack, loss: Loss) -> Pack:
    if not loss.supervised:
        return pack
    # Demonstrations and preferences are texts that nobody sampled at a temperature.
    return replace(pack, temperatures_A=torch.ones_like(pack.temperatures_A))


def pack_loss(
    model: nn.Module,
    pack: Pack,
    trunk: TrunkPass | None,
    loss: Loss,
    known: KnownLogps,
    stats: StepStats,
) -> Tensor:
    """Compute a pack's share of the update's loss, a scalar with a gradient.

    The shares of all packs (and ranks) add up to the loss: the denominators in `weights_A` count
    the whole update. A non-finite share makes the whole gradient non-finite, wherever it came
    from: every rank then skips the update.
    """
    pack = _at_loss_temperature(pack, loss)
    logps_A, entropies_A = token_logps(model, pack, trunk)
    old_logps_A = pack.sampler_logps_A
    if known.old_A is not None:
        old_logps_A = known.old_A
    elif loss.ratio_against == "trainer":
        # No update lies in between: the old policy is the present one, and the ratio 1.
        old_logps_A = logps_A.detach()
    inputs = LossInputs(
        logps_A=logps_A,
        old_logps_A=old_logps_A,
        sampler_logps_A=pack.sampler_logps_A,
        advantages_A=pack.advantages_A,
        weights_A=pack.weights_A,
        rows_A=pack.rows_A,
        pairs_A=pack.pairs_A,
        reference_logps_A=known.reference_A,
    )
    total = loss(inputs)
    stats.add("loss", total)
    stats.add("optim/entropy", entropies_A)

    measured = replace(inputs, logps_A=logps_A.detach())
    if not loss.supervised:
        # The gap at the batch's first update; later updates move the policy off the sampler.
        first_logps_A = measured.logps_A if known.old_A is None else known.old_A
        gap_A = measured.sampler_logps_A - first_logps_A
        stats.add("optim/kl_sample_train_v1", gap_A)
        stats.add("optim/kl_sample_train_v2", 0.5 * gap_A**2)
        ratio_A = (measured.logps_A - measured.old_logps_A).exp()
        stats.watch("optim/ratio_min", "optim/ratio_max", ratio_A)
    for name, values in loss.diagnostics(measured).items():
        stats.add(name, values)
    return total * torch.where(total.detach().isfinite(), 1.0, float("nan"))


def accumulate(
    model: nn.Module,
    packs: Sequence[Pack],
    loss: Loss,
    known: Sequence[KnownLogps],
    backward: Callable[[Tensor], object],
    stats: StepStats,
) -> None:
    """Run forward and backward over this process's packs of an update."""
    passes = with_trunks(model, packs, backward)
    for (pack, trunk), known_logps in zip(passes, known, strict=True):
        # Around the backward pass, too: it may compute layers again.
        with attention_of(model, pack):
            adapter_stats = stats.of(pack.adapter)
            backward(pack_loss(model, pack, trunk, loss, known_logps, adapter_stats))


@dataclass(frozen=True, slots=True)
class UpdateLoop:
    """Updates a policy on a batch. All processes make the same calls together."""

    model: nn.Module
    loss: Loss
    reference: references.Reference | None
    epochs: int
    backward: Callable[[Tensor], object]
    update: Callable[[], Update]
    """Clip, make the optimizer step unless the gradient is not finite, and drop the gradient."""

    def learn(self, minibatches: Sequence[Sequence[Pack]]) -> tuple[StepStats, list[Update]]:
        """Make `epochs` passes over the minibatches of a batch, an update for each.

        Args:
            minibatches: this process's packs of each; as many for every process.

        Returns:
            Measurements of this process's packs, each made before their update; and the updates.
        """
        known = self._score_before_updates(minibatches)
        stats = StepStats()
        updates: list[Update] = []
        for _ in range(self.epochs):
            for packs, known_logps in zip(minibatches, known, strict=True):
                if packs:
                    accumulate(self.model, packs, self.loss, known_logps, self.backward, stats)
                    updates.append(self.update())
        stats.epochs = self.epochs
        stats.updates = len(updates)
        return stats, updates

    def _score_before_updates(
        self, minibatches: Sequence[Sequence[Pack]]
    ) -> list[list[KnownLogps]]:
        # With a single update, the forward pass that it makes anyway has the old policy's values.
        num_updates = self.epochs * len(minibatches)
        needs_old = num_updates > 1 and self.loss.ratio_against != "sampler"
        unknown: list[list[Tensor | None]] = [[None] * len(packs) for packs in minibatches]
        old_logps = unknown
        reference_logps = unknown
        if needs_old:
            old_logps = self._score_all(minibatches)
        if self.reference is not None:
            with self.reference.acting():
                reference_logps = self._score_all(minibatches)
        known = []
        for old_logps_of_packs, reference_logps_of_packs in zip(
            old_logps, reference_logps, strict=True
        ):
            known_of_packs = []
            for old_A, reference_A in zip(
                old_logps_of_packs, reference_logps_of_packs, strict=True
            ):
                known_of_packs.append(KnownLogps(old_A=old_A, reference_A=reference_A))
            known.append(known_of_packs)
        return known

    @torch.no_grad()
    def _score_all(self, minibatches: Sequence[Sequence[Pack]]) -> list[list[Tensor | None]]:
        logps: list[list[Tensor | None]] = []
        for packs in minibatches:
            logps.append([logps_A for _, logps_A in score(self.model, packs, self.loss)])
        return logps


def use_liger_kernel(model: "PreTrainedModel") -> None:
    """Replace layers that Liger Kernel computes faster; the loss stays ours.

    transformers' class of the model is changed with it, for every model of the process.

    Args:
        model: of transformers, or peft around one; on any device, trained on CUDA.

    Raises:
        RecipeError: The package or a CUDA device is missing, or it does not know the model.
    """
    if not torch.cuda.is_available():
        raise RecipeError(f"{_LIGER_KEY}: found no CUDA device; expected one, or false")
    try:
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN
        from transformers.integrations.liger import apply_liger_kernel
    except ImportError as error:
        raise RecipeError(
            f"{_LIGER_KEY}: liger-kernel cannot be imported ({error}); install it with: "
            f"{install_command('debate-train[liger]')}"
        ) from None
    if model.config.model_type not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise RecipeError(
            f"{_LIGER_KEY}: found a model of type {model.config.model_type}; expected one of "
            f"{', '.join(sorted(MODEL_TYPE_TO_APPLY_LIGER_FN))}, or false"
        )
    # Not its cross entropies: losses here take log-probabilities of sampled tokens.
    apply_liger_kernel(model, {"cross_entropy": False, "fused_linear_cross_entropy": False})


def gradient_checkpointing(model: "PreTrainedModel", *, is_sharded: bool = False) -> None:
    """Keep only the inputs of each layer; the backward pass computes the rest again.

    Args:
        model: of transformers, or peft around one.
        is_sharded: whether ZeRO-3 holds the parameters. The newer way of torch then compares a
            whole parameter with the shard that it saw first, and fails.
    """
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": is_sharded})
    if is_sharded:  # The older way gives no gradient where nothing that enters has one (LoRA).
        model.enable_input_require_grads()


class TorchTrainerSession:
    """An open `TorchTrainer`."""

    def __init__(
        self, config: "TrainerSettings", loaded: LoadedModel, loss: Loss, total_steps: int
    ) -> None:
        self._config = config
        self._loaded = loaded
        self._loss = loss
        self._model = loaded.model
        device = config.named_device()
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model.to(torch.device(device))
        if config.use_liger_kernel:
            use_liger_kernel(self._model)
        if config.gradient_checkpointing:
            gradient_checkpointing(self._model)
        self._parameters = freeze_others(loaded)
        # After Liger and gradient checkpointing: both may change what a model takes.
        check_packing(self._model, config.packing)
        self._skips = Skips()
        # Whether the weights are those after a whole number of steps; see `completed`.
        self._is_whole = True
        self._has_updated = True
        self._reference = references.open_reference(loss.reference_policy, self._model)
        self._write_reference(references.values_of(loss.reference_policy, loaded))
        self._optimizer = config.make_optimizer(self._parameters)
        self._schedule = LambdaLR(
            self._optimizer, lambda step: config.rate_factor(step, total_steps)
        )

    def step(self, batch: Batch) -> dict[str, float]:
        """Make the updates of a batch; skip and count updates with a non-finite gradient."""
        started = time.perf_counter()
        batch = with_names(batch, self._loaded)
        self._model.train()
        learning_rates = self._learning_rates()
        update_loop = UpdateLoop(
            model=self._model,
            loss=self._loss,
            reference=self._reference,
            epochs=self._config.epochs,
            backward=lambda share: share.backward(),  # type: ignore[no-untyped-call]
            update=self._update,
        )
        packing_started = time.perf_counter()
        plan = self._config.plan(batch, self._loss)[0]
        packing_ended = time.perf_counter()
        self._is_whole = False
        self._has_updated = False
        try:
            stats, updates = update_loop.learn(plan)
        except Exception:
            # A step that failed before its first update left the weights as they were.
            self._is_whole = not self._has_updated
            raise
        set_schedule(self._schedule, self._schedule.last_epoch + 1)
        self._is_whole = True
        return {
            **stats.metrics(batch.sampled_tokens, tokens_of_adapters(batch)),
            **self._skips.metrics(updates),
            **learning_rates,
            "time/pack_s": packing_ended - packing_started,
            "time/train_s": time.perf_counter() - started,
        }

    def _learning_rates(self) -> dict[str, float]:
        """Collect the present rates as metrics: the common one, and those of named adapters."""
        adapters = {parameter: adapter_of(name) for name, parameter in self._parameters.items()}
        rates: dict[str, float] = {}
        for group in self._optimizer.param_groups:
            # Parameters of a group have one rate: the first one's adapter says whose it is.
            adapter = adapters[group["params"][0]]
            metric = "optim/learning_rate"
            if adapter in self._config.named_rates():
                metric = f"optim/learning_rate/{adapter}"
            rates.setdefault(metric, float(group["lr"]))
        # Where every adapter has a rate of its own, the first is reported as the common one.
        first_group = self._optimizer.param_groups[0]
        rates.setdefault("optim/learning_rate", float(first_group["lr"]))
        return rates

    def score(self, batch: Batch) -> list[float]:
        """Sum the log-probabilities of each row's actions."""
        self._model.eval()
        packs = self._config.packs(with_names(batch, self._loaded), self._loss)[0]
        logps = row_logps(self._model, packs, self._loss)
        # Rows without actions are in no pack.
        return [logps.get(number, 0.0) for number in range(len(batch.rows))]

    def _update(self) -> Update:
        # Each adapter is a policy of its own: one's large gradient must not shorten another's step.
        parameters: dict[str | None, list[nn.Parameter]] = {}
        for name, parameter in self._parameters.items():
            parameters.setdefault(adapter_of(name), []).append(parameter)
        norms = {}
        for adapter, group in parameters.items():
            norms[adapter] = float(clip_grad_norm_(group, self._config.max_grad_norm))
        norm = next(iter(norms.values())) if len(norms) == 1 else math.hypot(*norms.values())
        # Neither NaN nor infinity is below infinity; hypot of both is infinity.
        is_finite = norm < float("inf")
        if is_finite:
            self._has_updated = True
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        adapter_norms = {}
        for adapter, adapter_norm in norms.items():
            if adapter not in (None, ONLY):
                adapter_norms[adapter] = adapter_norm
        return Update(grad_norm=norm, is_skipped=not is_finite, adapter_norms=adapter_norms)

    @property
    def completed(self) -> int | None:
        """Number of steps in the weights; `None` in the middle of a step."""
        return self._schedule.last_epoch if self._is_whole else None

    def weights(self, version: int) -> Weights:
        """Export the policy's weights; they share memory with the model."""
        return export_weights(self._loaded, version)

    def save(self, directory: Path) -> None:
        """Write policy, optimizer, schedule and reference."""
        save_policy(directory, self._loaded)
        schedule_steps = self._schedule.last_epoch
        skipped_in_a_row = self._skips.in_a_row
        save_torch_optimizer(
            directory,
            self._optimizer,
            self._parameters,
            lambda optimizer_steps, scalars: Counts(
                schedule_steps=schedule_steps,
                optimizer_steps=optimizer_steps,
                skipped_in_a_row=skipped_in_a_row,
                scalars=scalars,
            ),
        )
        reference = references.in_checkpoints(self._loss.reference_policy, self._reference)
        if reference is not None:
            with reference.acting():
                tensors = reference.parameters.items()
                write_tensors(directory, references.REFERENCE, tensors)

    def load(self, directory: Path) -> None:
        """Restore the files of any trainer."""
        load_policy(directory, self._loaded)
        shapes = {name: tuple(p.shape) for name, p in self._parameters.items()}
        stored = StoredTrainerState(directory, shapes, self._config.optimizer.state_layout())
        load_torch_optimizer(stored, self._optimizer, self._parameters)
        set_schedule(self._schedule, stored.counts.schedule_steps)
        self._skips.in_a_row = stored.counts.skipped_in_a_row
        if references.in_checkpoints(self._loss.reference_policy, self._reference) is not None:
            self._write_reference(references.stored_reference(directory))

    @torch.no_grad()
    def _write_reference(self, read: references.Read | None) -> None:
        if read is None or not isinstance(self._reference, references.KeptReference):
            return
        # While the reference acts, the model's parameters are its values.
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
