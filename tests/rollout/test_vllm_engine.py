"""vLLM inside this process: token ids in, exact log-probabilities out, stepped by `collect`."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from tests.rollout.vllm_requests import requests_for

from debate_protocol.types import Reply
from debate_rollout.engine import (
    Request,
    Sampling,
    Weights,
)
from debate_rollout.engines import VllmEngine
from debate_rollout.engines.sampling import plain_logps
from debate_rollout.testing import Bench, Refresh, check_engine, turn_request

WINDOW = 256
SETTINGS = {"enforce_eager": True, "kv_cache_mib": 64, "max_batch": 16}
Logps = Callable[[Any, Reply], list[float]]


@pytest.fixture(scope="module")
def model(tiny_model: Callable[..., Any], byte_bpe: Any) -> Any:
    return tiny_model(byte_bpe, window=WINDOW)


@pytest.fixture(scope="module")
def engine(model: Any, byte_bpe: Any) -> Iterator[Any]:
    random.seed(5)
    torch.manual_seed(5)
    opened = VllmEngine(**SETTINGS).open(model, byte_bpe)
    yield opened
    opened.close()


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_open_leaves_the_process_as_it_was(engine: Any) -> None:
    torch.set_num_threads(torch.get_num_threads())
    assert torch.set_num_threads.__module__ in (None, "torch._C", "torch")
    numbers = random.random(), torch.rand(3)
    random.seed(5)
    torch.manual_seed(5)
    assert numbers[0] == random.random()
    assert torch.equal(numbers[1], torch.rand(3))


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_engine_conforms(
    engine: Any, model: Any, tiny_model: Callable[..., Any], byte_bpe: Any
) -> None:
    # 64 MiB; a token has keys and values of 2 layers, 2 heads and 32 numbers of 4 bytes.
    assert engine.room.debates == 64 * 2**20 // (2 * 2 * 2 * 32 * 4)
    others = (tiny_model(byte_bpe, seed=1, window=WINDOW), model)
    refreshes = [Refresh(Weights(1, other.state_dict()), plain_logps(other)) for other in others]
    results = check_engine(Bench(engine, plain_logps(model), refreshes))
    assert {name for name, result in results.items() if result != "passed"} == {
        "LoRA refresh", "an adapter for each request", "death is named",
    }  # fmt: skip
    engine.load(Weights(100, model.state_dict()))


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_generate_reports_log_probabilities_when_temperatures_differ_in_a_batch(
    engine: Any, model: Any, hf_logps: Logps
) -> None:
    requests = [
        replace(request, sampling=replace(request.sampling, temperature=temperature))
        for request, temperature in zip(
            requests_for(Sampling(max_tokens=12)), (0.0, 0.5, 1.0, 2.0), strict=True
        )
    ]
    for reply in engine.generate(requests):
        assert reply.logps == pytest.approx(hf_logps(model, reply), abs=1e-5)


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_collect_hands_an_error_over_when_a_request_cannot_be_served(engine: Any) -> None:
    bad = [Request(turn_request(), Sampling(max_tokens=4), ids) for ids in ((), (10**9,))]
    tickets = [engine.submit(request) for request in bad]
    ended = engine.collect(5.0)
    assert [finished.ticket for finished in ended] == tickets
    assert all(isinstance(finished.outcome, Exception) for finished in ended)
    assert engine.generate(requests_for(Sampling(max_tokens=2)))[0].token_ids
