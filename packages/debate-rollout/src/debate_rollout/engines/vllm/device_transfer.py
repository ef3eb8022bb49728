"""Sending full weights to a vLLM server from GPU to GPU, by vLLM's own trainer side.

`nccl` broadcasts the tensors from this process's device. `ipc` lets a server on the same device
read them where they are.
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
from vllm.utils.network_utils import get_ip, get_open_port

from debate_rollout.engine import EngineConfigError
from debate_rollout.engines.vllm.control import ServerCalls


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
        self, kind: Literal["nccl", "ipc"], url: str, headers: Mapping[str, str], timeout_s: float
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

    def send(self, tensors: Mapping[str, Tensor], label: str) -> None:
        """Serve these tensors under a label."""
        # Each thread has a current device of its own, and this may be any thread.
        with torch.cuda.device(self._device):
            # vLLM packs on streams that do not wait for the one which made the tensors.
            torch.cuda.synchronize()
            self._source.tensors = tensors
            try:
                self._meet().send_weights()
            finally:
                self._source.tensors = {}
        self._calls.name_version(label)

    def _meet(self) -> Any:
        """Return vLLM's sending side, which meets the server's workers the first time."""
        if self._sender is None:
            self._sender = WeightTransferTrainerFactory.trainer_init(
                self._meeting(), client=self._calls, source=self._source
            )
        return self._sender

    def _meeting(self) -> Any:
        if self._kind == "ipc":
            return IPCTrainerInitInfo(rank=0)
        return NCCLTrainerInitInfo(
            rank=0,
            master_address=get_ip(),
            master_port=get_open_port(),
            world_size=1 + self._calls.workers(),
            # With two, a module whose parts come in two buffers is loaded on the second's stream
            # without waiting for the first.
            packed_num_buffers=1,
        )
