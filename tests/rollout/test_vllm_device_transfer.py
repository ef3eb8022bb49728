"""Weights from device to device into a real vLLM server; only NCCL and CUDA IPC are replaced."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from debate_protocol.types import Reply
from debate_rollout.engine import Request, Sampling, Weights
from debate_rollout.engines import VllmServerEngine
from debate_rollout.testing import ask

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]

HOOK = Path(__file__).parent / "sitecustomize_transfer"
Logps = Callable[[Any, Reply], list[float]]


def requests() -> list[Request]:
    prompts = [tuple(3 + (7 * k + j) % 290 for j in range(40 + k)) for k in range(6)]
    sampling = Sampling(max_tokens=8)
    return [Request(ask(), replace(sampling, seed=k), p) for k, p in enumerate(prompts)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[Any]:
    """Replace NCCL and IPC here and in servers started from here; note the devices used."""
    from tests.rollout.transfer_without_gpu import replace_ipc, replace_sparse_nccl

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
    used = SimpleNamespace(**vars(torch) | {"cuda": cuda})
    monkeypatch.setattr(device_transfer, "torch", used)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    replace_sparse_nccl(monkeypatch.setattr)
    replace_ipc(monkeypatch.setattr)
    if "sparse_nccl" in request.node.name:  # which changes weights as they were loaded
        monkeypatch.setenv("UNPACKED", "1")
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(HOOK), before))))
    return noted


@pytest.mark.parametrize(
    ("transfer", "engines"),
    [("nccl", 1), ("sparse_nccl", 1), ("ipc", 1), pytest.param("nccl", 2, marks=pytest.mark.slow)],
)
def test_a_server_is_refreshed_and_sleeps_meanwhile(
    transfer: str, engines: int, calls: list[Any], tiny_model: Any, byte_bpe: Any, hf_logps: Logps
) -> None:
    models = [tiny_model(byte_bpe, seed, tied=False, window=256) for seed in (0, 1, 2, 0)]
    head = models[3].lm_head.weight
    with torch.no_grad():
        head[7] += 1.0  # All but this row is as in the weights that serve before.
    config = VllmServerEngine(
        transfer=transfer, sleep=True, enforce_eager=True, kv_cache_mib=64, max_batch=16,
        max_connections=16,
        vllm_args={} if engines == 1 else {"data_parallel_size": engines},
    )  # fmt: skip
    engine = config.open(models[0], byte_bpe)
    try:
        for version, model in enumerate((*models[1:3], models[0], models[3]), start=1):
            engine.generate(requests())  # Fills the prefix cache with the weights before.
            engine.sleep()
            engine.load(Weights(version, model.state_dict()))
            for reply in engine.generate(requests()):
                assert reply.weight_version == version and reply.version_spans == ()
                # Tensors of the wrong model are off by 0.1 and more.
                assert reply.logps == pytest.approx(hf_logps(model, reply), abs=1e-5)
        # Each refresh waits for the trainer's own stream, on the trainer's device.
        assert calls == [1, "synchronised"] * 4
        values = sum(tensor.numel() for tensor in models[0].state_dict().values())
        changed = head.shape[1] / values if transfer == "sparse_nccl" else None
        assert engine.weights_changed == changed
        assert not list(engine._served.folder.glob("weights-*"))  # none went through a file
        assert not engine._device_transfer._source.tensors
    finally:
        engine.close()
