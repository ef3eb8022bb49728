"""Save or resume trainers in the processes of a launch, and print how they went on, as JSON.

Run by `test_deepspeed.py`. The arguments are a folder with a model, and what to do:
`save:NAME:FOLDER` trains two steps and saves; `resume:NAME:FOLDER:STAGE` makes the last three of
five and compares with a torch trainer that made all; `exact:NAME` compares with the same trainer.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from deepspeed_processes import (
    CUT,
    LOSSES,
    SEED,
    STEPS,
    batch,
    exactly,
    loaded,
    poisoned,
    zero,
)

from arithmetic import rounding
from debate_train.models import PretrainedModel
from debate_train.models.loaded_model import LoadedModel, Lora
from debate_train.trainers import DeepSpeedTrainer, TorchTrainer, Trainer
from debate_train.trainers.processes import (
    Init,
    broadcast,
    end_at_once,
    own_place,
    serve,
    stop_workers,
)

LOSS = LOSSES["ppo"]
Found = list[dict[str, float]]


def model_of(folder: str, name: str) -> PretrainedModel:
    lora = Lora(rank=3, alpha=4) if "lora" in name else None
    return PretrainedModel(
        name=folder, dtype="bfloat16" if "bf16" in name else "float32", lora=lora
    )


def trainer_of(name: str) -> DeepSpeedTrainer:
    return zero(int(name[-1]), bf16="bf16" in name)


def fresh(model: PretrainedModel) -> LoadedModel:
    """The model as it begins."""
    broadcast(Init(model, SEED))
    return loaded(model)


def spoiled(model: PretrainedModel) -> LoadedModel:
    """The model with trained parameters that are not those of the checkpoint."""
    changed = fresh(model)
    with torch.no_grad():
        for parameter in changed.model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1)
    return changed


def steps(trainer: Trainer, part: range) -> Found:
    """The first step is left out for a gradient that is not a number: counts differ from then."""
    return [trainer.step(poisoned(batch(s)) if s == 0 else batch(s)) for s in part]


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    found = trainer.weights(STEPS).tensors
    return {name: tensor.detach().float().clone() for name, tensor in found.items()}


def gap(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert set(one) == set(other)
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def save(model: PretrainedModel, name: str, folder: Path) -> dict[str, Any]:
    trainer = trainer_of(name).open(fresh(model), LOSS, STEPS)
    steps(trainer, range(CUT))
    folder.mkdir(parents=True)
    trainer.save(folder)
    trainer.close()
    return {"job": f"save:{name}"}


def resume(model: PretrainedModel, stage: str, folder: Path) -> dict[str, Any]:
    settings = zero(1).model_dump(include=set(TorchTrainer.model_fields) - {"type"})
    whole = TorchTrainer(**settings).open(loaded(model), LOSS, STEPS)
    before = weights_of(whole)
    expected = steps(whole, range(STEPS))[CUT:]
    trainer = zero(int(stage)).open(spoiled(model), LOSS, STEPS)
    trainer.load(folder)
    found = steps(trainer, range(CUT, STEPS))
    steps64, weights64 = exactly(model, TorchTrainer(**settings), "ppo", poison=0)
    plain, exact = (expected, weights_of(whole)), (steps64[CUT:], weights64)
    result = {
        "rounding": rounding((found, weights_of(trainer)), plain, exact),
        "rates": [
            a["optim/learning_rate"] - b["optim/learning_rate"]
            for a, b in zip(expected, found, strict=True)
        ],
        "moved": gap(before, weights_of(whole)),
    }
    trainer.close()
    return result


def exact(model: PretrainedModel, name: str) -> dict[str, Any]:
    """Compare a trainer with itself, saved and loaded on the way."""
    config = trainer_of(name)
    whole = config.open(fresh(model), LOSS, STEPS)
    expected = steps(whole, range(STEPS))
    weights = weights_of(whole)
    whole.close()
    first = config.open(fresh(model), LOSS, STEPS)
    found = steps(first, range(CUT))
    with tempfile.TemporaryDirectory() as folder:
        first.save(Path(folder))
        first.close()
        second = config.open(spoiled(model), LOSS, STEPS)
        second.load(Path(folder))
    found += steps(second, range(CUT, STEPS))
    result = {
        "same": timeless(found) == timeless(expected),
        "weights": gap(weights, weights_of(second)),
    }
    second.close()
    return result


def timeless(found: Found) -> str:
    """As text, in which two that are not a number are the same."""
    return json.dumps(
        [{k: v for k, v in one.items() if not k.startswith("time/")} for one in found]
    )


def do(model_folder: str, job: str) -> dict[str, Any]:
    what, name, *more = job.split(":")
    model = model_of(model_folder, name)
    if what == "save":
        return save(model, name, Path(more[0]) / name)
    if what == "resume":
        return {"job": job, **resume(model, more[1], Path(more[0]) / name)}
    return {"job": job, **exact(model, name)}


def main() -> int:
    model_folder, *jobs = sys.argv[1:]
    if own_place().rank > 0:
        return serve()
    try:
        found = [do(model_folder, job) for job in jobs]
    finally:
        stop_workers()
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    code = main()
    end_at_once(code)
    sys.exit(code)
