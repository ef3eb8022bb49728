"""Train in the processes of a launch, and print how near that is to one torch process, as JSON.

Run by `test_deepspeed.py`, once for many cases: rank 0 trains, the other ranks follow. The
arguments are a folder with a model and the cases' names.
"""

import gc
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arithmetic import Trained, distance, in_float64, rounding
from debate_rollout.engine import Weights
from debate_train.batches.row_types import Batch
from debate_train.losses import Grpo, ImportanceSampling, Kl, Loss, PpoClip
from debate_train.models import PretrainedModel
from debate_train.models.loaded_model import LoadedModel, Lora, with_adapter
from debate_train.trainers import DeepSpeedTrainer, TorchTrainer
from debate_train.trainers.deepspeed_worker import DeepSpeedSession
from debate_train.trainers.processes import (
    Init,
    broadcast,
    end_at_once,
    own_place,
    serve,
    stop_workers,
)
from train.made_rows import row_of

STEPS, CUT, SEED = 5, 2, 0
SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "warmup_steps": 2,
    "schedule": "linear",
    "optimizer": {"weight_decay": 0.1},
    "tokens_per_micro_batch": 40,
}
SEVERAL: dict[str, Any] = {"epochs": 2, "minibatch_size": 4}
LOSSES: dict[str, Loss] = {
    "ppo": PpoClip(kl=Kl(weight=0.1)),
    "plain": ImportanceSampling(),
    "grpo": Grpo(kl=Kl(weight=0.1, reference="base")),
}
OPTIMIZERS: dict[str, tuple[int, float, dict[str, Any]]] = {
    "momentum": (2, 0.02, {"type": "torch", "name": "SGD", "args": {"momentum": 0.9}}),
    "no moments": (3, 0.02, {"type": "torch", "name": "SGD"}),
    "NAdam": (3, 1e-3, {"type": "torch", "name": "NAdam"}),
    "Adagrad": (1, 1e-3, {"type": "torch", "name": "Adagrad"}),
    "Adafactor": (0, 1e-3, {"type": "torch", "name": "Adafactor"}),
    "Muon": (0, 1e-3, {"type": "muon"}),
}
"""Stage, learning rate and what keeps other things than AdamW: nothing, a product, rows, …"""
Config = TorchTrainer | DeepSpeedTrainer
LORA_CASES = [f"stage {stage}" for stage in range(4)]
OF_LORA = ("resumed", "poisoned", "recomputed", "recomputed, resumed")
LORA_CASES += [f"{what}, stage 3" for what in OF_LORA]
NAMED_CASES = ["stage 0", "stage 2", "resumed, stage 3"]


def batch(seed: int) -> Batch:
    """Rows of very unequal length, some of which begin alike: packs of unequal work."""
    rng = np.random.default_rng(seed)
    rows = []
    for debate, length in enumerate((39, 38, 21, 9, 8, 12, 5)[: 7 - seed % 3]):
        sampled = np.arange(length) >= 3
        tokens = rng.integers(6, 120, length)
        tokens[:7] = np.arange(6, 13)[: len(tokens)]
        advantages = rng.normal(size=length)
        rows.append(
            row_of(tokens, sampled, advantages=advantages, sampler_logps=-4.8, debate=debate)
        )
    return Batch(tuple(rows), ("generator",), int(sum(row.mask.sum() for row in rows)), len(rows))


def poisoned(good: Batch) -> Batch:
    good.rows[0].advantages[5 - 3] = np.nan
    return good


def loaded(model: PretrainedModel) -> LoadedModel:
    """Of adapters with names the second alone is trained."""
    return replace(with_adapter(model.load(SEED), SEED), training=names_of(model)[1:])


def batch_of(model: PretrainedModel, seed: int) -> Batch:
    found, names = batch(seed), names_of(model)
    rows = tuple(replace(row, adapter=names[-1] if names else None) for row in found.rows)
    return replace(found, rows=rows)


def names_of(model: PretrainedModel) -> tuple[str, ...]:
    return model.lora.adapters if model.lora else ()


