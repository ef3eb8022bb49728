"""Starting vLLM inside this process: what it serves, what it refuses, what it leaves behind."""

import math
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain
from typing import Any

import pytest
import torch
from tests.rollout.vllm_requests import requests_for
from transformers import Gemma2Config, Gemma2ForCausalLM

from arithmetic import largest_gap
from debate_protocol.types import Reply
from debate_rollout.engine import (
    EngineConfigError,
    EngineSettings,
    RolloutError,
    Sampling,
    Weights,
)
from debate_rollout.engines import VllmEngine, VllmServerEngine
from debate_rollout.engines.vllm.model import ServedModel

SETTINGS: dict[str, Any] = {"kv_cache_mib": 64, "max_batch": 16}
Logps = Callable[[Any, Reply], list[float]]


def gemma2(tokenizer: Any, seed: int) -> Any:
    """A model of random weights, large enough that both caps bend what they cap."""
    torch.manual_seed(seed)
    config = Gemma2Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, query_pre_attn_scalar=1,
        attn_logit_softcapping=1.0, final_logit_softcapping=2.0, sliding_window=16,
        initializer_range=0.2, max_position_embeddings=256, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        attn_implementation="eager",
    )  # fmt: skip
    return Gemma2ForCausalLM(config).eval()


@pytest.mark.parametrize("head_given", [True, False])
def test_head_is_left_out_when_vllm_has_none(
    tiny_model: Callable[..., Any], byte_bpe: Any, head_given: bool
) -> None:
    for model, heads in ((gemma2(byte_bpe, 0), 0), (tiny_model(byte_bpe), 1)):
        tensors = dict(model.state_dict())
        if not head_given:
            del tensors["lm_head.weight"]
        served = ServedModel(VllmEngine(), model, byte_bpe, {})
        sent = served.full_weights(Weights(1, tensors))
        served.close()
        assert sum(name == "lm_head.weight" for name in sent) == heads
        assert sent.keys() | {"lm_head.weight"} == model.state_dict().keys()


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_gemma2_is_sampled_with_both_soft_caps(byte_bpe: Any, hf_logps: Logps) -> None:
    model = gemma2(byte_bpe, 0)
    other = gemma2(byte_bpe, 1)
    engine = VllmEngine(enforce_eager=True, kv_cache_mib=64, max_batch=16).open(model, byte_bpe)
    try:
        # Prompts are longer than the sliding window of every second layer.
        requests = [
            replace(request, sampling=replace(request.sampling, temperature=temperature))
            for request, temperature in zip(
                requests_for(Sampling(max_tokens=24), length=40), (1.0, 0.7, 1.7, 0.0), strict=True
            )
        ]
        before = engine.generate(requests)
        engine.load(Weights(1, other.state_dict()))
        after = engine.generate(requests)
    finally:
        engine.close()
    for served, replies in ((model, before), (other, after)):
        for reply in replies:
            assert reply.logps == pytest.approx(hf_logps(served, reply), abs=1e-5)
    # Without either cap, scores are others by far.
    for layer in model.model.layers:
        layer.self_attn.attn_logit_softcapping = None
    assert largest_gap(hf_logps(model, before[0]), before[0].logps) > 1e-2
    for layer in model.model.layers:
        layer.self_attn.attn_logit_softcapping = model.config.attn_logit_softcapping
    model.config.final_logit_softcapping = None
    assert largest_gap(hf_logps(model, before[0]), before[0].logps) > 1e-2


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_generate_does_not_split_a_seeded_prompt_over_steps(
    tiny_model: Callable[..., Any], byte_bpe: Any
) -> None:
    # 12 x 700 tokens are more than one step's 4096: split, they end the CPU engine.
    opened = VllmEngine(**SETTINGS, context_window=1024).open(
        tiny_model(byte_bpe, window=1024), byte_bpe
    )
    requests = requests_for(Sampling(max_tokens=2), count=12, length=700)
    assert len({reply.token_ids for reply in opened.generate(requests)}) > 1
    opened.close()


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_open_serves_the_type_of_the_model(
    tiny_model: Callable[..., Any], byte_bpe: Any, hf_logps: Logps
) -> None:
    model = tiny_model(byte_bpe, window=256).to(torch.bfloat16)
    opened = VllmEngine(**SETTINGS, sleep=True).open(model, byte_bpe)
    opened.sleep()
    opened.load(Weights(1, model.state_dict()))
    replies = opened.generate(requests_for(Sampling(max_tokens=12)))
    opened.close()
    served = list(chain.from_iterable(reply.logps for reply in replies))
    rounded = list(chain.from_iterable(hf_logps(model, reply) for reply in replies))
    exact = list(chain.from_iterable(hf_logps(model.float(), reply) for reply in replies))

    def gap(logps: list[float]) -> float:
        return math.fsum(abs(a - b) for a, b in zip(logps, exact, strict=True)) / len(exact)

    # Another program rounds in other places, and not all of them are as good as transformers'.
    assert 1e-5 < gap(served) < 4 * gap(rounded), (gap(served), gap(rounded))


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_an_engine_that_died_fails_every_request(
    tiny_model: Callable[..., Any], byte_bpe: Any
) -> None:
    opened = VllmEngine(**SETTINGS).open(tiny_model(byte_bpe, window=256), byte_bpe)
    requests = requests_for(Sampling(max_tokens=50))
    tickets = [opened.submit(request) for request in requests]
    opened.collect(0.0)
    del opened._engine.model_executor.driver_worker.worker.model_runner.model
    ended = opened.collect(5.0)
    assert sorted(finished.ticket for finished in ended) == tickets
    assert all("vLLM has died" in str(finished.outcome) for finished in ended)
    with pytest.raises(RolloutError, match="vLLM has died"):
        opened.generate(requests)
    with pytest.raises(RolloutError, match="vLLM has died"):
        opened.load(Weights(1, {}))
    opened.close()


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_open_refuses_a_second_vllm_in_one_process(
    tiny_model: Callable[..., Any], byte_bpe: Any
) -> None:
    model = tiny_model(byte_bpe, window=256)
    first = VllmEngine(**SETTINGS).open(model, byte_bpe)
    with pytest.raises(EngineConfigError, match="one process runs one at a time"):
        VllmEngine(**SETTINGS).open(model, byte_bpe)
    assert first.generate(requests_for(Sampling(max_tokens=2)))[0].token_ids
    folder = first._served.folder
    first.close()
    assert not folder.exists()


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
@pytest.mark.parametrize(
    "config",
    [
        VllmEngine(**SETTINGS, vllm_args={"tensor_parallel_size": 2}),
        pytest.param(
            VllmServerEngine(**SETTINGS, vllm_args={"data_parallel_size": 2}),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["tensor-parallel", "data-parallel"],
)
def test_load_reaches_parallel_workers(
    config: EngineSettings, tiny_model: Callable[..., Any], byte_bpe: Any, hf_logps: Logps
) -> None:
    models = [tiny_model(byte_bpe, seed=seed, window=256) for seed in (0, 1)]
    opened = config.open(models[0], byte_bpe)
    try:
        for version, model in ((1, models[1]), (2, models[0])):
            opened.load(Weights(version, model.state_dict()))
            for reply in opened.generate(requests_for(Sampling(max_tokens=8))):
                assert reply.weight_version == version
                assert reply.logps == pytest.approx(hf_logps(model, reply), abs=1e-5)
        assert not list(opened._served.folder.glob("weights-*"))
    finally:
        opened.close()
