"""Checkpoints: written aside, renamed when complete, and read without running any code in them."""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from debate_train.errors import ModelError
from debate_train.models import LoadedModel

_STATE = "state.json"


@dataclass(frozen=True, slots=True)
class TrainerState:
    """What a trainer holds beside the model."""

    optimizer: Optimizer
    schedule: LRScheduler
    reference: dict[str, Tensor]


def save_trainer_state(directory: Path, loaded: LoadedModel, state: TrainerState) -> None:
    """Write the policy, and the trainer's state beside it."""
    save_policy(directory, loaded)
    kept = {"optimizer": state.optimizer.state_dict(), "schedule": state.schedule.state_dict()}
    torch.save(kept, directory / "trainer.pt")
    if state.reference:
        save_file(
            {n: t.contiguous() for n, t in state.reference.items()},
            directory / "reference.safetensors",
        )


def save_policy(directory: Path, loaded: LoadedModel) -> None:
    """Write model and tokenizer as transformers (or peft) reads them."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    loaded.model.save_pretrained(directory)
    loaded.tokenizer.save_pretrained(directory)


def load_trainer_state(directory: Path, loaded: LoadedModel, state: TrainerState) -> None:
    """Read into the same model and trainer what `save_trainer_state` wrote."""
    load_policy(directory, loaded)
    kept = torch.load(directory / "trainer.pt", weights_only=True)
    state.optimizer.load_state_dict(kept["optimizer"])
    state.schedule.load_state_dict(kept["schedule"])
    if state.reference:
        reference = load_file(directory / "reference.safetensors")
        for name, tensor in state.reference.items():
            tensor.copy_(reference[name])


def load_policy(directory: Path, loaded: LoadedModel) -> None:
    """Read the trained weights of a checkpoint into a model of the same shape.

    Raises:
        ModelError: The checkpoint holds the weights of another model.
    """
    try:
        if loaded.lora is not None:
            _load_adapter(directory, loaded)
        else:
            _load_full(directory, loaded)
    except (RuntimeError, FileNotFoundError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"checkpoint {directory}: found weights of another model ({reason}); expected those of "
            "model in the recipe that the run was started with"
        ) from error


def _load_adapter(directory: Path, loaded: LoadedModel) -> None:
    from peft import set_peft_model_state_dict

    adapter = load_file(directory / "adapter_model.safetensors")
    unexpected = set_peft_model_state_dict(loaded.model, adapter).unexpected_keys
    if unexpected:
        raise ValueError(f"unexpected {', '.join(unexpected[:3])}")


def _load_full(directory: Path, loaded: LoadedModel) -> None:
    tensors: dict[str, Tensor] = {}
    for file in sorted(directory.glob("model*.safetensors")):
        tensors |= load_file(file)
    missing, unexpected = loaded.model.load_state_dict(tensors, strict=False)
    tied = set(getattr(loaded.model, "_tied_weights_keys", None) or ())
    if unexpected or set(missing) - tied:
        raise ValueError(f"missing or unexpected {', '.join([*missing, *unexpected][:3])}")


class Checkpoints:
    """The numbered checkpoints of a run, `step-NNNNNN`, the last `keep` of them kept."""

    def __init__(self, root: Path, keep: int) -> None:
        self._root, self._keep = root, keep
        root.mkdir(parents=True, exist_ok=True)

    def write(self, step: int, state: Mapping[str, Any], save: Any) -> Path:
        """Write a checkpoint; `save(directory)` puts the trainer's files there.

        The directory gets its name only when everything is in it.
        """
        final = self._root / f"step-{step:06d}"
        aside = self._root / f".writing-{step:06d}"
        for left in self._root.glob(".*-*"):
            shutil.rmtree(left)
        aside.mkdir()
        save(aside)
        (aside / _STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
        _sync(aside)
        if final.exists():
            os.replace(final, self._root / f".replaced-{step:06d}")
        os.replace(aside, final)
        for old in (*self.complete()[: -self._keep], *self._root.glob(".replaced-*")):
            shutil.rmtree(old)
        return final

    def complete(self) -> list[Path]:
        """Return the complete checkpoints, oldest first."""
        return sorted(p for p in self._root.glob("step-*") if (p / _STATE).is_file())

    def latest(self) -> tuple[Path, dict[str, Any]] | None:
        """Return the newest checkpoint and its state, None when there is none."""
        found = self.complete()
        if not found:
            return None
        state: dict[str, Any] = json.loads((found[-1] / _STATE).read_text(encoding="utf-8"))
        return found[-1], state


def _sync(directory: Path) -> None:
    for path in directory.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
