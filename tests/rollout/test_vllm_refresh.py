"""Weights loaded into vLLM inside this process: exact after it, never half of each.

A file of its own: its engine stays open until the file ends, and a process runs one vLLM.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
from tests.rollout.vllm_requests import SAMPLING, requests_for

from debate_protocol.types import Reply
from debate_rollout.engine import (
    EngineConfigError,
    Weights,
    WeightsError,
)
from debate_rollout.engines import VllmEngine

Logps = Callable[[Any, Reply], list[float]]


LAYER = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def models_to_load(request: Any, tiny_model: Callable[..., Any], byte_bpe: Any) -> list[Any]:
    return [tiny_model(byte_bpe, seed=k, tied=request.param, window=256) for k in (0, 1)]


@pytest.fixture(scope="module")
def engine_to_load(models_to_load: list[Any], byte_bpe: Any) -> Iterator[Any]:
    opened = VllmEngine(enforce_eager=True, kv_cache_mib=64, max_batch=16).open(
        models_to_load[0], byte_bpe
    )
    yield opened
    opened.close()


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_load_serves_new_weights_without_old_prefixes(
    engine_to_load: Any, models_to_load: list[Any], hf_logps: Logps
) -> None:
    for version, model in ((1, models_to_load[1]), (2, models_to_load[0])):
        engine_to_load.generate(requests_for())  # fills the prefix cache with the weights before
        tensors = dict(model.state_dict())
        if model.config.tie_word_embeddings:
            del tensors["lm_head.weight"]  # as safetensors files of tied models leave it out
        engine_to_load.load(Weights(version, tensors))
        for reply in engine_to_load.generate(requests_for()):
            assert reply.weight_version == version
            assert reply.version_spans == ()
            assert reply.logps == pytest.approx(hf_logps(model, reply), abs=1e-5)


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_load_marks_replies_that_mix_weights_when_requests_are_open(
    engine_to_load: Any, models_to_load: list[Any], hf_logps: Logps
) -> None:
    engine_to_load.load(Weights(3, models_to_load[0].state_dict()))
    for request in requests_for(replace(SAMPLING, max_tokens=100)):
        engine_to_load.submit(request)
    for _ in range(20):
        engine_to_load.collect(0.0)  # one token each
    engine_to_load.load(Weights(4, models_to_load[1].state_dict()))
    engine_to_load.generate(requests_for(replace(SAMPLING, max_tokens=1)))
    ended = []
    while batch := engine_to_load.collect(60.0):
        ended += [finished.outcome for finished in batch]
    mixed = [reply for reply in ended if reply.version_spans]
    assert len(mixed) >= 2  # others ended before the refresh
    for reply in mixed:
        count = len(reply.token_ids)
        assert reply.version_spans == ((3, 0, 20), (4, 20, count))
        assert reply.weight_version == 4
        before, after = (hf_logps(model, reply) for model in models_to_load)
        # The new weights computed the whole prefix again: their log-probabilities are exact, too.
        assert reply.logps == pytest.approx(before[:20] + after[20:], abs=1e-5)
    # New weights had no part in what was sampled before them.
    for reply in engine_to_load.generate(requests_for()):
        assert reply.weight_version == 4
        assert reply.version_spans == ()


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_load_leaves_the_old_weights_serving_when_new_ones_do_not_fit(
    engine_to_load: Any, models_to_load: list[Any], hf_logps: Logps
) -> None:
    good = dict(models_to_load[1].state_dict())
    engine_to_load.load(Weights(5, good))
    for bad, message in (
        (good | {LAYER + "s": good[LAYER]}, f"did you mean '{LAYER}'"),
        (good | {LAYER: good[LAYER][:, :-1]}, r"expected \(64, 128\)"),
        ({k: v for k, v in good.items() if k != LAYER}, "missing"),
    ):
        with pytest.raises(WeightsError, match=message):
            engine_to_load.load(Weights(6, bad))
    with pytest.raises(EngineConfigError, match="max_lora_rank"):
        engine_to_load.load(Weights(6, {}, "lora", {}))
    for reply in engine_to_load.generate(requests_for()):
        assert reply.weight_version == 5
        assert reply.logps == pytest.approx(hf_logps(models_to_load[1], reply), abs=1e-5)


START_SETTINGS: dict[str, Any] = {"kv_cache_mib": 64, "max_batch": 16}
