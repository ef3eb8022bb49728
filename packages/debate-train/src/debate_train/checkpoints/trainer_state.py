"""The trainer's part of a checkpoint: one format for every trainer, ZeRO stage and process count.

Masters and moments stand under the names of the parameters, whole, in `optimizer-*.safetensors`;
counts stand in `trainer.json`. Nothing in it depends on how a trainer splits them.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field, ValidationError
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from debate_protocol.plugins import Config
from debate_train.checkpoints.policy_files import StoredTensors, write_tensors
from debate_train.interrupts import ModelError
from debate_train.trainers.optimizers import StateLayout

_FILE = "random.json"


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


RandomStates = dict[str, Any]
"""The global random states of this process, as JSON holds them."""


def random_states() -> RandomStates:
    """Return the global random states of this process."""
    name, keys, *more = np.random.get_state(legacy=True)
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "python": random.getstate(),
        "numpy": [name, np.asarray(keys).tolist(), *more],
        "torch": torch.get_rng_state().tolist(),
        "cuda": [state.tolist() for state in on_devices],
    }


def save_random_states(directory: Path, taken: RandomStates | None = None) -> None:
    """Write random states that were taken before, or else those of now."""
    (directory / _FILE).write_text(json.dumps(taken or random_states()), encoding="utf-8")


def load_random_states(directory: Path) -> None:
    """Go on with the random states of a checkpoint.

    Devices beyond those of the checkpoint keep their state.

    Raises:
        ModelError: There are none, or they are not random states.
    """
    try:
        found = json.loads((directory / _FILE).read_bytes())
        version, words, gauss = found["python"]
        random.setstate((version, tuple(words), gauss))
        name, keys, place, has_gauss, cached = found["numpy"]
        np.random.set_state((name, np.array(keys, np.uint32), place, has_gauss, cached))
        torch.set_rng_state(torch.tensor(found["torch"], dtype=torch.uint8))
        for device, state in enumerate(found["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(torch.tensor(state, dtype=torch.uint8), device)
    except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise ModelError(
            f"{directory / _FILE}: found no random states ({error}); expected them as written"
        ) from error


_STEM, _COUNTS = "optimizer", "trainer.json"


class Counts(Config):
    """What a trainer has counted."""

    schedule_steps: int = Field(ge=0)
    """Steps of the learning-rate schedule, those skipped for a non-finite gradient included."""
    optimizer_steps: dict[str, int]
    """Updates of each parameter; one of which nothing is kept is left out.

    Counted by the optimizer; 1 where it counts none.
    """
    scalars: dict[str, dict[str, int | float]] = Field(default_factory=dict)
    """Other numbers that it keeps of a parameter, by name."""
    skipped_in_a_row: int = Field(0, ge=0)
    """Steps skipped since the last that was made."""


@dataclass(frozen=True, slots=True)
class ParameterState:
    """The tensors that an optimizer holds of one parameter."""

    moments: Mapping[str, Tensor]
    """By name; of the parameter's shape, but for the `others` of `StateLayout`."""
    master: Tensor | None = None
    """Its float32 value, where the model holds a rounded one."""


def write_trainer_state(
    directory: Path, states: Iterable[tuple[str, ParameterState]], counts: Counts
) -> None:
    """Write optimizer state by parameter name; `states` is read once, parameter by parameter."""
    write_tensors(directory, _STEM, _flat(states))
    (directory / _COUNTS).write_text(counts.model_dump_json(indent=1), encoding="utf-8")


def _flat(states: Iterable[tuple[str, ParameterState]]) -> Iterator[tuple[str, Tensor]]:
    for name, state in states:
        if state.master is not None:
            yield f"master/{name}", state.master
        for moment, tensor in state.moments.items():
            yield f"{moment}/{name}", tensor


