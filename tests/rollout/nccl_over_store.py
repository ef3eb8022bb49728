"""vLLM's NCCL weight transfer without GPUs: its broadcasts pass through a TCPStore.

Everything else is vLLM's own: the meeting, the calls, packing, unpacking and loading. The folder
`sitecustomize_nccl` lets a server's processes do the same as soon as they import that transfer.
"""

import contextlib
import datetime
from collections.abc import Callable
from typing import Any

import torch

Set = Callable[[Any, str, Any], None]


class StoreGroup:
    """What vLLM takes for an NCCL communicator: broadcasts set and get bytes in a store."""

    def __init__(self, host: str, port: int, rank: int, world_size: int, device: Any) -> None:
        self._rank, self._parts = rank, 0
        self._store = torch.distributed.TCPStore(
            host, port, world_size, is_master=rank == 0, timeout=datetime.timedelta(seconds=120)
        )

    def broadcast(self, tensor: Any, src: int, stream: Any = None) -> None:
        """Send the bytes of a tensor from rank `src`, or receive them in place."""
        key, self._parts = f"part-{self._parts}", self._parts + 1
        if self._rank == src:
            self._store.set(key, tensor.numpy().tobytes())
        else:
            found = torch.frombuffer(bytearray(self._store.get(key)), dtype=torch.uint8)
            tensor.copy_(found)

    def destroy(self) -> None:
        """Leave."""


class NoStream:
    """In place of a CUDA stream: all is done when it is called."""

    def synchronize(self) -> None:
        """Return at once."""


def replace_nccl(put: Set = setattr) -> None:
    """Replace what needs a GPU in vLLM's transfer, in this process."""
    from vllm.distributed.weight_transfer import nccl_common, packed_tensor

    put(nccl_common, "stateless_init_process_group", StoreGroup)
    put(packed_tensor, "_get_streams", lambda _, count: (NoStream(),) * count)
    put(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    put(torch.accelerator, "current_device_index", lambda: 0)
