"""LoRA adapters loaded into vLLM: each is served by itself, and requests end with their own."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

from debate_protocol.types import Reply
from debate_rollout.engine import Request, Sampling, Weights, WeightsError
from debate_rollout.engines import VllmEngine
from debate_rollout.engines.sampling import plain_logps
from debate_rollout.testing import Bench, Refresh, check_engine, turn_request

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]

SAMPLING = Sampling(max_tokens=12, temperature=0.7)
Logps = Callable[[Any, Reply], list[float]]


def requests_for(sampling: Sampling = SAMPLING) -> list[Request]:
    prompts = [tuple(3 + (7 * k + j) % 290 for j in range(100 + k)) for k in range(4)]
    return [Request(turn_request(), replace(sampling, seed=k), p) for k, p in enumerate(prompts)]


@pytest.fixture(scope="module")
def served(
    tiny_model: Callable[..., Any], adapter: Callable[..., Any], byte_bpe: Any
) -> Iterator[tuple[Any, Callable[..., Any]]]:
    """The engine, and what makes an adapter for it with the model that has it."""

    def made(seed: int, rank: int = 8) -> tuple[Any, Weights]:
        model, weights = adapter(tiny_model(byte_bpe, window=256), seed, rank)
        return model, weights

    # The trainer's model, as debate-train hands it over: its adapter is no part of the base.
    opened = VllmEngine(enforce_eager=True, kv_cache_mib=64, max_batch=16, max_lora_rank=8).open(
        made(0)[0], byte_bpe
    )
    yield opened, made
    opened.close()


def test_vllm_engine_with_adapters_conforms(served: Any, tiny_model: Any, byte_bpe: Any) -> None:
    engine, made = served
    adapters = (Refresh(weights, plain_logps(model)) for model, weights in (made(1), made(2)))
    base = plain_logps(tiny_model(byte_bpe, window=256))
    found = check_engine(Bench(engine, base, tuple(adapters)))
    assert {name for name, result in found.items() if result != "passed"} == {
        "full refresh", "unfit weights refused", "death is named",
    }  # fmt: skip


def test_load_serves_each_adapter_under_a_number_of_its_own(served: Any, hf_logps: Logps) -> None:
    engine, made = served
    for version in (3, 4, 5):
        model, weights = made(version)
        engine.load(weights)
        for reply in engine.generate(requests_for()):
            assert reply.weight_version == version
            assert reply.logps == pytest.approx(hf_logps(model, reply), abs=1e-5)
    assert len(list(engine._served.folder.glob("adapter-*"))) == 1


def test_load_lets_open_requests_end_with_the_adapter_they_began_with(
    served: Any, hf_logps: Logps
) -> None:
    engine, made = served
    tickets, models = {}, {}
    for version in (6, 7, 8):  # three adapters at once, two fit into vLLM
        models[version], weights = made(version)
        engine.load(weights)
        for one in requests_for(replace(SAMPLING, max_tokens=30)):
            tickets[engine.submit(one)] = version
        engine.collect(0.0)
    while found := engine.collect(60.0):
        for done in found:
            reply, version = done.outcome, tickets.pop(done.ticket)
            assert reply.weight_version == version and reply.version_spans == ()
            assert reply.logps == pytest.approx(hf_logps(models[version], reply), abs=1e-5)
    assert not tickets


def test_load_leaves_the_old_adapter_serving_when_a_new_one_does_not_fit(
    served: Any, hf_logps: Logps
) -> None:
    engine, made = served
    model, good = made(9)
    engine.load(good)
    name = next(iter(good.tensors))
    for bad, message in (
        (replace(good, tensors={**good.tensors, name: good.tensors[name][:, :-1]}), "shape"),
        (replace(good, tensors={**good.tensors, name + "s": good.tensors[name]}), "did you mean"),
        (made(10, rank=16)[1], "rank 16, above 8"),
        (Weights(10, {}), "expected 'lora'"),
    ):
        with pytest.raises(WeightsError, match=message):
            engine.load(bad)
    for reply in engine.generate(requests_for()):
        assert reply.weight_version == 9
        assert reply.logps == pytest.approx(hf_logps(model, reply), abs=1e-5)


def test_two_adapters_served_together_reply_as_each_alone(served: Any) -> None:
    engine, made = served
    (_, first), (_, second) = made(20), made(21)
    own = {"actor": first, "critic": second}
    expected = {}
    for name, weights in own.items():
        engine.load(replace(weights, version=22))
        expected[name] = engine.generate(requests_for())
    tensors = {f"{n}/{key}": t for n, one in own.items() for key, t in one.tensors.items()}
    engine.load(Weights(23, tensors, "lora", first.adapter, tuple(own)))
    mixed = [
        replace(one, turn_request=replace(one.turn_request, adapter=n))
        for n in own
        for one in requests_for()
    ]
    replies = engine.generate(mixed)
    assert len(list(engine._served.folder.glob("adapter-*"))) == 2
    for reply, alone in zip(replies, [*expected["actor"], *expected["critic"]], strict=True):
        assert (reply.token_ids, reply.weight_version) == (alone.token_ids, 23)
        assert reply.logps == pytest.approx(alone.logps, abs=1e-5)
    assert expected["actor"][0].logps != pytest.approx(expected["critic"][0].logps, abs=1e-3)
