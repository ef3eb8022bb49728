"""The trainer's part of a checkpoint, equal for every trainer, ZeRO stage and process count.

Masters and moments are whole, under the names of the parameters, in `optimizer-*.safetensors`;
counts are in `trainer.json`. No file depends on how a trainer splits them.
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
from debate_train.errors import ModelError
from debate_train.trainers.optimizers import StateLayout

RANDOM_FILE = "random.json"
COUNTS_FILE = "trainer.json"
TENSORS_STEM = "optimizer"
MASTER = "master"

RandomStates = dict[str, Any]
"""The global random states of this process, as JSON holds them."""


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # numpy takes 32 bits
    torch.manual_seed(seed)


def random_states() -> RandomStates:
    """Read the global random states of this process."""
    # The legacy form is a tuple of plain values, which JSON can hold.
    name, keys, *rest = np.random.get_state(legacy=True)
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "python": random.getstate(),
        "numpy": [name, np.asarray(keys).tolist(), *rest],
        "torch": torch.get_rng_state().tolist(),
        "cuda": [state.tolist() for state in cuda_states],
    }


def save_random_states(directory: Path, states: RandomStates | None = None) -> None:
    """Write earlier random states, or else the present states."""
    text = json.dumps(states or random_states())
    (directory / RANDOM_FILE).write_text(text, encoding="utf-8")


def load_random_states(directory: Path) -> None:
    """Restore the random states of a checkpoint.

    Devices missing in the checkpoint keep their state.

    Raises:
        ModelError: There are no random states, or the file has other values.
    """
    file = directory / RANDOM_FILE
    try:
        states = json.loads(file.read_bytes())
        version, words, gauss = states["python"]
        random.setstate((version, tuple(words), gauss))
        name, keys, position, has_gauss, cached_gauss = states["numpy"]
        numpy_keys = np.array(keys, np.uint32)
        np.random.set_state((name, numpy_keys, position, has_gauss, cached_gauss))
        torch.set_rng_state(torch.tensor(states["torch"], dtype=torch.uint8))
        # A checkpoint of more GPUs than there are here is restored as far as it goes.
        for device, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(torch.tensor(state, dtype=torch.uint8), device)
    except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise ModelError(
            f"{file}: found no random states ({error}); expected them as written"
        ) from error


class Counts(Config):
    """Counters of a trainer."""

    schedule_steps: int = Field(ge=0)
    """Steps of the learning-rate schedule, those skipped for a non-finite gradient included."""
    optimizer_steps: dict[str, int]
    """Updates of each parameter that has a state.

    Counted by the optimizer; 1 where it counts none.
    """
    scalars: dict[str, dict[str, int | float]] = Field(default_factory=dict)
    """Other numbers of a parameter's state, by name."""
    skipped_in_a_row: int = Field(0, ge=0)
    """Steps skipped since the last update."""


@dataclass(frozen=True, slots=True)
class ParameterState:
    """The tensors of an optimizer for a parameter."""

    moments: Mapping[str, Tensor]
    """By name; of the parameter's shape, but for the `others` of `StateLayout`."""
    master: Tensor | None = None
    """Its float32 value, where the model holds a rounded one."""


def write_trainer_state(
    directory: Path, states: Iterable[tuple[str, ParameterState]], counts: Counts
) -> None:
    """Write optimizer state by parameter name; `states` is read once, parameter by parameter."""
    write_tensors(directory, TENSORS_STEM, _named_tensors(states))
    (directory / COUNTS_FILE).write_text(counts.model_dump_json(indent=1), encoding="utf-8")


def _named_tensors(
    states: Iterable[tuple[str, ParameterState]],
) -> Iterator[tuple[str, Tensor]]:
    for parameter, state in states:
        if state.master is not None:
            yield f"{MASTER}/{parameter}", state.master
        for moment, tensor in state.moments.items():
            yield f"{moment}/{parameter}", tensor


