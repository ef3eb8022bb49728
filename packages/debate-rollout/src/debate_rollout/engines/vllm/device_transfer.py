"""Sending full weights to a vLLM server from GPU to GPU, by vLLM's own trainer side.

`nccl` broadcasts the tensors from this process's device, `sparse_nccl` those of their values that
have changed. `ipc` lets a server on the same device read them where they are.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.clients import _json_safe_update_payload
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
from vllm.distributed.weight_transfer.sparse_nccl_engine import (
    SparseNCCLTrainerInitInfo,
    SparseWeightPatch,
)
from vllm.utils.network_utils import get_ip, get_open_port

from debate_rollout.engine import EngineConfigError
from debate_rollout.engines.vllm.control import ServerCalls

_CHUNK_VALUES = 1 << 26
_BITS = {2: torch.int16, 4: torch.int32}


class Tensors(WeightSource):  # type: ignore[misc]  # vLLM is untyped here
    """The weights of one refresh."""

    def __init__(self) -> None:
        self.tensors: Mapping[str, Tensor] = {}

    def metadata(self) -> list[ParamMeta]:
        """Return name, type and shape of each."""
        return [ParamMeta(k, v.dtype, tuple(v.shape)) for k, v in self.tensors.items()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.tensors.items():
            yield name, tensor.detach().cuda()


class _Calls(ServerCalls):
    def update_weights(self, update_info: object) -> None:
        """Let the workers receive; handles of device memory are pickled, as vLLM has it."""
        super().update_weights(_json_safe_update_payload(update_info))


class DeviceTransfer:
    """One meeting with the server's workers, then a transfer a refresh."""

    def __init__(
        self,
        kind: Literal["nccl", "sparse_nccl", "ipc"],
        url: str,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> None:
        if not torch.cuda.is_available():
            raise EngineConfigError(
                f"engine.transfer: found '{kind}', but this process has no CUDA device; expected "
                "file"
            )
        self._kind = kind
        self._calls = _Calls(url, headers, timeout_s)
        self._source = Tensors()
        self._sender: Any = None
        self._device = torch.cuda.current_device()
        self._served: dict[str, Tensor] = {}
        self.changed: float | None = None

    def send(self, tensors: Mapping[str, Tensor], label: str) -> None:
        """Serve these tensors under a label."""
        # Each thread has a current device of its own, and this may be any thread.
        with torch.cuda.device(self._device):
            # vLLM packs on streams that do not wait for the one which made the tensors.
            torch.cuda.synchronize()
            try:
                if self._kind == "sparse_nccl":
                    self._send_changes(tensors)
                else:
                    self._source.tensors = tensors
                    self._meet().send_weights()
            except BaseException:
                self._served.clear()
                raise
            finally:
                self._source.tensors = {}
        self._calls.name_version(label)

    def _send_changes(self, tensors: Mapping[str, Tensor]) -> None:
        """Send what differs from the weights that serve; all of it the first time."""
        sender, patches, waiting, sent = self._meet(), [], 0, 0
        self._calls.start_weight_update()
        for name, tensor in tensors.items():
            flat = tensor.detach().cuda().flatten()
            served = self._served.get(name)
            is_other = torch.ones_like(flat, dtype=torch.bool)
            if served is not None:
                bits = _BITS[flat.element_size()]  # So that a 0 becomes a -0, too.
                is_other = flat.view(bits) != served.cuda().view(bits)
            places = is_other.nonzero().flatten().int()
            self._served[name] = flat.to("cpu", copy=True)
            if len(places):
                patches.append(SparseWeightPatch(name, places, flat[places], tuple(tensor.shape)))
            waiting, sent = waiting + places.numel(), sent + places.numel()
            if waiting >= _CHUNK_VALUES:
                sender.send_weight_chunk(patches)
                patches, waiting = [], 0
        sender.send_weight_chunk(patches)
        self._calls.finish_weight_update()
        self.changed = sent / sum(tensor.numel() for tensor in tensors.values())

    def _meet(self) -> Any:
        """Return vLLM's sending side, which meets the server's workers the first time."""
        if self._sender is None:
            source = None if self._kind == "sparse_nccl" else self._source
            self._sender = WeightTransferTrainerFactory.trainer_init(
                self._meeting(), client=self._calls, source=source
            )
        return self._sender

    def _meeting(self) -> Any:
        if self._kind == "ipc":
            return IPCTrainerInitInfo(rank=0)
        place = {"master_address": get_ip(), "master_port": get_open_port()}
        where = place | {"rank": 0, "world_size": 1 + self._calls.workers()}
        if self._kind == "sparse_nccl":
            return SparseNCCLTrainerInitInfo(**where)
        # With two buffers, a module whose parts come in both is loaded on the second's stream
        # without waiting for the first.
        return NCCLTrainerInitInfo(**where, packed_num_buffers=1)
