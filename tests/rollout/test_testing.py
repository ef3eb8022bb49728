"""Every engine passes the conformance suite; engines that break a rule do not."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

from debate_protocol.forms import Simultaneous
from debate_protocol.types import Question, Reply, Transcript
from debate_rollout.drivers import play
from debate_rollout.engine import Engine, Finished, MissingExtraError, Request, Weights, streaming
from debate_rollout.engines import ScriptedEngine, TransformersEngine, VllmEngine
from debate_rollout.engines.sampling import plain_logps
from debate_rollout.engines.scripted import Delay, ScriptedStream
from debate_rollout.rendering import token_text
from debate_rollout.testing import CHECKS, Bench, Refresh, check_engine
from debate_train.errors import UsageError
from debate_train.models import PretrainedModel
from debate_train.models.gguf import fetch

QUICK = Delay(median_s=0.001)


def full(model: Any, version: int = 1) -> Refresh:
    return Refresh(Weights(version, model.state_dict()), plain_logps(model))


def adapter(base: Any, seed: int) -> Refresh:
    torch.manual_seed(seed)
    config = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.2)
    tensors = get_peft_model_state_dict(model)
    return Refresh(Weights(1, tensors, "lora", config.to_dict()), plain_logps(model))


def bench_of(engine: Engine, tokenizer: Any, tiny_model: Callable[..., Any]) -> Bench:
    """All that the checks can use, on the model of seed 0."""
    refreshes = (
        full(tiny_model(tokenizer, seed=1)),
        full(tiny_model(tokenizer, seed=2)),
        adapter(tiny_model(tokenizer, seed=2), 3),
        adapter(tiny_model(tokenizer, seed=2), 4),
    )
    return Bench(engine, plain_logps(tiny_model(tokenizer)), refreshes)


@pytest.mark.parametrize("name", ["byte_bpe", "sentencepiece_style"])
def test_transformers_engine_conforms(
    name: str, tiny_model: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    tokenizer = request.getfixturevalue(name)
    engine = TransformersEngine(max_batch=2).open(tiny_model(tokenizer), tokenizer)
    results = check_engine(bench_of(engine, tokenizer, tiny_model))
    engine.close()
    left_out = {check for check, result in results.items() if result != "passed"}
    streams = {check.name for check in CHECKS if {"streams", "load_in_flight"} & {*check.needs}}
    single = {"stop string inside a token"} if name == "sentencepiece_style" else set[str]()
    assert left_out == streams | single | {"prefix cache dropped", "death is named"}


def script(asked_turn: Any) -> str:
    return f"I am {asked_turn.agent}: {asked_turn.messages[-1]['content']} 🙂"


@pytest.mark.parametrize("delay", [None, QUICK])
def test_scripted_engine_conforms_with_and_without_a_tokenizer(
    byte_bpe: Any, delay: Delay | None
) -> None:
    def dead(*_: Any) -> Any:
        raise ConnectionError("engine process ended")

    check_engine(ScriptedEngine(delay=delay).open(script=script))
    engine = ScriptedEngine(context_window=200, delay=delay).open(None, byte_bpe, script=script)
    stopped = "submit" if delay else "generate"
    results = check_engine(Bench(engine, kill=lambda: setattr(engine, stopped, dead)))
    assert results["death is named"] == "passed"
    assert (results["cancellation"] == "passed") == (delay is not None)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda r: replace(r, logps=r.logps[1:]), "one log-probability"),
        (lambda r: replace(r, text=r.text + "."), None),
        (lambda r: replace(r, prompt_ids=(1,)), "prompt"),
        (lambda r: replace(r, finish="end"), None),
        (lambda r: replace(r, weight_version=9), "version"),
        (lambda r: replace(r, token_ids=r.token_ids * 4, logps=r.logps * 4), None),
    ],
)
def test_check_engine_fails_when_a_rule_is_broken(
    spoil: Callable[[Reply], Reply],
    message: str | None,
    tiny_model: Callable[..., Any],
    byte_bpe: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = TransformersEngine().open(tiny_model(byte_bpe), byte_bpe)
    right = engine.generate
    monkeypatch.setattr(engine, "generate", lambda requests: [spoil(r) for r in right(requests)])
    with pytest.raises(AssertionError, match=message):
        check_engine(engine, Weights(3, tiny_model(byte_bpe).state_dict()))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("twice", "returned twice|not open"),
        ("after cancel", "not open|cancelled"),
        ("other replies", "another reply"),
        ("never", "no reply within"),
        ("late", "at once"),
    ],
)
def test_check_engine_fails_when_a_stream_breaks_a_rule(
    fault: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("debate_rollout.testing._PATIENCE_S", 0.5)
    monkeypatch.setattr("debate_rollout.testing._AT_ONCE_S", 0.2)

    class Wrong(ScriptedStream):
        def collect(self, timeout_s: float) -> list[Finished]:
            if fault == "late":
                time.sleep(0.3)
            finished = super().collect(timeout_s)
            return finished * 2 if fault == "twice" else [] if fault == "never" else finished

        def cancel(self, ticket: int) -> None:
            if fault != "after cancel":
                super().cancel(ticket)

        def submit(self, request: Request) -> int:
            if fault == "other replies":
                request = replace(request, turn_request=replace(request.turn_request, agent=7))
            return super().submit(request)

        def generate(self, requests: Sequence[Request]) -> list[Reply]:
            return self._engine.generate(requests)

    engine = Wrong(ScriptedEngine().open(script=script), QUICK)
    assert streaming(engine) is engine
    with pytest.raises(AssertionError, match=message):
        check_engine(engine)


def spoil_stale(engine: Any) -> None:
    """Weights are noted, not loaded."""
    engine.load = lambda weights: setattr(engine, "_version", weights.version)


def spoil_half(engine: Any) -> None:
    """What fits is loaded before the rest is refused."""

    right = engine.load

    def load(weights: Weights) -> None:
        if weights.kind == "lora":
            return right(weights)  # type: ignore[no-any-return]
        engine._model = getattr(engine._model, "unload", lambda: engine._model)()
        engine._adapters = {}
        served = engine._model.state_dict()
        names = [name for name in weights.tensors if name in served]
        engine._model.load_state_dict({n: weights.tensors[n] for n in names}, strict=False)
        if set(names) != set(weights.tensors) or len(names) < len(served):
            raise ValueError("no such weights")
        engine._version = weights.version

    engine.load = load


def spoil_temperature(engine: Any) -> None:
    """Log-probabilities before the temperature."""
    right = engine.generate

    def generate(requests: Sequence[Request]) -> list[Reply]:
        raw = [replace(r, sampling=replace(r.sampling, temperature=1.0)) for r in requests]
        told = [r.sampling.temperature for r in requests]
        return [replace(r, temperature=t) for r, t in zip(right(raw), told, strict=True)]

    engine.generate = generate


def spoil_adapters(engine: Any) -> None:
    """Every ask is answered with the first adapter."""
    right = engine.generate

    def generate(requests: Sequence[Request]) -> list[Reply]:
        replies: list[Reply] = right(
            [replace(r, turn_request=replace(r.turn_request, adapter=None)) for r in requests]
        )
        return replies

    engine.generate = generate


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_adapters, "adapter second: log-probabilities at temperature 1 differ"),
        (spoil_stale, "the same log-probabilities|differ from the trainer's"),
        (spoil_half, "other weights are served"),
        (spoil_temperature, "at temperature 0.6 differ from the trainer's"),
    ],
)
def test_check_engine_fails_when_other_weights_or_distributions_are_served(
    spoil: Callable[[Any], None],
    message: str,
    tiny_model: Callable[..., Any],
    byte_bpe: Any,
) -> None:
    engine = TransformersEngine().open(tiny_model(byte_bpe), byte_bpe)
    spoil(engine)
    with pytest.raises(AssertionError, match=message):
        check_engine(bench_of(engine, byte_bpe, tiny_model))


def test_import_brings_no_torch() -> None:
    code = (
        "import sys, debate_rollout, debate_rollout.drivers, debate_rollout.engines,"
        "debate_rollout.rendering, debate_rollout.testing;"
        "print(sorted({'torch', 'transformers', 'vllm'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "[]"


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


@pytest.mark.real_model
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


@pytest.mark.real_model
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


def test_vllm_engine_says_what_to_install_when_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    for name in ("vllm.start", "vllm.sampler"):
        monkeypatch.delitem(sys.modules, f"debate_rollout.engines.{name}", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install .*'vllm==0\.32"):
        VllmEngine().open("anywhere", None)
