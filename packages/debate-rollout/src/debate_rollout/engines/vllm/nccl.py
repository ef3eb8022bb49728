"""Sending full weights to a vLLM server through NCCL, by vLLM's own trainer side.

Both sides need CUDA devices; the tensors are broadcast from this process's device.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
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


class NcclTransfer:
    """One meeting with the server's workers, then a broadcast a refresh."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        if not torch.cuda.is_available():
            raise EngineConfigError(
                "engine.transfer: found 'nccl', but this process has no CUDA device; expected file"
            )
        self._calls = ServerCalls(url, headers, timeout_s)
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
            meeting = NCCLTrainerInitInfo(
                rank=0,
                master_address=get_ip(),
                master_port=get_open_port(),
                world_size=1 + self._calls.workers(),
                # With two, a module whose parts come in two buffers is loaded on the second's
                # stream without waiting for the first.
                packed_num_buffers=1,
            )
            self._sender = WeightTransferTrainerFactory.trainer_init(
                meeting, client=self._calls, source=self._source
            )
        return self._sender