class StoredTrainerState:
    """What `write_trainer_state` wrote, read parameter by parameter.

    Args:
        directory: the checkpoint.
        shapes: of the parameters that are trained, by name.
        layout: what the optimizer keeps of a parameter.

    Raises:
        ModelError: It is not whole, or belongs to other parameters or another optimizer.
    """

    def __init__(
        self, directory: Path, shapes: Mapping[str, tuple[int, ...]], layout: StateLayout
    ) -> None:
        self._directory, self._shapes, self._kept = directory, shapes, layout
        self._tensors = StoredTensors.of(directory, _STEM)
        self._parts: dict[str, list[str]] = {}
        for key in self._tensors.names():
            part, _, name = key.partition("/")
            self._parts.setdefault(name, []).append(part)
        try:
            self.counts = Counts.model_validate_json((directory / _COUNTS).read_bytes())
        except (OSError, ValidationError) as error:
            raise self._refusal(f"no readable {_COUNTS}") from error
        others = [n for n in self.counts.optimizer_steps if n not in shapes]
        if others:
            raise self._refusal(f"state of {', '.join(others[:3])}, which is not trained")

    def of(self, name: str) -> ParameterState | None:
        """Return the state of a parameter, None where nothing is kept of it."""
        if name not in self.counts.optimizer_steps:
            return None
        parts = [part for part in self._parts.get(name, ()) if part != "master"]
        known = (*self._kept.moments, *self._kept.others)
        strange = [part for part in parts if part not in known]
        wrong = strange or [f"no {part}" for part in self._kept.moments if part not in parts]
        if wrong or not parts:
            raise self._refusal(f"{', '.join(wrong) or 'no state'} of {name}")
        moments = {part: self._read(part, name) for part in parts}
        has_master = f"master/{name}" in self._tensors
        return ParameterState(moments, self._read("master", name) if has_master else None)

    def _read(self, part: str, name: str) -> Tensor:
        tensor = self._tensors.read(f"{part}/{name}")
        if part not in self._kept.others and tuple(tensor.shape) != self._shapes[name]:
            raise self._refusal(f"{part} of {name} with shape {tuple(tensor.shape)}")
        return tensor

    def _refusal(self, found: str) -> ModelError:
        return ModelError(
            f"checkpoint {self._directory}: found {found}; expected the optimizer state of the "
            "model and trainer.optimizer in the recipe that the run was started with"
        )


def tensors_of(state: Mapping[str, object]) -> dict[str, Tensor]:
    """Return what an optimizer keeps of a parameter but for single numbers."""
    return {k: v for k, v in state.items() if isinstance(v, Tensor) and v.dim() > 0}


def scalars_of(state: Mapping[str, object]) -> dict[str, int | float]:
    """Return the single numbers that an optimizer keeps of a parameter."""
    found = {}
    for name, value in state.items():
        if isinstance(value, Tensor) and value.dim() == 0:
            found[name] = float(value)
        elif isinstance(value, int | float):
            found[name] = value
    return found


def save_torch_optimizer(
    directory: Path,
    optimizer: Optimizer,
    parameters: Mapping[str, nn.Parameter],
    counts: Callable[[dict[str, int], dict[str, dict[str, int | float]]], Counts],
) -> None:
    """Write the state of an optimizer that holds whole parameters.

    Args:
        directory: where the checkpoint is written.
        optimizer: of these parameters.
        parameters: by name.
        counts: returns the trainer's counts with the optimizer's steps and other numbers.
    """
    kept = {name: optimizer.state[p] for name, p in parameters.items() if p in optimizer.state}
    # One without momentum has an empty state, or one of None.
    kept = {name: state for name, state in kept.items() if tensors_of(state)}
    scalars = {name: scalars_of(state) for name, state in kept.items()}
    steps = {name: int(numbers.pop("step", 1)) for name, numbers in scalars.items()}
    states = ((name, ParameterState(tensors_of(state))) for name, state in kept.items())
    others = {name: numbers for name, numbers in scalars.items() if numbers}
    write_trainer_state(directory, states, counts(steps, others))


def load_torch_optimizer(
    stored: StoredTrainerState, optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]
) -> None:
    """Put stored state into an optimizer of these parameters, whose groups are alike in type.

    Moments of another type are cast; a master becomes the parameter's value.
    """
    import torch

    group = optimizer.param_groups[0]
    # Our own ones consist of torch's.
    of_torch = type(optimizer).__module__.startswith(("torch.optim", "debate_train"))
    beside = group.get("fused") or group.get("capturable")
    for name, parameter in parameters.items():
        optimizer.state.pop(parameter, None)
        state = stored.of(name)
        if state is None:
            continue
        if state.master is not None:
            parameter.data.copy_(state.master)
        found: dict[str, object] = {}
        for part, tensor in state.moments.items():
            alike = of_torch and tensor.shape == parameter.shape
            found[part] = tensor.to(parameter.device, parameter.dtype if alike else None)
        steps = stored.counts.optimizer_steps[name]
        for part, value in {"step": steps, **stored.counts.scalars.get(name, {})}.items():
            where = parameter.device if beside else "cpu"
            found[part] = torch.tensor(float(value), device=where) if of_torch else value
        optimizer.state[parameter] = found


def set_schedule(schedule: LambdaLR, steps: int) -> None:
    """Put a learning-rate schedule where it stands after this many steps."""
    schedule.last_epoch, schedule._step_count = steps - 1, 2  # At 1 torch asks for an update.
    schedule.step()
