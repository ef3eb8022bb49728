"""The session of the `torch` trainer, with Muon, Liger kernels and recomputed layers."""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn, optim
from torch.nn import Parameter
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from debate_rollout.engine import Weights
from debate_train.batches.packing import check_packing
from debate_train.batches.row_types import Batch
from debate_train.batches.throughput import timed
from debate_train.checkpointing.policy_files import load_policy, save_policy
from debate_train.checkpointing.tensor_files import write_tensors
from debate_train.checkpointing.trainer_state import (
    Counts,
    StoredTrainerState,
    load_torch_optimizer,
    save_torch_optimizer,
    set_schedule,
)
from debate_train.interrupts import RecipeError
from debate_train.losses import Loss
from debate_train.losses.references import (
    REFERENCE,
    KeptReference,
    Read,
    Reference,
    in_checkpoints,
    open_reference,
    stored_reference,
    values_of,
)
from debate_train.models.adapters import (
    ONLY,
    adapter_of,
    freeze_others,
    tokens_of_adapters,
    with_names,
)
from debate_train.models.loaded_model import LoadedModel, export_weights
from debate_train.trainers.objective import Learning, Skips, Update, row_logps

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from debate_train.trainers.trainer import TrainerSettings


KEY = "trainer.use_liger_kernel"


def use_liger_kernel(model: "PreTrainedModel") -> None:
    """Replace what Liger Kernel computes faster; the loss stays ours.

    transformers' class of the model is changed with it, for every model of the process.

    Args:
        model: of transformers, or peft around one; on any device, trained on CUDA.

    Raises:
        RecipeError: The package or a CUDA device is missing, or it does not know the model.
    """
    import torch

    if not torch.cuda.is_available():
        raise RecipeError(f"{KEY}: found no CUDA device; expected one, or false")
    try:
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN as KNOWN
        from transformers.integrations.liger import apply_liger_kernel
    except ImportError as error:
        raise RecipeError(
            f"{KEY}: liger-kernel cannot be imported ({error}); expected `pip install "
            "'debate-train[liger]'`, or false"
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


def keep_layers(model: "PreTrainedModel") -> None:
    """Undo `gradient_checkpointing`."""
    model.gradient_checkpointing_disable()


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
        self,
        parameters: Mapping[str, Parameter],
        muon: Mapping[str, Any],
        adamw: Mapping[str, Any],
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
        self._reference: Reference | None = None
        if loss.reference_policy is not None:
            self._reference = open_reference(loss.reference_policy, self._model)
        self._write_reference(values_of(loss.reference_policy, loaded))
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
        learning = Learning(
            self._model,
            self._loss,
            self._reference,
            self._config.epochs,
            backward=lambda share: share.backward(),  # type: ignore[no-untyped-call]
            update=self._update,
        )
        seconds: dict[str, float] = {}
        with timed(seconds, "pack"):
            plan = self._config.plan(batch, self._loss)[0]
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
            **seconds,
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
        kept = in_checkpoints(self._loss.reference_policy, self._reference)
        if kept is not None:
            with kept.acting():
                write_tensors(directory, REFERENCE, kept.parameters.items())

    def load(self, directory: Path) -> None:
        """Read what any trainer saved."""
        load_policy(directory, self._loaded)
        parameters = self._parameters
        shapes = {n: tuple(p.shape) for n, p in parameters.items()}
        stored = StoredTrainerState(directory, shapes, self._config.optimizer.kept())
        load_torch_optimizer(stored, self._optimizer, parameters)
        set_schedule(self._schedule, stored.counts.schedule_steps)
        self._skips.in_a_row = stored.counts.skipped_in_a_row
        if in_checkpoints(self._loss.reference_policy, self._reference) is not None:
            self._write_reference(stored_reference(directory))

    @torch.no_grad()
    def _write_reference(self, read: Read | None) -> None:
        """Let a kept reference hold these values."""
        if read is None or not isinstance(self._reference, KeptReference):
            return
        with self._reference.acting():
            for name, parameter in self._reference.parameters.items():
                parameter.copy_(read(name))

    def close(self) -> None:
        """Free optimizer state and reference."""
        if self._config.gradient_checkpointing:
            keep_layers(self._model)
        self._optimizer.zero_grad(set_to_none=True)
        self._optimizer.state.clear()
        self._reference = None


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
