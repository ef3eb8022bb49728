"""What ZeRO-3 needs beside DeepSpeed's engine: models never held whole, packs through its hooks."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from debate_train.errors import RunFailure
from debate_train.ranks.processes import Processes


def without_values(model: nn.Module) -> nn.Module:
    """Return a copy of the model whose parameters have shapes and no memory."""
    empty = {
        id(p): nn.Parameter(p.detach().to("meta"), requires_grad=p.requires_grad)
        for p in model.parameters()
    }
    return copy.deepcopy(model, empty)


def shard(
    model: nn.Module, config: dict[str, Any], processes: Processes, whole: nn.Module | None
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
    """
    from deepspeed.runtime.zero import Init

    rounded = torch.bfloat16 if config["bf16"]["enabled"] else None
    values = {} if whole is None else dict(whole.named_parameters())
    described = processes.share(
        None if whole is None else {n: (p.shape, rounded or p.dtype) for n, p in values.items()}
    )
    own = dict(model.named_parameters())
    if {n: p.shape for n, p in own.items()} != {n: shape for n, (shape, _) in described.items()}:
        raise RunFailure("the model of this rank has other parameters than that of rank 0")
    # One place for all: what is freed between shards that stay would be lost to the allocator.
    buffer = torch.empty(
        max(shape.numel() * dtype.itemsize for shape, dtype in described.values()),
        dtype=torch.uint8,
    )
    placed: dict[int, nn.Parameter] = {}
    first: Any = None
    for name, (shape, dtype) in described.items():
        value = buffer[: shape.numel() * dtype.itemsize].view(dtype).view(shape)
        if name in values:
            value.copy_(values[name].detach())
        parameter = nn.Parameter(value, requires_grad=own[name].requires_grad)
        if first is None:
            first = parameter
            Init(module=nn.ParameterList([parameter]), config_dict_or_path=config)
        else:
            first.convert_to_zero_parameters(param_list=[parameter])
        placed[id(own[name])] = parameter
    device = first.ds_tensor.device
    others: dict[str, Tensor] = processes.share(
        None
        if whole is None
        else {n: b.cpu() for n, b in whole.named_buffers(remove_duplicate=False)}
    )
    for path, module in model.named_modules():
        for key, old in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            setattr(module, key, placed[id(old)])
        for key, _ in list(module.named_buffers(recurse=False)):
            setattr(module, key, others[f"{path}.{key}".lstrip(".")].to(device))


def prepare_for_packs(engine: Any) -> None:
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
