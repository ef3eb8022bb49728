"""vLLM's weight transfers without GPUs: NCCL's broadcasts pass through a TCPStore, IPC's handles
name files.

Everything else is vLLM's own: the meeting, the calls, packing, unpacking and loading. The folder
`sitecustomize_transfer` lets a server's processes do the same as soon as they import that transfer.
"""

import contextlib
import datetime
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

Set = Callable[[Any, str, Any], None]


class StoreGroup:
    """What vLLM takes for an NCCL communicator: broadcasts set and get bytes in a store."""

    def __init__(self, host: str, port: int, rank: int, world_size: int, device: Any) -> None:
        self._rank = rank
        self._parts = 0
        self._store = torch.distributed.TCPStore(
            host, port, world_size, is_master=rank == 0, timeout=datetime.timedelta(seconds=120)
        )

    def broadcast(self, tensor: Any, src: int, stream: Any = None) -> None:
        """Send the bytes of a tensor from rank `src`, or receive them in place."""
        key = f"part-{self._parts}"
        self._parts = self._parts + 1
        if self._rank == src:
            self._store.set(key, tensor.numpy().tobytes())
        else:
            received = torch.frombuffer(bytearray(self._store.get(key)), dtype=torch.uint8)
            tensor.copy_(received)

    def destroy(self) -> None:
        """Leave."""


class NoStream:
    """In place of a CUDA stream: all is done when it is called."""

    def synchronize(self) -> None:
        """Return at once."""


def handle_of(tensor: torch.Tensor) -> tuple[None, tuple[object, ...]]:
    """Return what stands for a handle of device memory: where its bytes are, and their type."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm", delete=False) as file:
        torch.save(tensor, file)
    return None, (file.name, 1, 2, 3, 4, 5, "device")


def rebuilt(name: str, *rest: object) -> Any:
    """Return the tensor of a handle, which is read once."""
    assert rest == (1, 2, 3, 4, 5, None)  # The receiver's own device stands in the last place.
    tensor = torch.load(name)
    Path(name).unlink()
    return tensor


def replace_ipc(put: Set = setattr) -> None:
    """Replace what needs a GPU in vLLM's `ipc` transfer, in this process."""
    from vllm.distributed.weight_transfer import ipc_engine

    put(ipc_engine, "reduce_tensor", handle_of)
    put(ipc_engine, "rebuild_cuda_tensor", rebuilt)
    put(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="one"))
    put(torch.cuda, "ipc_collect", lambda: None)
    put(torch.accelerator, "current_device_index", lambda: 0)


def replace_nccl(put: Set = setattr) -> None:
    """Replace what needs a GPU in vLLM's `nccl` transfer, in this process."""
    from vllm.distributed.weight_transfer import nccl_common, packed_tensor

    put(nccl_common, "stateless_init_process_group", StoreGroup)
    put(packed_tensor, "_get_streams", lambda _, count: (NoStream(),) * count)
    put(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    put(torch.accelerator, "current_device_index", lambda: 0)
