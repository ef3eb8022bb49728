"""vLLM as a server that the run starts: the same promises, kept from afar."""

import contextlib
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.rollout.vllm_requests import requests_for

from debate_protocol.types import Reply
from debate_rollout.engine import EndpointError, Request, Sampling, Weights, WeightsError
from debate_rollout.engines import VllmServerEngine
from debate_rollout.engines.sampling import plain_logps
from debate_rollout.engines.vllm.model import OtherWeightsError, write_weights
from debate_rollout.testing import Bench, Refresh, check_engine

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]

NEAR = 3e-5
"""For log-probabilities near -5 of two float32 engines: of thousands one differed by 1.2e-5."""
SETTINGS: dict[str, Any] = {"enforce_eager": True, "kv_cache_mib": 64, "max_batch": 16}
WINDOW = 2048
Logps = Callable[[Any, Reply], list[float]]


def ended(engine: Any) -> dict[int, Any]:
    outcomes: dict[int, Any] = {}
    while batch := engine.collect(120.0):
        outcomes |= {finished.ticket: finished.outcome for finished in batch}
    return outcomes


@pytest.fixture(scope="module")
def models(tiny_model: Callable[..., Any], byte_bpe: Any) -> list[Any]:
    pair = [tiny_model(byte_bpe, k, tied=True, window=WINDOW) for k in (0, 1)]
    # What a checkpoint suggests must not be sampled with: servers take it as their default.
    pair[0].generation_config.update(do_sample=True, top_k=2, repetition_penalty=3.0)
    return pair


@pytest.fixture(scope="module")
def engine(models: list[Any], byte_bpe: Any) -> Iterator[Any]:
    opened = VllmServerEngine(**SETTINGS).open(models[0], byte_bpe)
    yield opened
    opened.close()


def test_engine_beside_the_process_conforms(engine: Any, models: list[Any]) -> None:
    # 64 MiB; a token has keys and values of 2 layers, 2 heads and 32 numbers of 4 bytes.
    assert engine.room.debates == 64 * 2**20 // (2 * 2 * 2 * 32 * 4)
    refreshes = [
        Refresh(Weights(1, model.state_dict()), plain_logps(model)) for model in models[::-1]
    ]
    results = check_engine(Bench(engine, plain_logps(models[0]), refreshes))
    assert {name for name, result in results.items() if result != "passed"} == {
        "LoRA refresh", "an adapter for each request", "death is named",
    }  # fmt: skip


def test_load_marks_replies_that_mix_weights_when_requests_are_open(
    engine: Any, models: list[Any], hf_logps: Logps
) -> None:
    # Three times as many as are sampled at once: when the first has ended, others are on their way,
    # however late a busy machine says so.
    sampling = Sampling(max_tokens=600, temperature=1.0)
    mixed: list[Reply] = []
    for _ in range(5):  # A server that was idle may take all at once, and answer all at once.
        engine.load(Weights(4, models[0].state_dict()))
        for finished in requests_for(sampling, count=3 * SETTINGS["max_batch"]):
            engine.submit(finished)
        replies = [finished.outcome for finished in engine.collect(120.0)]
        engine.load(Weights(5, models[1].state_dict()))
        replies += ended(engine).values()
        assert len(replies) == 3 * SETTINGS["max_batch"]
        mixed = [reply for reply in replies if reply.version_spans]
        if mixed:
            break
    assert mixed
    for reply in mixed:
        (old, start, border), (new, again, end) = reply.version_spans
        assert (old, start, new, end) == (4, 0, 5, len(reply.token_ids))
        assert border == again
        before, after = (hf_logps(model, reply) for model in models)
        assert reply.logps == pytest.approx(before[:border] + after[border:], abs=NEAR)


