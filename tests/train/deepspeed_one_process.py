"""Train with DeepSpeed in this process and print how far it is from the torch trainer, as JSON.

Run by `test_deepspeed.py` on its own: a process group lasts as long as its process.
"""

import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from debate_train.losses import Kl, PpoClip
from debate_train.models import LoadedModel, Lora, ScratchModel
from debate_train.policy import with_adapter
from debate_train.rows import Batch, Row
from debate_train.trainers import DeepSpeedTrainer, TorchTrainer

STEPS, CUT = 4, 2
SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "warmup_steps": 2,
    "schedule": "linear",
    "weight_decay": 0.1,
    "tokens_per_micro_batch": 64,
}


def model(seed: int, lora: bool) -> LoadedModel:
    config = ScratchModel(hidden_size=16, layers=1, heads=2, kv_heads=1, head_dim=8, ffn_size=16)
    loaded = config.load(seed)
    if lora:
        loaded = dataclasses.replace(loaded, lora=Lora(rank=2, alpha=4))
    return with_adapter(loaded, seed)


def batch(seed: int) -> Batch:
    """Five rows of unequal length: two to three micro-batches."""
    rng = np.random.default_rng(seed)
    rows = []
    for debate in range(5):
        length = int(rng.integers(8, 40))
        sampled = np.arange(length) >= 3
        rows.append(
            Row(
                tokens=rng.integers(6, 120, length),
                mask=sampled.astype(np.float32),
                advantages=(rng.normal(size=length) * sampled).astype(np.float32),
                sampler_logps=np.where(sampled, -4.8, 0.0).astype(np.float32),
                temperatures=np.ones(length, np.float32),
                streams=sampled.astype(np.int64),
                versions=np.zeros(length, np.int64),
                segments=sampled.astype(np.int64),
                agent=0,
                debate=debate,
            )
        )
    return Batch(tuple(rows), ("generator",), int(sum(row.mask.sum() for row in rows)), 5)


def trained(
    config: TorchTrainer | DeepSpeedTrainer, lora: bool, resumed: bool
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of all steps and the last weights; `resumed` goes through a checkpoint on the way."""
    loss = PpoClip(kl=Kl(weight=0.1))
    trainer = config.open(model(0, lora), loss, STEPS)
    losses = []
    for step in range(STEPS):
        losses.append(trainer.step(batch(step))["loss"])
        if resumed and step + 1 == CUT:
            with tempfile.TemporaryDirectory() as folder:
                trainer.save(Path(folder))
                trainer.close()
                other = model(0, lora)
                with torch.no_grad():
                    for parameter in other.model.parameters():
                        if parameter.requires_grad:
                            parameter.add_(0.1)
                trainer = config.open(other, loss, STEPS)
                trainer.load(Path(folder))
    weights = {name: t.detach().clone() for name, t in trainer.weights(STEPS).tensors.items()}
    trainer.close()
    return losses, weights


def main() -> None:
    found = []
    for lora in (False, True):
        start = model(0, lora)
        losses, weights = trained(TorchTrainer(**SETTINGS), lora, False)
        own = start.model.state_dict()
        moved = max(
            float((t - own.get(n, torch.zeros_like(t))).abs().max()) for n, t in weights.items()
        )
        for stage in (0, 1, 2):
            for resumed in (False, True):
                config = DeepSpeedTrainer(zero_stage=stage, **SETTINGS)  # type: ignore[arg-type]
                other_losses, other = trained(config, lora, resumed)
                gaps = [abs(a - b) for a, b in zip(losses, other_losses, strict=True)]
                assert set(weights) == set(other)
                found.append(
                    {
                        "lora": lora,
                        "stage": stage,
                        "resumed": resumed,
                        "loss_gap": max(gaps),
                        "weight_gap": max(
                            float((weights[n] - other[n]).abs().max()) for n in weights
                        ),
                        "moved": moved,
                    }
                )
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
