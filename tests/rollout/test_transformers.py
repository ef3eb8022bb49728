"""The transformers engine against plain forward passes of the same model, and its cache of keys."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from torch import Tensor
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from debate_rollout.engine import NotFiniteError, Request, Sampling, Weights, WeightsError
from debate_rollout.engines import TransformersEngine
from debate_rollout.engines.sampling import Draws, StopStrings
from debate_rollout.engines.transformers_sampler import (
    ROOM,
    GrowingLayer,
    shared_key_attention,
    sharing_keys,
)
from debate_rollout.rendering import token_text
from debate_rollout.testing import turn_request

pytestmark = pytest.mark.numeric
SAMPLING = Sampling(max_tokens=16)


def requests_for(prompts: Sequence[Sequence[int]], sampling: Sampling = SAMPLING) -> list[Request]:
    return [
        Request(turn_request(), replace(sampling, seed=sampling.seed + k), tuple(prompt))
        for k, prompt in enumerate(prompts)
    ]


def score(model: Any, prompt: Sequence[int], ids: Sequence[int], temperature: float) -> list[float]:
    """Log-probabilities by one forward pass over prompt and reply, no cache, no padding."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    logps = (logits / temperature).log_softmax(-1)
    return [float(logps[k, token]) for k, token in enumerate(ids)]


@pytest.fixture(scope="module")
def model(tiny_model: Callable[..., Any], byte_bpe: Any) -> Any:
    return tiny_model(byte_bpe).double()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    lengths = [5, 40, 17, 5, 28, 40, 1]
    random_prompts = [torch.randint(3, 290, (n,), generator=generator).tolist() for n in lengths]
    return [*random_prompts, random_prompts[0], random_prompts[1]]  # equal prompts are run once


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("max_batch", [1, 4, 128])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_generate_reports_the_models_own_log_probabilities(
    model: Any, byte_bpe: Any, prompts: list[list[int]], max_batch: int, temperature: float
) -> None:
    engine = TransformersEngine(max_batch=max_batch).open(model, byte_bpe)
    sampling = replace(SAMPLING, temperature=temperature)
    for prompt, reply in zip(
        prompts, engine.generate(requests_for(prompts, sampling)), strict=True
    ):
        assert reply.prompt_ids == tuple(prompt)
        expected = score(model, prompt, reply.token_ids, temperature)
        assert reply.logps == pytest.approx(expected, abs=1e-12)
        assert reply.text == token_text(byte_bpe, reply.token_ids).text


@pytest.mark.usefixtures("float64")
def test_generate_equals_greedy_decoding_when_the_temperature_is_zero(
    model: Any, byte_bpe: Any, prompts: list[list[int]]
) -> None:
    engine = TransformersEngine().open(model, byte_bpe)
    greedy = replace(SAMPLING, temperature=0.0)
    for prompt, reply in zip(prompts, engine.generate(requests_for(prompts, greedy)), strict=True):
        generated = model.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=16, attention_mask=None
        )
        assert list(reply.token_ids) == generated[0, len(prompt) :].tolist()
        assert reply.logps == pytest.approx(score(model, prompt, reply.token_ids, 1.0), abs=1e-12)


@pytest.mark.usefixtures("float64")
def test_generate_ends_each_row_by_its_own_rule_when_rows_are_mixed(
    model: Any, byte_bpe: Any, prompts: list[list[int]]
) -> None:
    engine = TransformersEngine().open(model, byte_bpe)
    free = engine.generate(requests_for(prompts, replace(SAMPLING, max_tokens=40)))
    requests = requests_for(prompts, replace(SAMPLING, max_tokens=40))
    text = next(r.text for r in free if len(r.text) > 8 and "�" not in r.text[3:5])
    stops = [(), (text[3:5],), ("never said",)]
    requests = [
        replace(
            request, sampling=replace(request.sampling, max_tokens=5 + 4 * k, stop=stops[k % 3])
        )
        for k, request in enumerate(requests)
    ]
    for request, reply, free_reply in zip(requests, engine.generate(requests), free, strict=True):
        count = len(reply.token_ids)
        assert reply.token_ids == free_reply.token_ids[:count]
        assert reply.logps == pytest.approx(free_reply.logps[:count], abs=1e-12)
        ended = count and reply.token_ids[-1] == byte_bpe.eos_token_id
        stopped = any(stop in reply.text for stop in request.sampling.stop)
        expected = "end" if ended else "stop" if stopped else "length"
        assert reply.finish == expected
        assert expected != "length" or count == request.sampling.max_tokens
        before = token_text(byte_bpe, reply.token_ids[:-1]).text
        assert not any(stop in before for stop in request.sampling.stop)


