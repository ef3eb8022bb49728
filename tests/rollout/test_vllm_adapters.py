"""LoRA adapters loaded into vLLM: each is served by itself, and requests end with their own.

A file of its own: its engine stays open until the file ends, and a process runs one vLLM.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
from tests.rollout.vllm_requests import SAMPLING, requests_for

from debate_protocol.types import Reply
from debate_rollout.engine import Weights
from debate_rollout.engines import VllmEngine
from debate_rollout.engines.sampling import plain_logps
from debate_rollout.testing import Bench, Refresh, check_engine

Logps = Callable[[Any, Reply], list[float]]


@pytest.fixture(scope="module")
def served(
    tiny_model: Callable[..., Any], adapter: Callable[..., Any], byte_bpe: Any
) -> Iterator[tuple[Any, Callable[..., Any]]]:
    """The engine, and what makes an adapter for it with the model that has it."""

    def make_adapter(seed: int, rank: int = 8) -> tuple[Any, Weights]:
        model, weights = adapter(tiny_model(byte_bpe, window=256), seed, rank)
        return model, weights

    # The trainer's model, as debate-train hands it over: its adapter is no part of the base.
    opened = VllmEngine(enforce_eager=True, kv_cache_mib=64, max_batch=16, max_lora_rank=8).open(
        make_adapter(0)[0], byte_bpe
    )
    yield opened, make_adapter
    opened.close()


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_engine_with_adapters_conforms(served: Any, tiny_model: Any, byte_bpe: Any) -> None:
    engine, make_adapter = served
    adapters = (
        Refresh(weights, plain_logps(model))
        for model, weights in (make_adapter(1), make_adapter(2))
    )
    base = plain_logps(tiny_model(byte_bpe, window=256))
    results = check_engine(Bench(engine, base, tuple(adapters)))
    assert {name for name, result in results.items() if result != "passed"} == {
        "full refresh", "unfit weights refused", "death is named",
    }  # fmt: skip


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_load_lets_open_requests_end_with_the_adapter_they_began_with(
    served: Any, hf_logps: Logps
) -> None:
    engine, make_adapter = served
    tickets = {}
    models = {}
    for version in (6, 7, 8):  # three adapters at once, two fit into vLLM
        models[version], weights = make_adapter(version)
        engine.load(weights)
        for request in requests_for(replace(SAMPLING, max_tokens=30)):
            tickets[engine.submit(request)] = version
        engine.collect(0.0)
    while ended := engine.collect(60.0):
        for finished in ended:
            reply = finished.outcome
            version = tickets.pop(finished.ticket)
            assert reply.weight_version == version
            assert reply.version_spans == ()
            assert reply.logps == pytest.approx(hf_logps(models[version], reply), abs=1e-5)
    assert not tickets
