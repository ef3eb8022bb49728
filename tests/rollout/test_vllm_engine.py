"""vLLM inside this process: token ids in, exact log-probabilities out, stepped by `collect`."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain
from typing import Any

import pytest
import torch
from tests.rollout.vllm_requests import SAMPLING, requests_for
from transformers import Gemma2Config, Gemma2ForCausalLM

from arithmetic import largest_gap
from debate_protocol.types import Reply
from debate_rollout.engine import (
    EngineConfigError,
    EngineSettings,
    Request,
    RolloutError,
    Sampling,
    Weights,
    WeightsError,
)
from debate_rollout.engines import VllmEngine, VllmServerEngine
from debate_rollout.engines.sampling import plain_logps
from debate_rollout.engines.vllm.model import ServedModel
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


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_generate_does_not_split_a_seeded_prompt_over_steps(
    tiny_model: Callable[..., Any], byte_bpe: Any
) -> None:
    # 12 x 700 tokens are more than one step's 4096: split, they end the CPU engine.
    opened = VllmEngine(**START_SETTINGS, context_window=1024).open(
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
    opened = VllmEngine(**START_SETTINGS, sleep=True).open(model, byte_bpe)
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
    opened = VllmEngine(**START_SETTINGS).open(tiny_model(byte_bpe, window=256), byte_bpe)
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
    first = VllmEngine(**START_SETTINGS).open(model, byte_bpe)
    with pytest.raises(EngineConfigError, match="one process runs one at a time"):
        VllmEngine(**START_SETTINGS).open(model, byte_bpe)
    assert first.generate(requests_for(Sampling(max_tokens=2)))[0].token_ids
    folder = first._served.folder
    first.close()
    assert not folder.exists()


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
@pytest.mark.parametrize(
    "config",
    [
        VllmEngine(**START_SETTINGS, vllm_args={"tensor_parallel_size": 2}),
        pytest.param(
            VllmServerEngine(**START_SETTINGS, vllm_args={"data_parallel_size": 2}),
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
