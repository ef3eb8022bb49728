"""What ZeRO-3 needs beside DeepSpeed's engine: models never held whole, packs through its hooks."""

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from debate_train.errors import RunFailure
from debate_train.ranks.processes import Processes

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine


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