@pytest.mark.usefixtures("float64")
def test_load_serves_adapters_and_then_full_weights_again(
    tiny_model: Callable[..., Any], byte_bpe: Any, prompts: list[list[int]]
) -> None:
    base = tiny_model(byte_bpe)
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    trained = get_peft_model(tiny_model(byte_bpe), config)
    engine = TransformersEngine().open(base, byte_bpe)
    for version in (1, 2):
        torch.manual_seed(version)
        for name, parameter in trained.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.2)
        tensors = get_peft_model_state_dict(trained)
        engine.load(Weights(version, tensors, "lora", config.to_dict()))
        reply = engine.generate(requests_for(prompts[:1]))[0]
        with_adapter = score(trained, prompts[0], reply.token_ids, 1.0)
        without = score(base, prompts[0], reply.token_ids, 1.0)
        assert reply.weight_version == version
        assert reply.logps == pytest.approx(with_adapter, abs=1e-12)
        assert max(abs(a - b) for a, b in zip(reply.logps, without, strict=True)) > 0.05
    engine.load(Weights(3, base.state_dict()))
    reply = engine.generate(requests_for(prompts[:1]))[0]
    assert reply.logps == pytest.approx(score(base, prompts[0], reply.token_ids, 1.0), abs=1e-12)


@pytest.mark.usefixtures("float64")
def test_load_refuses_weights_when_they_do_not_fit(model: Any, byte_bpe: Any) -> None:
    engine = TransformersEngine().open(model, byte_bpe)
    good = dict(model.state_dict())
    name = "model.layers.0.mlp.up_proj.weight"
    with pytest.raises(WeightsError, match="did you mean"):
        engine.load(Weights(1, good | {"model.layers.0.mlp.up_proj.wieght": good[name]}))
    with pytest.raises(WeightsError, match=r"shape \(2, 2\); expected \(128, 64\)"):
        engine.load(Weights(1, good | {name: torch.zeros(2, 2)}))
    del good[name]
    with pytest.raises(WeightsError, match=f"1 tensors are missing, such as '{name}'"):
        engine.load(Weights(1, good))
    before = engine.generate(requests_for([[5, 6]]))[0]
    assert before.weight_version == 0
    assert before.logps == pytest.approx(score(model, [5, 6], before.token_ids, 1.0), abs=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named_when_sampled(
    model: Any, byte_bpe: Any, value: float, temperature: float
) -> None:
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    next(t for name, t in weights.items() if "up_proj" in name)[3, 5] = value
    engine = TransformersEngine().open(model, byte_bpe)
    engine.load(Weights(1, weights))
    with pytest.raises(NotFiniteError, match="log-probabilities are not finite"):
        engine.generate(requests_for([[1, 2, 3]], Sampling(max_tokens=4, temperature=temperature)))


def states(rows: int, tokens: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.randn(rows, 2, tokens, 4, generator=generator) for _ in range(2))  # type: ignore[return-value]


def test_growing_layer_holds_what_a_dynamic_one_holds() -> None:
    generator = torch.Generator().manual_seed(0)
    growing = GrowingLayer()
    other = DynamicLayer()
    selections = [torch.tensor([0, 0, 1, 2]), torch.tensor([3, 1])]
    rows = 3
    for step in range(2 * ROOM + 5):
        new = states(rows, 7 if step == 0 else 1, generator)
        grown = growing.update(*new)
        expected = other.update(*new)
        assert all(torch.equal(a, b) for a, b in zip(grown, expected, strict=True))
        assert growing.get_seq_length() == other.get_seq_length() == 7 + step
        if step in (0, ROOM + 2):
            for layer in (growing, other):
                layer.batch_select_indices(selections[0])
            rows = len(selections[0])
            selections = selections[1:]
            assert torch.equal(growing.keys, other.keys)
            assert torch.equal(growing.values, other.values)


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("masked", [True, False])
def test_shared_key_attention_is_that_of_repeated_keys(tokens: int, masked: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(3, 6, tokens, 4, generator=generator).double()
    key, value = (state.double() for state in states(3, 9, generator))
    mask = None
    if masked:
        mask = torch.ones(3, 1, tokens, 9, dtype=torch.bool)
        mask[1, ..., :4] = False
    module = torch.nn.Module().eval()
    module.num_key_value_groups = 3  # type: ignore[assignment]
    arguments = (module, query, key, value, mask)
    settings = {"scaling": 0.3, "dropout": 0.0, "is_causal": False}
    attended = shared_key_attention(*arguments, **settings)[0]  # type: ignore[arg-type]
    expected = sdpa_attention_forward(*arguments, **settings)[0]  # type: ignore[arg-type]
    assert attended.shape == expected.shape == (3, tokens, 6, 4)
    assert torch.allclose(attended, expected, rtol=0, atol=1e-14)


def test_a_model_attends_as_before_once_sampling_is_over(
    tiny_model: Callable[..., Any], byte_bpe: Any
) -> None:
    model = tiny_model(byte_bpe)
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(KeyError), sharing_keys(model):
        assert model.config._attn_implementation != "sdpa"
        raise KeyError
    assert model.config._attn_implementation == "sdpa"
    model.config._attn_implementation = "eager"
    with sharing_keys(model):
        assert model.config._attn_implementation == "eager"


CPU = torch.device("cpu")
PLAIN = Sampling(max_tokens=1)
NEAR = 1e-14
"""Beside an edge: a few roundings of float64, the type in which edges are tested."""


def logits() -> Tensor:
    """Those of the probabilities 1/2, 1/4, 1/8, 1/8 at temperature 1, in the default type."""
    return torch.tensor([0.5, 0.25, 0.125, 0.125]).log()


def drawn(sampling: Sampling, uniform: float) -> int:
    """The id drawn at a given uniform."""
    draws = Draws.of([sampling], 1, CPU)
    draws.uniforms_BT[0, 0] = uniform
    return int(draws.draw(logits()[None], 0)[0])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("sampling", "edges"),
    [
        # Each id and the cumulative probability at which it ends.
        (PLAIN, [(0, 0.5), (1, 0.75), (2, 0.875), (3, 1.0)]),
        # T = 1/2 squares: 16, 4, 1, 1 of 22.
        (replace(PLAIN, temperature=0.5), [(0, 16 / 22), (1, 20 / 22), (2, 21 / 22), (3, 1.0)]),
        # Two likeliest: 1/2 and 1/4 of 3/4.
        (replace(PLAIN, top_k=2), [(0, 2 / 3), (1, 1.0)]),
        # Mass .6 needs two; the token that crosses the line is kept.
        (replace(PLAIN, top_p=0.6), [(0, 2 / 3), (1, 1.0)]),
        # At least 0.3 of the likeliest's 1/2: .15, so 1/8 goes.
        (replace(PLAIN, min_p=0.3), [(0, 2 / 3), (1, 1.0)]),
        # After top_k 3 masses are 4/7, 2/7, 1/7; .8 of it needs two.
        (replace(PLAIN, top_k=3, top_p=0.8), [(0, 2 / 3), (1, 1.0)]),
        (replace(PLAIN, temperature=0.0), [(0, 1.0)]),
        (replace(PLAIN, top_p=0.0), [(0, 1.0)]),
    ],
)
def test_draw_inverts_the_cumulative_distribution(
    sampling: Sampling, edges: list[tuple[int, float]]
) -> None:
    begin = 0.0
    for token, end in edges:
        assert drawn(sampling, begin + NEAR) == token
        assert drawn(sampling, end - NEAR) == token
        begin = end


@pytest.mark.usefixtures("float64")
def test_draw_reports_the_tempered_full_softmax_when_tokens_are_filtered() -> None:
    sampling = replace(PLAIN, temperature=0.5, top_k=1)
    _, logps = Draws.of([sampling], 1, CPU).draw(logits()[None], 0)
    assert float(logps) == pytest.approx(math.log(16 / 22), abs=1e-15)
    # Greedy: the log-probability at temperature 1.
    _, logps = Draws.of([replace(PLAIN, temperature=0.0)], 1, CPU).draw(logits()[None], 0)
    assert float(logps) == pytest.approx(math.log(0.5), abs=1e-15)


def test_draw_takes_a_possible_token_when_the_uniform_is_at_its_end() -> None:
    logits = torch.tensor([[0.0, 0.0, -math.inf]])
    draws = Draws.of([PLAIN], 1, CPU)
    for uniform, token in ((1 - 2**-53, 1), (0.0, 0)):
        draws.uniforms_BT[0, 0] = uniform
        assert int(draws.draw(logits, 0)[0]) == token


def first_stop(tokenizer: Any, stops: tuple[str, ...], ids: list[int]) -> int | None:
    """Where a reply would end: only tokens of the table are looked at."""
    tracker = StopStrings(tokenizer, stops, len(tokenizer))
    for k, token in enumerate(ids):
        if bool(tracker.may_complete_V[token]) and tracker.completed(ids[: k + 1][-tracker.tail :]):
            return k
    return None


@pytest.mark.parametrize("name", ["byte_bpe", "sentencepiece_style"])
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(ids=st.lists(st.integers(3, 270), max_size=30), data=st.data())
def test_completed_agrees_with_the_decoded_text_when_ids_are_arbitrary(
    name: str, ids: list[int], data: st.DataObject, request: pytest.FixtureRequest
) -> None:
    tokenizer = request.getfixturevalue(name)
    text = token_text(tokenizer, ids).text
    begin = data.draw(st.integers(0, max(0, len(text) - 1)))
    stop = text[begin : begin + data.draw(st.integers(1, 4))]
    # The first space may be stripped from the text.
    if not stop or "�" in stop or begin == 0 or f" {text}".startswith(stop):
        return
    expected = next(k for k in range(len(ids)) if stop in token_text(tokenizer, ids[: k + 1]).text)
    assert first_stop(tokenizer, (stop,), ids) == expected
