"""What DeepSpeed keeps of each parameter, read and written whole; what ZeRO-3 needs beside it."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from torch import Tensor, nn

from debate_train.checkpoints.trainer_state import ParameterState, scalars_of, tensors_of
from debate_train.interrupts import RunFailure
from debate_train.trainers.processes import Processes

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

    from debate_train.trainers.deepspeed import DeepSpeedTrainer


_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def remover_of_additions(model: nn.Module) -> Callable[[], None]:
    """Return a call that removes the hooks and attributes that the model gets from now on.

    DeepSpeed's `destroy` leaves the engine's hooks on the modules and bound methods on the
    parameters. Through them a phase that is over would keep its float32 weights and moments, 12
    bytes a parameter, until the end of the run, and its hooks would run in the next phase.
    """
    before = {id(place): set(place) for place in _places(model)}

    def remove() -> None:
        for place in _places(model):
            for key in set(place) - before.get(id(place), set()):
                del place[key]

    return remove


def _places(model: nn.Module) -> Iterator[dict[str, object]]:
    for module in model.modules():
        yield from (getattr(module, name) for name in _HOOKS)
    for parameter in model.parameters():
        yield parameter.__dict__


def without_values(model: nn.Module) -> nn.Module:
    """Return a copy of the model whose parameters have shapes and no memory."""
    empty = {
        id(p): nn.Parameter(p.detach().to("meta"), requires_grad=p.requires_grad)
        for p in model.parameters()
    }
    return copy.deepcopy(model, empty)


def shard(
    model: nn.Module, config: dict[str, object], processes: Processes, whole: nn.Module | None
) -> None:
    """Give a model rank 0's values, of which each rank keeps its shards.

    One parameter at a time is held whole, so a rank needs its shards and the largest parameter.

    Args:
        model: the same on every rank, with or without values of its own.
        config: DeepSpeed's configuration.
        processes: the ranks.
        whole: on rank 0, the model with the values.

    Raises:
        RunFailure: This rank's model has other parameters than rank 0's.
        ValidationError: DeepSpeed refuses the configuration.
    """
    from deepspeed.runtime.zero import Init

    described = processes.share(None if whole is None else _described(whole, config))
    shapes = {name: one.shape for one in described.values() for name in one.names}
    own = {name: p.shape for name, p in model.named_parameters(remove_duplicate=False)}
    if own != shapes:
        name = min(n for n in own.keys() | shapes.keys() if own.get(n) != shapes.get(n))
        raise RunFailure(
            f"the model of this rank is another than rank 0's: {name} has shape {own.get(name)} "
            f"here and {shapes.get(name)} there; expected the same files on every machine"
        )
    # One place for all: what is freed between shards that stay would be lost to the allocator.
    buffer = torch.empty(
        max(one.shape.numel() * one.dtype.itemsize for one in described.values()),
        dtype=torch.uint8,
    )
    values = {} if whole is None else dict(whole.named_parameters())
    placed: dict[str, nn.Parameter] = {}
    first: Any = None
    for owner, one in described.items():
        value = buffer[: one.shape.numel() * one.dtype.itemsize].view(one.dtype).view(one.shape)
        if owner in values:
            value.copy_(values[owner].detach())
        # Views share a count of changes, which would be that of all parameters; data has its own.
        parameter = nn.Parameter(value.data, requires_grad=one.is_trained)
        if first is None:
            first = parameter
            Init(module=nn.ParameterList([parameter]), config_dict_or_path=config)
        else:
            first.convert_to_zero_parameters(param_list=[parameter])
        placed |= dict.fromkeys(one.names, parameter)
    buffers: dict[str, Tensor] = processes.share(
        None
        if whole is None
        else {n: b.cpu() for n, b in whole.named_buffers(remove_duplicate=False)}
    )
    for path, module in model.named_modules():
        for key, _ in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            setattr(module, key, placed[f"{path}.{key}".lstrip(".")])
        for key, _ in list(module.named_buffers(recurse=False, remove_duplicate=False)):
            # The empty parameter is where passes compute; its shards may lie elsewhere.
            setattr(module, key, buffers[f"{path}.{key}".lstrip(".")].to(first.device))


@dataclass(frozen=True, slots=True)
class _Described:
    names: tuple[str, ...]
    """All places of the parameter; several where weights are tied."""
    shape: torch.Size
    dtype: torch.dtype
    is_trained: bool


def _described(whole: nn.Module, config: dict[str, Any]) -> dict[str, _Described]:
    """Return what is shared out, by its first name: parameters as rank 0 has tied them."""
    rounded = torch.bfloat16 if config["bf16"]["enabled"] else None
    names: dict[int, list[str]] = {}
    for name, parameter in whole.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {
        name: _Described(tuple(names[id(p)]), p.shape, rounded or p.dtype, p.requires_grad)
        for name, p in whole.named_parameters()
    }


def prepare_for_packs(engine: "DeepSpeedEngine") -> None:
    """Let forward passes begin below the top module, as those of packs do.

    What the engine's own call does before the model's must be done there: start the record of
    which parameters come next, and count micro-batches, whose gradients else replace each other.
    """
    model, optimizer = engine.module, engine.optimizer
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model

    def begin(*_: object) -> None:
        optimizer.clear_backward_seen_flag()
        optimizer.parameter_offload.get_param_coordinator().reset_step()

    inner.base_model.register_forward_pre_hook(begin)


Stored = tuple[Tensor, dict[str, Tensor] | None]
"""A parameter's value, and its moments where it has any."""


