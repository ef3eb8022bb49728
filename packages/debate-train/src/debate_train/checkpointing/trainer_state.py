"""The trainer's part of a checkpoint: one format for every trainer, ZeRO stage and process count.

Masters and moments stand under the names of the parameters, whole, in `optimizer-*.safetensors`;
counts stand in `trainer.json`. Nothing in it depends on how a trainer splits them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from debate_protocol.config import Config
from debate_train.checkpointing.tensor_files import StoredTensors, write_tensors
from debate_train.errors import ModelError

MOMENTS = ("exp_avg", "exp_avg_sq")
_STEM, _COUNTS = "optimizer", "trainer.json"


class Counts(Config):
    """What a trainer has counted."""

    schedule_steps: int = Field(ge=0)
    """Steps of the learning-rate schedule, those skipped for a non-finite gradient included."""
    optimizer_steps: dict[str, int]
    """Updates of each parameter; one that never had a gradient is left out."""
    skipped_in_a_row: int = Field(0, ge=0)
    """Steps skipped since the last that was made."""


@dataclass(frozen=True, slots=True)
class ParameterState:
    """What an optimizer holds of one parameter, all of its shape."""

    moments: Mapping[str, Tensor]
    """By name in `MOMENTS`."""
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
        for moment in MOMENTS:
            yield f"{moment}/{name}", state.moments[moment]


class StoredTrainerState:
    """What `write_trainer_state` wrote, read parameter by parameter.

    Raises:
        ModelError: It is not whole, or belongs to other parameters than `shapes` names.
    """

    def __init__(self, directory: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._directory, self._shapes = directory, shapes
        self._tensors = StoredTensors.of(directory, _STEM)
        try:
            self.counts = Counts.model_validate_json((directory / _COUNTS).read_bytes())
        except (OSError, ValidationError) as error:
            raise self._refusal(f"no readable {_COUNTS}") from error
        others = [n for n in self.counts.optimizer_steps if n not in shapes]
        if others:
            raise self._refusal(f"state of {', '.join(others[:3])}, which is not trained")

    def of(self, name: str) -> ParameterState | None:
        """Return the state of a parameter, None where it never had a gradient."""
        if name not in self.counts.optimizer_steps:
            return None
        moments = {moment: self._read(moment, name) for moment in MOMENTS}
        master = self._read("master", name) if f"master/{name}" in self._tensors else None
        return ParameterState(moments, master)

    def _read(self, part: str, name: str) -> Tensor:
        if f"{part}/{name}" not in self._tensors:
            raise self._refusal(f"no {part} of {name}")
        tensor = self._tensors.read(f"{part}/{name}")
        if tuple(tensor.shape) != self._shapes[name]:
            raise self._refusal(f"{part} of {name} with shape {tuple(tensor.shape)}")
        return tensor

    def _refusal(self, found: str) -> ModelError:
        return ModelError(
            f"checkpoint {self._directory}: found {found}; expected the optimizer state of the "
            "model in the recipe that the run was started with"
        )


def save_torch_optimizer(
    directory: Path,
    optimizer: Optimizer,
    parameters: Mapping[str, nn.Parameter],
    counts: Callable[[dict[str, int]], Counts],
) -> None:
    """Write the state of an optimizer that holds whole parameters."""
    stepped = {name: optimizer.state[p] for name, p in parameters.items() if p in optimizer.state}
    states = (
        (name, ParameterState({moment: state[moment] for moment in MOMENTS}))
        for name, state in stepped.items()
    )
    steps = {name: int(state["step"]) for name, state in stepped.items()}
    write_trainer_state(directory, states, counts(steps))


def load_torch_optimizer(
    stored: StoredTrainerState, optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]
) -> None:
    """Put stored state into an optimizer of these parameters, one group in this order.

    Moments of another type are cast; a master becomes the parameter's value.
    """
    import torch

    states = {}
    for number, (name, parameter) in enumerate(parameters.items()):
        state = stored.of(name)
        if state is None:
            continue
        if state.master is not None:
            parameter.data.copy_(state.master)
        step = torch.tensor(float(stored.counts.optimizer_steps[name]))
        states[number] = {"step": step, **state.moments}
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": states, "param_groups": groups})


def set_schedule(schedule: LambdaLR, steps: int) -> None:
    """Put a learning-rate schedule where it stands after this many steps."""
    schedule.last_epoch, schedule._step_count = steps, steps + 1
    factors = [scale(steps) for scale in schedule.lr_lambdas]
    rates = [base * factor for base, factor in zip(schedule.base_lrs, factors, strict=True)]
    for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    schedule._last_lr = rates
