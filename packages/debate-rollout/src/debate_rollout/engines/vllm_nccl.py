"""Sending full weights to a vLLM server through NCCL, by vLLM's own trainer side.

Both sides need CUDA devices; the tensors are broadcast from this process's device.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import torch
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
from vllm.utils.network_utils import get_ip, get_open_port

from debate_rollout.errors import EngineConfigError


class Tensors(WeightSource):  # type: ignore[misc]  # vLLM is untyped here
    """The weights of one refresh."""

    def __init__(self) -> None:
        self.tensors: Mapping[str, Any] = {}

    def metadata(self) -> list[Any]:
        """Return name, type and shape of each."""
        return [ParamMeta(k, v.dtype, tuple(v.shape)) for k, v in self.tensors.items()]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for name, tensor in self.tensors.items():
            yield name, tensor.detach().cuda()


class ServerCalls:
    """The four calls that vLLM's trainer side makes, over HTTP."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        self._client = httpx.Client(base_url=url, headers=headers, timeout=timeout_s)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Let the workers meet this process."""
        self._post("/init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        """Open a refresh."""
        self._post("/start_weight_update", {})

    def update_weights(self, update_info: Any) -> None:
        """Let the workers receive."""
        self._post("/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Close a refresh."""
        self._post("/finish_weight_update", {"weight_version": weight_version})

    def workers(self) -> int:
        """Return how many workers the server has."""
        return int(self._client.get("/get_world_size").raise_for_status().json()["world_size"])

    def name_version(self, label: str) -> None:
        """Label the weights that are served."""
        self._post("/update_weight_version", {"new_version": label})

    def _post(self, path: str, json: Mapping[str, Any]) -> None:
        self._client.post(path, json=json).raise_for_status()


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

    def send(self, tensors: Mapping[str, Any], label: str) -> None:
        """Serve these tensors under a label."""
        self._source.tensors = tensors
        if self._sender is None:
            meeting = NCCLTrainerInitInfo(
                rank=0,
                master_address=get_ip(),
                master_port=get_open_port(),
                world_size=1 + self._calls.workers(),
            )
            self._sender = WeightTransferTrainerFactory.trainer_init(
                meeting, client=self._calls, source=self._source
            )
        self._sender.send_weights()
        self._calls.name_version(label)