class EngineState:
    """Masters, moments and numbers that an engine's optimizer keeps."""

    def __init__(
        self,
        config: "DeepSpeedTrainer",
        processes: Processes,
        engine: "DeepSpeedEngine",
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self._config, self._processes, self._engine = config, processes, engine
        self._kept = config.optimizer.state_layout()
        self._stage = config.zero_stage
        self._has_moments = False
        # Of some optimizers DeepSpeed makes another of the same class, on its own parts.
        inner = getattr(engine.optimizer, "optimizer", None)
        self.optimizer = inner if isinstance(inner, torch.optim.Optimizer) else optimizer

    def numbers(self) -> tuple[int, dict[str, int | float]]:
        """Return how many steps were made, 0 where nothing is kept, and other numbers by name.

        All parameters are stepped together, so they are alike.
        """
        states = [state for state in self.optimizer.state.values() if tensors_of(state)]
        numbers = scalars_of(states[0]) if states else {}
        return (int(numbers.pop("step", 1)) if states else 0), numbers

    def of(self, parameter: nn.Parameter) -> ParameterState:
        """Return the whole master and moments of a parameter."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        if self._stage == 0:
            return ParameterState(tensors_of(self.optimizer.state[parameter]))
        master = safe_get_full_fp32_param(parameter)
        moments = {m: safe_get_full_optimizer_state(parameter, m) for m in self._kept.moments}
        return ParameterState(moments, master if self._config.bf16 else None)

    def prepare(self, steps: int, numbers: Mapping[str, float]) -> None:
        """Make optimizer state exist, unless there were no steps, and set its numbers."""
        self._has_moments = steps > 0
        if self._has_moments:
            self._make_moments()
        for state in self.optimizer.state.values():
            for name, value in {"step": steps, **numbers}.items():
                held = state.get(name)
                if isinstance(held, Tensor):  # Where the optimizer reads it.
                    held.fill_(value)
                elif held is not None:
                    state[name] = type(held)(value)

    def write(
        self, parameter: nn.Parameter, value: Tensor | None, moments: dict[str, Tensor] | None
    ) -> None:
        """Write rank 0's value and moments of a parameter, on every rank what it holds of them."""
        shape = shape_of(parameter)
        master = self.from_rank_0(value, shape)
        with torch.no_grad(), self.whole(parameter, modifier_rank=0):
            parameter.copy_(master)
        if self._stage > 0:
            self._set_share(parameter, master)
        if not self._has_moments:
            return
        if self._stage == 0:  # In their own types and places: all ranks have made them alike.
            for name, tensor in sorted(tensors_of(self.optimizer.state[parameter]).items()):
                tensor.copy_(moments[name]) if moments else tensor.zero_()
                if self._processes.place.size > 1:
                    torch.distributed.broadcast(tensor, 0)
            return
        for moment in self._kept.moments:
            whole = self.from_rank_0(None if moments is None else moments[moment], shape)
            self._set_share(parameter, whole, moment)

    def _set_share(self, parameter: Any, whole: Tensor, moment: str | None = None) -> None:
        """Set this rank's share of a parameter's float32 value, or of a moment of it."""
        if self._stage < 3:
            parameter.set_full_hp_param(whole, moment)
            return
        # DeepSpeed's own call for whole tensors fails where they do not divide by the ranks.
        size, rank = parameter.ds_tensor.numel(), self._processes.place.rank
        share = torch.zeros(size, dtype=whole.dtype, device=whole.device)
        own = whole.flatten()[rank * size : (rank + 1) * size]
        share[: own.numel()] = own
        parameter._z3_optimizer.set_local_hp_param(share, parameter, moment)

    def from_rank_0(self, value: Tensor | None, shape: torch.Size) -> Tensor:
        """Return rank 0's tensor in float32, on the engine's device."""
        if value is None:
            value = torch.zeros(shape)
        tensor = value.to(self._engine.device, torch.float32).contiguous()
        if self._processes.place.size > 1:
            torch.distributed.broadcast(tensor, 0)
        return tensor

    def whole(
        self, parameter: nn.Parameter, modifier_rank: int | None = None
    ) -> AbstractContextManager[object]:
        """Hold a parameter whole; what this rank then writes to it goes to all."""
        import deepspeed

        found: AbstractContextManager[object] = deepspeed.zero.GatheredParameters(
            [parameter], modifier_rank=modifier_rank, enabled=self._stage == 3
        )
        return found

    def _make_moments(self) -> None:
        """Make an empty step; it still decays weights and copies masters to them."""
        self._engine.eval()
        tokens = torch.zeros(1, 1, dtype=torch.long, device=self._engine.device)
        nothing = self._engine.module(input_ids=tokens, use_cache=False).logits.sum() * 0
        self._engine.backward(nothing, scale_wrt_gas=False)
        self._engine.step()


def shape_of(parameter: nn.Parameter) -> torch.Size:
    """Return a parameter's shape; one in shards has none of its own."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape
