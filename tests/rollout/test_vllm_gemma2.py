"""Gemma 2, whose logits and attention scores are soft-capped, sampled by vLLM."""

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from tests.rollout.vllm_requests import requests_for
from transformers import Gemma2Config, Gemma2ForCausalLM

from arithmetic import largest_gap
from debate_protocol.types import Reply
from debate_rollout.engine import Sampling, Weights
from debate_rollout.engines import VllmEngine
from debate_rollout.engines.vllm.model import ServedModel

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
