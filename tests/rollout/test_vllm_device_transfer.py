"""Weights from device to device into a real vLLM server; only NCCL and CUDA IPC are replaced."""

import contextlib
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.rollout.vllm_requests import requests_for

from debate_protocol.types import Reply
from debate_rollout.engine import Request, Sampling, Weights
from debate_rollout.engines import VllmServerEngine

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]

HOOK = Path(__file__).parent / "sitecustomize_transfer"
Logps = Callable[[Any, Reply], list[float]]


def requests() -> list[Request]:
    return requests_for(Sampling(max_tokens=8), count=6, length=40)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace NCCL and IPC here and in servers started from here; note the devices used."""
    from tests.rollout.transfer_without_gpu import replace_ipc, replace_nccl

    from debate_rollout.engines.vllm import device_transfer

    noted: list[Any] = []

    def device(number: int) -> contextlib.nullcontext[None]:
        noted.append(number)
        return contextlib.nullcontext()

    cuda = SimpleNamespace(
        is_available=lambda: True,
        current_device=lambda: 1,
        device=device,
        synchronize=lambda: noted.append("synchronised"),
    )
    monkeypatch.setattr(device_transfer, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    replace_nccl(monkeypatch.setattr)
    replace_ipc(monkeypatch.setattr)
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(HOOK), before))))
    return noted


@pytest.mark.parametrize(
    ("transfer", "engines"),
    [("nccl", 1), ("ipc", 1), pytest.param("nccl", 2, marks=pytest.mark.slow)],
)
def test_a_server_is_refreshed_and_sleeps_meanwhile(
    transfer: str, engines: int, calls: list[Any], tiny_model: Any, byte_bpe: Any, hf_logps: Logps
) -> None:
    models = [tiny_model(byte_bpe, seed, tied=False, window=256) for seed in (0, 1, 2)]
    config = VllmServerEngine(
        transfer=transfer, enforce_eager=True, kv_cache_mib=64, max_batch=16,
        devices="1" if transfer == "nccl" else None, sleep=transfer == "ipc",
        vllm_args={} if engines == 1 else {"data_parallel_size": engines},
    )  # fmt: skip
    engine = config.open(models[0], byte_bpe)
    try:
        for version, model in ((1, models[1]), (2, models[2]), (3, models[0])):
            engine.generate(requests())  # Fills the prefix cache with the weights before.
            if transfer == "ipc":
                engine.sleep()
            engine.load(Weights(version, model.state_dict()))
            for reply in engine.generate(requests()):
                assert reply.weight_version == version
                assert reply.version_spans == ()
                # Tensors of the wrong model are off by 0.1 and more.
                assert reply.logps == pytest.approx(hf_logps(model, reply), abs=1e-5)
        # Each refresh waits for the trainer's own stream, on the trainer's device.
        assert calls == [1, "synchronised"] * 3
        assert not list(engine._served.folder.glob("weights-*"))  # none went through a file
        assert not engine._device_transfer._source.tensors
    finally:
        engine.close()
