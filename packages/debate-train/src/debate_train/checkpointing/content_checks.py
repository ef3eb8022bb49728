"""Whether tensors of a checkpoint are those of a run: of its parameters, and finite."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from debate_train.adapters import trained_adapters, trained_parameters
from debate_train.checkpointing.checkpoint_manifest import RefusedCheckpoint
from debate_train.checkpointing.policy_files import check_policy
from debate_train.checkpointing.trainer_state import StoredTrainerState

if TYPE_CHECKING:
    from debate_train.checkpointing.checkpoints import RunState
    from debate_train.models.loaded_model import LoadedModel
    from debate_train.recipe import Recipe


def check_contents(
    directory: Path, state: "RunState", phase: "Recipe | None", loaded: "LoadedModel"
) -> None:
    """Read the weights and the optimizer state that a run would go on with.

    Args:
        directory: a checkpoint whose files are as its manifest says.
        state: what its `state.json` holds.
        phase: the recipe of the phase that it is in; None after the last.
        loaded: the model, whole.

    Raises:
        RefusedCheckpoint: A tensor is not finite.
        UsageError: They are of another model, or of another optimizer.
    """
    rounded = {torch.bfloat16} if phase is None or phase.trainer.keeps_masters else set()
    types = {p.dtype for p in loaded.model.parameters()} | rounded
    check_policy(directory, loaded, types)
    if phase is None or state.step == state.phase_start:
        return  # The next phase opens a trainer of its own.
    training = trained_adapters(loaded.lora, phase.debate)
    trained = trained_parameters(replace(loaded, training=training))
    shapes = {name: tuple(p.shape) for name, p in trained.items()}
    stored = StoredTrainerState(directory, shapes, phase.trainer.optimizer.kept())
    for what in _not_finite(stored):
        raise RefusedCheckpoint(f"its {what} is not finite")


def _not_finite(stored: StoredTrainerState) -> Iterator[str]:
    for name in stored.counts.optimizer_steps:
        found = stored.of(name)
        assert found is not None
        tensors = dict(found.moments) | ({} if found.master is None else {"master": found.master})
        for part, tensor in tensors.items():
            if part not in stored.others and not bool(torch.isfinite(tensor).all()):
                yield f"{part} of {name}"