def test_load_leaves_the_old_weights_serving_when_a_file_is_torn(
    engine: Any, models: list[Any], hf_logps: Logps, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.load(Weights(6, models[1].state_dict()))

    def torn(folder: Path, label: str, tensors: Any) -> Path:
        path = write_weights(folder, label, tensors)
        path.write_bytes(path.read_bytes()[:-100])
        return path

    monkeypatch.setattr("debate_rollout.engines.vllm.server.write_weights", torn)
    with pytest.raises(WeightsError, match=r"no complete safetensors file.*old weights go on"):
        engine.load(Weights(7, models[0].state_dict()))
    monkeypatch.undo()
    for reply in engine.generate(requests_for()):
        assert reply.weight_version == 6
        assert reply.logps == pytest.approx(hf_logps(models[1], reply), abs=NEAR)
    engine.load(Weights(8, models[0].state_dict()))
    assert engine.generate(requests_for())[0].weight_version == 8
    assert not list(engine._served.folder.glob("weights-*"))


def test_url_connects_to_a_running_server(
    engine: Any, models: list[Any], byte_bpe: Any, hf_logps: Logps,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    key = engine._pool.members[0].client.headers["Authorization"].removeprefix("Bearer ")
    with pytest.raises(EndpointError, match="401"):
        VllmServerEngine(url=engine._urls).open(models[0], byte_bpe)
    monkeypatch.setenv("VLLM_API_KEY", key)
    second = VllmServerEngine(url=engine._urls + "/v1").open(models[0], byte_bpe)
    assert second.context_window == WINDOW
    assert "load_in_flight" in second.capabilities
    for version, model in ((1, models[0]), (2, models[1])):
        second.load(Weights(version, model.state_dict()))
        for reply in second.generate(requests_for()):
            assert reply.weight_version == version
            assert reply.version_spans == ()
            assert reply.logps == pytest.approx(hf_logps(model, reply), abs=NEAR)
    with pytest.raises(OtherWeightsError, match="does another run refresh it"):
        engine.generate(requests_for())  # By the weights of the second.
    second.close()
    engine.load(Weights(9, models[1].state_dict()))  # the first one's server runs on


def test_an_engine_that_died_fails_every_request(engine: Any, models: Any) -> None:
    import psutil

    victim = psutil.Process(engine._pool.members[0].process._supervisor.pid).children()[0]
    computing = victim.children(recursive=True)
    message = r"has ended \(exit code 137\); the end of its log, .*vllm-server-"
    for process in computing:  # held, so that no reply can be ready before the end
        process.suspend()
    tickets = [engine.submit(request) for request in requests_for()]
    assert engine.collect(0.3) == []
    victim.kill()
    for process in computing:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()
    outcomes = ended(engine)
    assert sorted(outcomes) == tickets
    assert all(isinstance(outcome, Exception) for outcome in outcomes.values())
    with pytest.raises(Exception, match=message):
        engine.generate(requests_for())
    with pytest.raises(Exception, match=message):
        engine.load(Weights(10, models[0].state_dict()))


def test_adapters_are_served_by_a_server(
    tiny_model: Callable[..., Any], adapter: Callable[..., Any], byte_bpe: Any
) -> None:
    adapters_of = [adapter(tiny_model(byte_bpe, window=256), seed) for seed in (0, 1, 2)]
    engine = VllmServerEngine(max_lora_rank=8, **SETTINGS).open(adapters_of[0][0], byte_bpe)
    try:
        adapters = [Refresh(weights, plain_logps(model)) for model, weights in adapters_of[1:]]
        bench = Bench(engine, plain_logps(tiny_model(byte_bpe, window=256)), adapters)
        results = check_engine(bench)
        assert results["LoRA refresh"] == results["prefix cache dropped"] == "passed"
        assert len(list(engine._served.folder.glob("adapter-*"))) <= 2  # old ones are removed
        with pytest.raises(WeightsError, match="expected 'lora'"):
            engine.load(Weights(99, tiny_model(byte_bpe, window=256).state_dict()))
    finally:
        engine.close()


HOOK = Path(__file__).parent / "sitecustomize_transfer"


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
