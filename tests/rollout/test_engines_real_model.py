"""Engines on a real tokenizer, chat template and weights: SmolLM2, in float32."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from debate_protocol.forms import Simultaneous
from debate_protocol.types import Question, Transcript
from debate_rollout.drivers import play
from debate_rollout.engine import Sampling, Weights
from debate_rollout.engines import TransformersEngine, VllmEngine
from debate_rollout.engines.sampling import plain_logps
from debate_rollout.rendering import token_text
from debate_rollout.testing import Bench, Refresh, check_engine, request, turn_request
from debate_train.errors import UsageError
from debate_train.models import PretrainedModel
from debate_train.models.gguf import fetch

NEAR = 2e-4
"""Two float32 programs with thirty layers; bfloat16 is off by hundredths."""
ALONE = {"enforce_eager": True, "kv_cache_mib": 256, "max_batch": 16, "context_window": 1024}
ENGINES = [
    pytest.param("transformers", marks=pytest.mark.slow),
    pytest.param(
        "vllm",
        marks=[
            pytest.mark.vllm,
            pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
        ],
    ),
]
pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def base() -> Any:
    """Return the model and its tokenizer."""
    try:
        fetch("smollm2")
    except UsageError as error:
        pytest.skip(f"SmolLM2 cannot be had here: {error}")
    return PretrainedModel(name="smollm2").load(0)


def fresh() -> Any:
    return PretrainedModel(name="smollm2").load(0).model


@pytest.mark.parametrize("named", ENGINES)
def test_adapters_are_served_each_alone(named: str, base: Any, adapter: Callable[..., Any]) -> None:
    # Before the engine of the other tests: one process holds one vLLM.
    def made(seed: int) -> tuple[Any, Weights]:
        model, weights = adapter(fresh(), seed)
        with torch.no_grad():
            for tensor in weights.tensors.values():
                tensor.mul_(0.1)
        return model, weights

    if named == "transformers":
        engine: Any = TransformersEngine(max_batch=16).open(made(3)[0], base.tokenizer)
    else:
        engine = VllmEngine(**ALONE, max_lora_rank=8).open(made(3)[0], base.tokenizer)
    try:
        for model, weights in (made(1), made(2)):
            engine.load(weights)
            (reply,) = engine.generate(
                [request(engine, turn_request(), Sampling(max_tokens=8, seed=3))]
            )
            expected = plain_logps(model)(reply.prompt_ids, reply.token_ids, 1.0)
            assert reply.logps == pytest.approx(expected, abs=NEAR)
            plain = plain_logps(base.model)(reply.prompt_ids, reply.token_ids, 1.0)
            assert max(abs(a - b) for a, b in zip(plain, expected, strict=True)) > 10 * NEAR
    finally:
        engine.close()


@pytest.fixture(scope="module", params=ENGINES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def engine(kind: str, base: Any) -> Iterator[Any]:
    settings = TransformersEngine(max_batch=16) if kind == "transformers" else VllmEngine(**ALONE)
    opened = settings.open(base.model, base.tokenizer)
    yield opened
    opened.close()


def test_engine_conforms_and_takes_new_weights(engine: Any, base: Any) -> None:
    other = fresh()
    with torch.no_grad():
        other.model.layers[3].mlp.up_proj.weight.mul_(0.5)
    models = (other, base.model)
    refreshes = [
        Refresh(Weights(n, one.state_dict()), plain_logps(one)) for n, one in enumerate(models, 1)
    ]
    found = check_engine(Bench(engine, plain_logps(base.model), refreshes, tolerance=NEAR))
    passed = [name for name, result in found.items() if result == "passed"]
    assert "full refresh" in passed and len(passed) > 8
    engine.load(Weights(100, base.model.state_dict()))


def test_debate_stops_at_the_contract_and_its_tokens_are_exact(engine: Any, base: Any) -> None:
    debates = played(engine)
    turns = [turn for debate in debates for turn in debate.turns]
    assert len(turns) == 8
    for turn in turns:
        reply = turn.reply
        assert reply is not None
        prompt = base.tokenizer.decode(reply.prompt_ids)
        assert prompt.startswith("<|im_start|>system\nYou take part in a debate.")
        assert prompt.endswith("<|im_start|>assistant\n")
        assert reply.text == token_text(base.tokenizer, reply.token_ids).text
        expected = plain_logps(base.model)(reply.prompt_ids, reply.token_ids, reply.temperature)
        assert reply.logps == pytest.approx(expected, abs=NEAR)
        assert reply.finish != "stop" or "e" in reply.text
    assert {turn.reply.finish for turn in turns if turn.reply} >= {"stop"}


def played(engine: Any) -> list[Transcript]:
    own = {"name": "own", "sections": ("solution",), "stop": "e"}
    form = Simultaneous(num_agents=2, max_rounds=2, personas="none", contract=own)
    question = "Count to three in words, without anything else."
    return play([form.start(Question(f"q{n}", question), seed=n) for n in (1, 2)], engine,
                max_tokens=48)  # fmt: skip
