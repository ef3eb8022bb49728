"""Fake CUDA tensors in place of a model's and a pack's, and what is counted of them.

A fake tensor has a device, a type and a shape, and no values.
"""

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from made_rows import row_of
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from debate_train.batches.packs import Pack, make_pack
from debate_train.batches.row_types import Batch, Row

DEVICE = torch.device("cuda:0")


def fake_module(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Replace all parameters and buffers by fake ones on the device; shared ones stay shared."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, old in list(module._parameters.items()):
            if old is None:
                continue
            if id(old) not in made:
                with mode:
                    empty = torch.empty(old.shape, dtype=old.dtype, device=DEVICE)
                made[id(old)] = nn.Parameter(empty, requires_grad=old.requires_grad)
            module._parameters[name] = made[id(old)]
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                with mode:
                    module._buffers[name] = torch.empty(
                        buffer.shape, dtype=buffer.dtype, device=DEVICE
                    )
    return model


def fake_tensors(record: Any, mode: FakeTensorMode) -> Any:
    """Return a record of tensors, such as a pack, as fake tensors where they were."""
    if isinstance(record, Tensor):
        return mode.from_tensor(record)
    if isinstance(record, tuple):
        return tuple(fake_tensors(part, mode) for part in record)
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        parts = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
        return dataclasses.replace(record, **{n: fake_tensors(p, mode) for n, p in parts.items()})
    return record


def rows_of(lengths: list[int], shared: int, pairs: bool = False) -> list[Row]:
    """Return rows that begin with `shared` equal tokens; actions are the last halves."""
    rng, rows = np.random.default_rng(0), []
    opening = rng.integers(6, 100, shared)
    for number, length in enumerate(lengths):
        sampled = np.arange(length) >= max(shared, length // 2)
        own = rng.integers(6, 100, length - shared)
        rows.append(
            row_of(
                np.append(opening, own),
                sampled,
                advantages=1,
                sampler_logps=-1,
                debate=number,
                pair=number // 2 if pairs else -1,
            )
        )
    return rows


def pack_of(lengths: list[int], shared: int, share: Any = "prefix", pairs: bool = False) -> Pack:
    """Return a pack of such rows."""
    rows = rows_of(lengths, shared, pairs)
    batch = Batch(tuple(rows), ("generator",), int(sum(r.mask.sum() for r in rows)), len(rows))
    return make_pack(
        batch, [row.mask[row.sampled_positions] for row in rows], range(len(rows)), share
    )


class Live(TorchDispatchMode):
    """Counts the bytes of storages on the device that are alive, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._held: dict[int, Any] = {}

    def _add(self, tensor: Tensor) -> Tensor:
        if tensor.device.type == "cuda":
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key not in self._held:
                self.live += size
                self.peak = max(self.peak, self.live)
                self._held[key] = weakref.ref(storage, self._gone(key, size))
        return tensor

    def _gone(self, key: int, size: int) -> Callable[[Any], None]:
        def gone(_: Any) -> None:
            self.live -= size
            self._held.pop(key, None)

        return gone

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        tree_map_only(Tensor, self._add, found)
        return found


class Calls(TorchDispatchMode):
    """Counts calls of operators, and copies from the host to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.varlen = self.varlen_backward = self.to_host = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = str(func)
        self.varlen += "_varlen_attn.default" in name
        self.varlen_backward += "_varlen_attn_backward" in name
        if isinstance(found, Tensor) and found.device.type == "cpu" and "_to_copy" in name:
            self.to_host += args[0].device.type == "cuda"
        return found
