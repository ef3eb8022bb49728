"""Every engine passes the conformance suite; engines that break a rule do not."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from debate_protocol.types import Reply
from debate_rollout.engine import Weights
from debate_rollout.engines import EngineConfig, ScriptedEngine, TransformersEngine, VllmEngine
from debate_rollout.errors import MissingExtraError
from debate_rollout.testing import check_engine


@pytest.mark.parametrize("name", ["byte_bpe", "sentencepiece_style", "word_level"])
def test_transformers_engine_conforms(
    name: str, tiny_model: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    tokenizer = request.getfixturevalue(name)
    engine = TransformersEngine(max_batch=2).open(tiny_model(tokenizer), tokenizer)
    check_engine(engine, Weights(3, tiny_model(tokenizer, seed=1).state_dict()))
    engine.close()


def test_scripted_engine_conforms_with_and_without_a_tokenizer(byte_bpe: Any) -> None:
    def script(one: Any) -> str:
        return f"I am {one.agent}: {one.messages[-1]['content']} 🙂"

    check_engine(ScriptedEngine().open(script=script), Weights(3, {}))
    check_engine(
        ScriptedEngine(context_window=200).open(None, byte_bpe, script=script), Weights(3, {})
    )


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


def test_engine_config_is_chosen_by_type() -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(EngineConfig)
    assert adapter.validate_python({"type": "transformers", "max_batch": 8}).max_batch == 8
    assert isinstance(adapter.validate_python({"type": "vllm"}), VllmEngine)
    with pytest.raises(ValidationError, match="Extra inputs"):
        adapter.validate_python({"type": "scripted", "reply": ["x"]})


def test_vllm_engine_says_what_to_install_when_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    for name in ("vllm_start", "vllm_sampler"):
        monkeypatch.delitem(sys.modules, f"debate_rollout.engines.{name}", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'debate-rollout\[vllm\]'"):
        VllmEngine().open("anywhere", None)


def test_import_brings_no_torch() -> None:
    code = (
        "import sys, debate_rollout, debate_rollout.drivers, debate_rollout.engines,"
        "debate_rollout.rendering, debate_rollout.testing, debate_rollout.token_text;"
        "assert not {'torch', 'transformers', 'vllm'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
