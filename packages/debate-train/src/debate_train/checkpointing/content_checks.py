"""Whether tensors and counts of a checkpoint can be those of a run: shapes, types and ranges."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from debate_train.adapters import adapter_of, trained_adapters, trained_parameters
from debate_train.checkpointing.checkpoint_manifest import RefusedCheckpoint
from debate_train.checkpointing.policy_files import check_policy
from debate_train.checkpointing.random_states import check_random_states
from debate_train.checkpointing.tensor_files import StoredTensors
from debate_train.checkpointing.trainer_state import StoredTrainerState
from debate_train.losses.references import REFERENCE
from debate_train.playing.lookahead import check_lookahead

if TYPE_CHECKING:
    from debate_train.checkpointing.checkpoints import RunState
    from debate_train.models.loaded_model import LoadedModel
    from debate_train.recipe import Recipe


def check_contents(
    directory: Path,
    state: "RunState",
    phase: "Recipe | None",
    loaded: "LoadedModel",
    least_updates: int = 0,
    may_differ: bool = False,
) -> None:
    """Read all that a run would go on with.

    Args:
        directory: a checkpoint whose files are as its manifest says.
        state: what its `state.json` holds.
        phase: the recipe of the phase that it is in; None after the last.
        loaded: the model, whole.
        least_updates: of a parameter in this phase, as its metrics say.
        may_differ: whether some of its steps may have had another number of updates.

    Raises:
        RefusedCheckpoint: Something in it cannot be.
        UsageError: The same.
    """
    check_random_states(directory)
    rounded = {torch.bfloat16} if phase is None or phase.trainer.keeps_masters else set()
    types = {p.dtype for p in loaded.model.parameters()} | rounded
    check_policy(directory, loaded, types)
    if phase is None or state.step == state.phase_start:
        return  # The next phase opens a trainer of its own.
    training = trained_adapters(loaded.lora, phase.debate)
    trained = trained_parameters(replace(loaded, training=training))
    shapes = {name: tuple(p.shape) for name, p in trained.items()}
    stored = StoredTrainerState(directory, shapes, phase.trainer.optimizer.kept())
    for problem in (
        *_count_problems(stored, state, phase, least_updates, may_differ),
        *_state_problems(stored, types | {torch.float32}),
        *_reference_problems(directory, shapes, types | {torch.float32}),
    ):
        raise RefusedCheckpoint(problem)
    vocabulary = loaded.model.get_input_embeddings().weight.shape[0]
    check_lookahead(directory, state.step, int(vocabulary))


def _count_problems(
    stored: StoredTrainerState, state: "RunState", phase: "Recipe", least: int, may_differ: bool
) -> Iterator[str]:
    done = state.step - state.phase_start
    counts = stored.counts
    if counts.schedule_steps != done:
        yield f"its trainer.json counts {counts.schedule_steps} steps of the phase, not {done}"
    each = phase.trainer.epochs * phase.trainer.minibatches
    most = math.inf if may_differ else done * each
    for name, steps in counts.optimizer_steps.items():
        if not 1 <= steps <= max(most, 1):
            yield f"its trainer.json counts {steps} updates of {name} in {done} steps"
    tops: dict[str | None, int] = {}  # An update may be of one adapter alone.
    for name, steps in counts.optimizer_steps.items():
        tops[adapter_of(name)] = max(steps, tops.get(adapter_of(name), 0))
    top = sum(tops.values())
    counts_any = phase.trainer.optimizer.kept().has_any
    # 1 is what one that counts nothing has.
    if counts_any and top < least and max(tops.values(), default=0) != 1:
        yield f"its trainer.json counts {top} updates where metrics.jsonl has {least}"
    if counts.skipped_in_a_row > most:
        yield f"its trainer.json counts {counts.skipped_in_a_row} updates skipped in {done} steps"


def _state_problems(stored: StoredTrainerState, types: set[torch.dtype]) -> Iterator[str]:
    for name in stored.counts.optimizer_steps:
        found = stored.of(name)
        assert found is not None
        if found.master is not None:
            yield from tensor_problems(f"master of {name}", found.master, {torch.float32})
        for part, tensor in found.moments.items():
            if part in stored.others:
                continue
            yield from tensor_problems(f"{part} of {name}", tensor, types)
            if part == "exp_avg_sq" and bool((tensor < 0).any()):
                yield f"its {part} of {name} has negative squares"


def _reference_problems(
    directory: Path, shapes: dict[str, tuple[int, ...]], types: set[torch.dtype]
) -> Iterator[str]:
    kept = StoredTensors.of(directory, REFERENCE)
    if kept.names() and set(kept.names()) != set(shapes):
        yield "its reference is of other parameters than are trained"
        return
    for name in kept.names():
        tensor = kept.read(name)
        if tuple(tensor.shape) != shapes[name]:
            yield f"its reference of {name} has shape {tuple(tensor.shape)}"
        yield from tensor_problems(f"reference of {name}", tensor, types)


def tensor_problems(what: str, tensor: Tensor, types: set[torch.dtype]) -> Iterator[str]:
    """Yield what is wrong with a tensor that should be finite and of one of these types."""
    if tensor.dtype not in types:
        wanted = " or ".join(sorted(str(t).removeprefix("torch.") for t in types))
        yield f"its {what} is of type {str(tensor.dtype).removeprefix('torch.')}, not {wanted}"
    elif not bool(torch.isfinite(tensor).all()):
        yield f"its {what} is not finite"
