"""The session of the `deepspeed` trainer."""

import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch.optim.lr_scheduler import LambdaLR

from debate_rollout.engine import Weights
from debate_train.checkpoints import load_policy, save_policy
from debate_train.errors import RecipeError
from debate_train.losses import Loss
from debate_train.models import LoadedModel
from debate_train.policy import export_weights
from debate_train.references import KeptReference
from debate_train.rows import Batch
from debate_train.trainers.objective import accumulate, snapshot, trainable

if TYPE_CHECKING:
    from debate_train.trainers.deepspeed_trainer import DeepSpeedTrainer

_MOMENTS = ("exp_avg", "exp_avg_sq")
_STATE = "zero.safetensors"


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
    import deepspeed.comm.torch

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
        stats = accumulate(
            self._engine.module,
            self._config.packs(batch, self._loss)[0],
            self._loss,
            KeptReference(self._reference) if self._reference else None,
            lambda loss: self._engine.backward(loss, scale_wrt_gas=False),
        )
        self._engine.step()
        self._schedule.step()
        norm = self._engine.get_global_grad_norm()
        return stats.metrics(batch.sampled_tokens) | {
            "optim/grad_norm": float("nan") if norm is None else float(norm),
            "optim/learning_rate": rate,
            "time/train_s": time.perf_counter() - started,
        }

    def weights(self, version: int) -> Weights:
        """Return the policy's weights; they share memory with the model."""
        return export_weights(self._loaded, version)

    def save(self, directory: Path) -> None:
        """Write the policy, and parameters and moments gathered from all shards as safetensors.

        DeepSpeed's own checkpoints are pickles; these hold nothing that could run.
        """
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        save_policy(directory, self._loaded)
        kept: dict[str, torch.Tensor] = {}
        for name, parameter in trainable(self._engine.module).items():
            if self._config.zero_stage == 0:
                found = self._optimizer.state[parameter]
                parts = {"value": parameter.detach()} | {m: found[m] for m in _MOMENTS}
            else:
                parts = {"value": safe_get_full_fp32_param(parameter)}
                parts |= {m: safe_get_full_optimizer_state(parameter, m) for m in _MOMENTS}
            kept |= {f"{part}/{name}": tensor.contiguous() for part, tensor in parts.items()}
        kept["steps"] = torch.tensor(self._schedule.last_epoch)
        save_file(kept, directory / _STATE)
        if self._reference:
            save_file(self._reference, directory / "reference.safetensors")

    def load(self, directory: Path) -> None:
        """Read what `save` wrote."""
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        kept = load_file(directory / _STATE)
        self._make_moments()
        load_policy(directory, self._loaded)
        steps = int(kept["steps"])
        for name, parameter in trainable(self._engine.module).items():
            parts = {part: kept[f"{part}/{name}"] for part in ("value", *_MOMENTS)}
            if self._config.zero_stage == 0:
                parameter.data.copy_(parts["value"])
                own = {m: parts[m].to(parameter) for m in _MOMENTS}
                self._optimizer.state[parameter] = own | {"step": torch.tensor(float(steps))}
                continue
            safe_set_full_fp32_param(parameter, parts["value"])
            for moment in _MOMENTS:
                safe_set_full_optimizer_state(parameter, parts[moment], moment)
        self._set_steps(steps)
        if self._reference:
            for name, tensor in load_file(directory / "reference.safetensors").items():
                self._reference[name].copy_(tensor)

    def close(self) -> None:
        """Free what DeepSpeed holds."""
        self._engine.destroy()
        self._reference.clear()

    def _make_moments(self) -> None:
        """Make optimizer state exist by an empty step, so that it can be overwritten."""
        tokens = torch.zeros(1, 1, dtype=torch.long, device=self._engine.device)
        nothing = self._engine.module(input_ids=tokens).logits.sum() * 0
        self._engine.backward(nothing, scale_wrt_gas=False)
        self._engine.step()

    def _set_steps(self, steps: int) -> None:
        for state in self._optimizer.state.values():
            state["step"] = torch.tensor(float(steps))
        self._schedule.last_epoch = steps
        factors = [scale(steps) for scale in self._schedule.lr_lambdas]
        rates = zip(self._optimizer.param_groups, self._schedule.base_lrs, factors, strict=True)
        for group, base, factor in rates:
            group["lr"] = base * factor