class Run:
    """Five steps of one trainer; `other` takes over after two, through a checkpoint."""

    def __init__(self, model: PretrainedModel, loss: str) -> None:
        self._model, self._loss = model, LOSSES[loss]

    def bytes_of(self, trainer: Any) -> dict[str, int]:
        """What rank 0 holds of weights, of masters and moments, and of gradients in buckets."""
        if not isinstance(trainer, DeepSpeedSession):
            return {}
        worker = trainer._worker
        stage = worker._config.zero_stage
        parameters = list(worker._model.parameters())
        weights = [p.ds_tensor for p in parameters] if stage == 3 else parameters
        states = worker._optimizer.state.values()
        kept = [t for state in states for t in state.values() if t.numel() > 1]
        names = {1: "single_partition_of_fp32_groups", 3: "fp32_partitioned_groups_flat"}
        names[2] = names[1]
        kept += getattr(worker._engine.optimizer, names[stage]) if stage else []
        zero, buckets = worker._engine.optimizer, []
        if 0 < stage < 3:  # Allocated for the passes of a pack alone.
            zero.setup_buckets()
        for one in zero.ipg_buckets.values() if stage else ():
            buckets += [one.buffer] if stage == 3 else one.buffer
        return {
            "buckets": sum(t.numel() * t.element_size() for t in buckets),
            "weights": sum(t.numel() * t.element_size() for t in weights),
            "optimizer": sum(t.numel() * t.element_size() for t in kept),
        }

    def train(self, config: Config, other: Config | None = None, poison: int = -1) -> Trained:
        trainer = config.open(loaded(self._model), self._loss, STEPS)
        found = []
        for step in range(STEPS):
            rows = batch_of(self._model, step)
            found.append(trainer.step(poisoned(rows) if step == poison else rows))
            if other is not None and step + 1 == CUT:
                with tempfile.TemporaryDirectory() as folder:
                    trainer.save(Path(folder))
                    trainer.close()
                    changed = loaded(self._model)
                    with torch.no_grad():
                        for parameter in changed.model.parameters():
                            if parameter.requires_grad:
                                parameter.add_(0.1)
                    trainer = other.open(changed, self._loss, STEPS)
                    trainer.load(Path(folder))
        weights = _copy(trainer.weights(STEPS))
        self.scores = trainer.score(batch_of(self._model, 0))
        trainer.step(Batch((), ("generator",), 0, 0))  # A step that kept no question.
        self.idle = distance(_copy(trainer.weights(STEPS + 1)), weights)
        self.bytes = self.bytes_of(trainer)
        trainer.close()
        return found, weights


def exactly(model: PretrainedModel, config: TorchTrainer, loss: str, poison: int = -1) -> Trained:
    """Train in one process in float64, from the same weights."""
    start = loaded(model)
    start.model.double()
    start.model.set_experts_implementation("eager")  # Grouped products know no float64.
    with in_float64():
        trainer = config.open(start, LOSSES[loss], STEPS)
        batches = [batch_of(model, s) for s in range(STEPS)]
        if poison >= 0:
            poisoned(batches[poison])
        return [trainer.step(one) for one in batches], _copy(trainer.weights(STEPS))


def _copy(weights: Weights) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().float().clone() for name, tensor in weights.tensors.items()}


def zero(stage: int, **more: Any) -> DeepSpeedTrainer:
    """Without a threshold, so that tiny parameters are sharded, too."""
    small = {"zero_optimization": {"stage3_param_persistence_threshold": 0}} if stage == 3 else {}
    return DeepSpeedTrainer(zero_stage=stage, deepspeed_args=small, **SETTINGS | more)  # type: ignore[arg-type]


def _resumed(
    stage: int, rate: float, optimizer: dict[str, Any]
) -> tuple[str, Config, Config | None, int]:
    config = zero(stage, learning_rate=rate, optimizer=optimizer)
    return ("plain", config, config, -1)


def cases(names: list[str]) -> dict[str, tuple[str, Config, Config | None, int]]:
    """Name to loss, trainer, who takes over, and the step that is poisoned."""
    torch_ = TorchTrainer(**SETTINGS)
    persistent = DeepSpeedTrainer(zero_stage=3, **SETTINGS)
    offloaded = zero(3, offload_optimizer=True, offload_params=True)
    recomputed, several = zero(3, gradient_checkpointing=True), zero(3, **SEVERAL)
    found: dict[str, tuple[str, Config, Config | None, int]] = {
        f"stage {s}": ("ppo", zero(s), None, -1) for s in range(4)
    }
    found |= {f"poisoned, stage {s}": ("plain", zero(s), None, 3) for s in range(4)}
    found |= {f"resumed, stage {s}": ("ppo", zero(s), zero(s), -1) for s in range(4)}
    found |= {
        "stage 3, parameters that stay whole": ("ppo", persistent, None, -1),
        "stage 3, offloaded": ("plain", offloaded, None, -1),
        "stage 2, offloaded": ("plain", zero(2, offload_optimizer=True), None, -1),
        "from stage 3 to torch": ("ppo", zero(3), torch_, -1),
        "from torch to stage 2": ("ppo", torch_, zero(2), -1),
        "from stage 1 to stage 3": ("ppo", zero(1), zero(3), -1),
        "recomputed, stage 2": ("ppo", zero(2, gradient_checkpointing=True), None, -1),
        "recomputed, stage 3": ("ppo", recomputed, None, -1),
        "recomputed, resumed, stage 3": ("ppo", recomputed, recomputed, -1),
        **{name: _resumed(*OPTIMIZERS[name]) for name in OPTIMIZERS},
        "rows": ("plain", zero(3, packing="rows"), None, -1),
        "padded": ("plain", zero(2, packing="none"), None, -1),
        "several updates, stage 1": ("ppo", zero(1, **SEVERAL), None, -1),
        "several updates, one poisoned, stage 2": ("grpo", zero(2, **SEVERAL), None, 3),
        "several updates, resumed, stage 3": ("grpo", several, several, -1),
    }
    return {n: c for n, c in found.items() if not names or n in names}


