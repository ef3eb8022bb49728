"""The session of the `deepspeed` trainer."""

import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from debate_rollout.engine import Weights
from safetensors.torch import load_file, save_file
from torch.optim.lr_scheduler import LambdaLR

from debate_train.checkpoints import load_policy, save_policy
from debate_train.errors import RecipeError
from debate_train.losses import Loss
from debate_train.models import LoadedModel
from debate_train.policy import export_weights
from debate_train.rows import Batch
from debate_train.trainers.objective import accumulate, snapshot, trainable

if TYPE_CHECKING:
    from debate_train.trainers.deepspeed_trainer import DeepSpeedTrainer

_MOMENTS = ("exp_avg", "exp_avg_sq")


def _join_process_group() -> None:
    """Start a process group of this one process, without compiling anything on a CPU."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RecipeError(
            "trainer.type: deepspeed was started in several processes; expected one process"
        )
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in (alone | address).items():
        os.environ.setdefault(name, value)

    import deepspeed
    import deepspeed.comm.torch  # noqa: F401

    if torch.cuda.is_available():
        deepspeed.init_distributed(dist_backend="nccl")
        return
    # On a CPU, init_distributed would compile a C++ op of minutes that one process never uses.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.init_distributed(dist_backend="gloo")


class DeepSpeedSession:
    """An open `DeepSpeedTrainer`."""

    def __init__(
        self, config: "DeepSpeedTrainer", loaded: LoadedModel, loss: Loss, total_steps: int
    ) -> None:
        _join_process_group()
        import deepspeed

        self._config, self._loaded, self._loss = config, loaded, loss
        self._reference = snapshot(loaded.model) if loss.kl.weight > 0 else {}
        parameters: list[Any] = list(trainable(loaded.model).values())
        self._optimizer = config.adamw(parameters)
        self._engine: Any
        self._engine, _, _, _ = deepspeed.initialize(
            model=loaded.model,
            model_parameters=parameters,
            optimizer=self._optimizer,
            config=config.deepspeed_config(),
        )
        self._schedule = LambdaLR(
            self._optimizer, lambda step: config.rate_factor(step, total_steps)
        )

    def step(self, batch: Batch) -> dict[str, float]:
        """Make one optimizer step."""
        started = time.perf_counter()
        self._engine.train()
        rate = float(self._optimizer.param_groups[0]["lr"])
        metrics = accumulate(
            self._engine.module,
            batch,
            self._loss,
            self._reference,
            self._config.tokens_per_micro_batch,
            lambda loss: self._engine.backward(loss, scale_wrt_gas=False),
        )
        self._engine.step()
        self._schedule.step()
        norm = self._engine.get_global_grad_norm()
        return metrics | {
            "optim/grad_norm": float("nan") if norm is None else float(norm),
            "optim/learning_rate": rate,
            "time/train_s": time.perf_counter() - started,
        }

    def weights(self, version: int) -> Weights:
        """Return the policy's weights, gathered from all shards."""
        import deepspeed

        parameters = list(self._engine.module.parameters())
        with deepspeed.zero.GatheredParameters(parameters, enabled=self._config.zero_stage == 3):
            shared = export_weights(self._loaded, version)
            if self._config.zero_stage < 3:
                return shared
            tensors = {name: tensor.clone() for name, tensor in shared.tensors.items()}
        return Weights(version, tensors, shared.kind, shared.adapter)
