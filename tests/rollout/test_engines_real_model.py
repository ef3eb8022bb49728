"""Engines on a real tokenizer, chat template and weights: SmolLM2, in float32."""

from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain
from typing import Any

import pytest
import torch

from debate_protocol.forms import Simultaneous
from debate_protocol.types import Question, Transcript
from debate_rollout.drivers import play
from debate_rollout.engine import Weights
from debate_rollout.engines import TransformersEngine, VllmEngine
from debate_rollout.engines.sampling import plain_logps
from debate_rollout.rendering import token_text
from debate_rollout.testing import Bench, Refresh, check_engine
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
        Refresh(Weights(n, model.state_dict()), plain_logps(model))
        for n, model in enumerate(models, 1)
    ]
    results = check_engine(Bench(engine, plain_logps(base.model), refreshes, tolerance=NEAR))
    passed = [name for name, result in results.items() if result == "passed"]
    assert "full refresh" in passed
    assert len(passed) > 8
    engine.load(Weights(100, base.model.state_dict()))


def test_debate_stops_at_the_contract_and_its_tokens_are_exact(engine: Any, base: Any) -> None:
    debates = played(engine)
    turns = list(chain.from_iterable(debate.turns for debate in debates))
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
    contract = {"name": "own", "sections": ("solution",), "stop": "e"}
    form = Simultaneous(num_agents=2, max_rounds=2, personas="none", contract=contract)
    question = "Count to three in words, without anything else."
    return play([form.start(Question(f"q{n}", question), seed=n) for n in (1, 2)], engine,
                max_tokens=48)  # fmt: skip