def compare(model: PretrainedModel, names: list[str]) -> list[dict[str, Any]]:
    rows = []
    wanted: dict[tuple[str, int, str], tuple[Trained, Trained, list[float]]] = {}
    start = _copy(TorchTrainer(**SETTINGS).open(loaded(model), LOSSES["plain"], 1).weights(0))
    for name, (loss, config, other, poison) in cases(names).items():
        run = Run(model, loss)
        shared = ("epochs", "minibatch_size", "optimizer", "learning_rate")
        parts = {part: getattr(config, part) for part in shared}
        key = (loss, poison, str(parts))
        if key not in wanted:
            plain = TorchTrainer(**SETTINGS | parts)
            whole = run.train(plain, None, poison)
            wanted[key] = whole, exactly(model, plain, loss, poison), run.scores
        (steps, weights), exact, scores = wanted[key]
        found, own = run.train(config, other, poison)
        rows.append(
            {
                "case": name,
                "lora": model.lora.model_dump_json() if model.lora else "",
                "metrics": sorted(set(steps[0]) ^ set(found[0])),
                "skipped": [s["optim/skipped"] for s in found],
                "rounding": rounding((found, own), (steps, weights), exact, poison),
                "bytes": run.bytes,
                "moved by nothing": run.idle,
                "scores": [abs(a / b - 1) for a, b in zip(run.scores, scores, strict=True)],
                "moved": max(float((weights[n] - start[n]).abs().max()) for n in weights),
            }
        )
    return rows


def compare_bf16(folder: str) -> list[dict[str, Any]]:
    """A bfloat16 model with float32 masters against all of it in float32."""
    exact = Run(PretrainedModel(name=folder, dtype="float32"), "ppo")
    steps, weights = exact.train(TorchTrainer(**SETTINGS))
    model = PretrainedModel(name=folder, dtype="bfloat16")
    broadcast(Init(model, SEED))
    rows, runs = [], {}
    for name, first, other in (("1", 1, None), ("2", 2, None), ("3", 3, None), ("2 to 3", 2, 3)):
        after = None if other is None else zero(other, bf16=True)
        found, own = runs[name] = Run(model, "ppo").train(zero(first, bf16=True), after)
        gaps = [abs(a["loss"] - b["loss"]) for a, b in zip(steps, found, strict=True)]
        rows.append(
            {
                "case": f"bf16, stage {name}",
                "loss": max(gaps),
                "weights": max(float((weights[n] - own[n]).abs().max()) for n in weights),
                # Rounded weights alone would differ by a step of bfloat16.
                "beside stage 2": max(
                    abs(a["loss"] - b["loss"])
                    for a, b in zip(runs["2"][0] if "2" in runs else found, found, strict=True)
                ),
            }
        )
    return rows


def main() -> int:
    folder, *names = sys.argv[1:]
    gc.freeze()  # Each trainer that closes collects garbage; the modules are none.
    if own_place().rank > 0:
        return serve()
    found = []
    try:
        named = Lora(rank=2, alpha=4, adapters=("first", "second"))
        for lora, chosen in ((None, []), (Lora(rank=2, alpha=4), LORA_CASES), (named, NAMED_CASES)):
            model = PretrainedModel(name=folder, dtype="float32", lora=lora)
            broadcast(Init(model, SEED))
            found += compare(model, names or chosen)
        if not names:
            found += compare_bf16(folder)
    finally:
        stop_workers()
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    code = main()
    end_at_once(code)
    sys.exit(code)