class StoredTrainerState:
    """The files of `write_trainer_state`, read parameter by parameter.

    Args:
        directory: the checkpoint.
        shapes: of the trained parameters, by name.
        layout: names of the optimizer's tensors for a parameter.

    Raises:
        ModelError: It is not whole, or belongs to other parameters or another optimizer.
    """

    def __init__(
        self, directory: Path, shapes: Mapping[str, tuple[int, ...]], layout: StateLayout
    ) -> None:
        self._directory = directory
        self._shapes = shapes
        self._layout = layout
        self._tensors = StoredTensors.of(directory, TENSORS_STEM)
        self._moments_of: dict[str, list[str]] = {}
        for key in self._tensors.names():
            # The first slash ends the moment's name; a parameter's own name may have further ones.
            moment, _, parameter = key.partition("/")
            if moment != MASTER:
                self._moments_of.setdefault(parameter, []).append(moment)
        try:
            self.counts = Counts.model_validate_json((directory / COUNTS_FILE).read_bytes())
        except (OSError, ValidationError) as error:
            raise self._refusal(f"no readable {COUNTS_FILE}") from error
        # A state without its parameter belongs to another model or other adapters.
        untrained = [name for name in self.counts.optimizer_steps if name not in shapes]
        if untrained:
            raise self._refusal(f"state of {', '.join(untrained[:3])}, which is not trained")

    def of(self, name: str) -> ParameterState | None:
        """Read the state of a parameter, `None` where the optimizer had no state.

        Raises:
            ModelError: It is not the state of this parameter under this optimizer.
        """
        if name not in self.counts.optimizer_steps:
            return None
        stored = self._moments_of.get(name, [])
        expected = self._layout.moments
        problems = [m for m in stored if m not in expected and m not in self._layout.others]
        if not problems:
            problems = [f"no {moment}" for moment in expected if moment not in stored]
        # Counted as updated, a parameter has a state to restore.
        if problems or not stored:
            raise self._refusal(f"{', '.join(problems) or 'no state'} of {name}")
        has_master = f"{MASTER}/{name}" in self._tensors
        return ParameterState(
            moments={moment: self._read(moment, name) for moment in stored},
            master=self._read(MASTER, name) if has_master else None,
        )

    def _read(self, moment: str, name: str) -> Tensor:
        tensor = self._tensors.read(f"{moment}/{name}")
        shape = tuple(tensor.shape)
        if moment not in self._layout.others and shape != self._shapes[name]:
            raise self._refusal(f"{moment} of {name} with shape {shape}")
        return tensor

    def _refusal(self, problem: str) -> ModelError:
        return ModelError(
            f"checkpoint {self._directory}: found {problem}; expected the optimizer state of the "
            "model and trainer.optimizer in the recipe that the run was started with"
        )


def tensors_of(state: Mapping[str, object]) -> dict[str, Tensor]:
    """Select the tensors of a parameter's optimizer state, without those of a single number."""
    tensors = {}
    for name, value in state.items():
        if isinstance(value, Tensor) and value.dim() > 0:
            tensors[name] = value
    return tensors


def scalars_of(state: Mapping[str, object]) -> dict[str, int | float]:
    """Select the single numbers of a parameter's optimizer state."""
    scalars: dict[str, int | float] = {}
    for name, value in state.items():
        if isinstance(value, Tensor) and value.dim() == 0:
            scalars[name] = float(value)
        elif isinstance(value, int | float):
            scalars[name] = value
    return scalars


def save_torch_optimizer(
    directory: Path,
    optimizer: Optimizer,
    parameters: Mapping[str, nn.Parameter],
    counts: Callable[[dict[str, int], dict[str, dict[str, int | float]]], Counts],
) -> None:
    """Write the state of an optimizer of whole parameters.

    Args:
        directory: where the checkpoint is written.
        optimizer: of these parameters.
        parameters: by name.
        counts: builds the trainer's counts from the optimizer's steps and other numbers.
    """
    states: dict[str, ParameterState] = {}
    num_steps: dict[str, int] = {}
    other_scalars: dict[str, dict[str, int | float]] = {}
    for name, parameter in parameters.items():
        # `get`: to index the state of a parameter without one would make an empty one.
        state = optimizer.state.get(parameter, {})
        moments = tensors_of(state)
        if not moments:
            continue  # SGD without momentum has an empty state, or one of None
        states[name] = ParameterState(moments)
        scalars = scalars_of(state)
        # Optimizers without a count of their own, such as SGD, have one state since their first
        # update.
        num_steps[name] = int(scalars.pop("step", 1))
        if scalars:
            other_scalars[name] = scalars
    write_trainer_state(directory, states.items(), counts(num_steps, other_scalars))


def load_torch_optimizer(
    stored: StoredTrainerState, optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]
) -> None:
    """Restore the state of an optimizer of these parameters, with groups alike in type.

    Moments of another type are cast; a master becomes the parameter's value.
    """
    group = optimizer.param_groups[0]
    is_torch = all(type(part).__module__.startswith("torch.optim") for part in _parts(optimizer))
    # Fused and capturable kernels read the step count on the device.
    steps_on_device = group.get("fused") or group.get("capturable")
    for name, parameter in parameters.items():
        optimizer.state.pop(parameter, None)
        state = stored.of(name)
        if state is None:
            continue
        # A trainer with 16-bit weights has the exact value in its master alone.
        if state.master is not None:
            parameter.data.copy_(state.master)
        restored: dict[str, object] = {}
        for moment, tensor in state.moments.items():
            # Other libraries quantize their moments, which no cast may touch.
            is_cast = is_torch and tensor.shape == parameter.shape
            restored[moment] = tensor.to(parameter.device, parameter.dtype if is_cast else None)
        scalars: dict[str, int | float] = {"step": stored.counts.optimizer_steps[name]}
        scalars |= stored.counts.scalars.get(name, {})
        device = parameter.device if steps_on_device else "cpu"
        for key, value in scalars.items():
            restored[key] = torch.tensor(float(value), device=device) if is_torch else value
        optimizer.state[parameter] = restored


def _parts(optimizer: Optimizer) -> list[Optimizer]:
    """List the optimizers that a combined one consists of."""
    parts: list[Optimizer] = []
    for part in getattr(optimizer, "parts", ()):
        parts += _parts(part)
    return parts or [optimizer]


def set_schedule(schedule: LambdaLR, steps: int) -> None:
    """Move a learning-rate schedule to the state after this many steps."""
    schedule.last_epoch = steps - 1
    schedule._step_count = 2  # at 1, torch warns that no update came before
    schedule.step()
