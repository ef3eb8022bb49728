"""The session of the `torch` trainer."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.optim.lr_scheduler import LambdaLR

from debate_rollout.engine import Weights
from debate_train.losses import Loss
from debate_train.models import LoadedModel
from debate_train.packing_check import check_packing
from debate_train.policy import export_weights
from debate_train.policy_files import load_policy, save_policy
from debate_train.references import KeptReference
from debate_train.rows import Batch
from debate_train.tensor_files import StoredTensors, write_tensors
from debate_train.trainer_state import (
    Counts,
    StoredTrainerState,
    load_torch_optimizer,
    save_torch_optimizer,
    set_schedule,
)
from debate_train.trainers.objective import accumulate, snapshot, trainable

if TYPE_CHECKING:
    from debate_train.trainers.torch_trainer import TorchTrainer


class TorchTrainerSession:
    """An open `TorchTrainer`."""

    def __init__(
        self, config: "TorchTrainer", loaded: LoadedModel, loss: Loss, total_steps: int
    ) -> None:
        self._config, self._loaded, self._loss = config, loaded, loss
        self._model = loaded.model
        self._model.to(_device(config.device))
        check_packing(self._model, config.packing)
        self._reference = snapshot(self._model) if loss.reference_policy is not None else {}
        self._optimizer = config.adamw(list(trainable(self._model).values()))
        self._schedule = LambdaLR(
            self._optimizer, lambda step: config.rate_factor(step, total_steps)
        )

    def step(self, batch: Batch) -> dict[str, float]:
        """Make one optimizer step; a step with a non-finite gradient is skipped and counted."""
        started = time.perf_counter()
        self._model.train()
        stats = accumulate(
            self._model,
            self._config.packs(batch, self._loss)[0],
            self._loss,
            KeptReference(self._reference) if self._reference else None,
            lambda loss: loss.backward(),  # type: ignore[no-untyped-call]
        )
        parameters = list(trainable(self._model).values())
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self._config.max_grad_norm))
        rate = self._optimizer.param_groups[0]["lr"]
        finite = norm < float("inf")
        if finite:
            self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad(set_to_none=True)
        return stats.metrics(batch.sampled_tokens) | {
            "optim/grad_norm": norm,
            "optim/learning_rate": float(rate),
            "optim/skipped": float(not finite),
            "time/train_s": time.perf_counter() - started,
        }

    def weights(self, version: int) -> Weights:
        """Return the policy's weights; they share memory with the model."""
        return export_weights(self._loaded, version)

    def save(self, directory: Path) -> None:
        """Write policy, optimizer, schedule and reference."""
        save_policy(directory, self._loaded)
        steps = self._schedule.last_epoch
        save_torch_optimizer(
            directory,
            self._optimizer,
            trainable(self._model),
            lambda updates: Counts(schedule_steps=steps, optimizer_steps=updates),
        )
        write_tensors(directory, "reference", self._reference.items())

    def load(self, directory: Path) -> None:
        """Read what any trainer saved."""
        load_policy(directory, self._loaded)
        parameters = trainable(self._model)
        stored = StoredTrainerState(directory, {n: tuple(p.shape) for n, p in parameters.items()})
        load_torch_optimizer(stored, self._optimizer, parameters)
        set_schedule(self._schedule, stored.counts.schedule_steps)
        reference = StoredTensors.of(directory, "reference")
        for name, tensor in self._reference.items():
            tensor.copy_(reference.read(name))

    def close(self) -> None:
        """Free optimizer state and reference."""
        self._optimizer.zero_grad(set_to_none=True)
        self._optimizer.state.clear()
        self._reference.clear()


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
