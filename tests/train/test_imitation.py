"""Supervised phases never train against what is demonstrated, and refuse what teaches nothing."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from debate_rollout.engines import ScriptedEngine
from debate_train.batches.rows import Step
from debate_train.data.source import QuestionSource
from debate_train.errors import UsageError
from debate_train.recipe import Recipe
from train.contexts import Trainer, context, trained

DEMONSTRATED = {"type": "demonstrations", "errors": False}
BOXED = {"type": "direct", "contract": "boxed", "style": "compact", "personas": "none"}


TOO_LONG = "so " * 40
"""A solution that `max_tokens` cuts before its answer."""
TEMPLATE = "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}"


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=257, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([""], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", chat_template=TEMPLATE
    )


TOKENIZER = byte_tokenizer()


def supervised(path: Path, solutions: Sequence[str], **changes: Any) -> Recipe:
    rows = [
        {"question": f"make {i}", "answer": "42", "solution": solution, "kind": "number"}
        for i, solution in enumerate(solutions)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    settings: dict[str, Any] = {
        "name": "t",
        "steps": 4,
        "model": {"type": "scratch"},
        "data": {"path": str(path), "batch_size": 8},
        "debate": BOXED,
        "rollout": {"engine": DEMONSTRATED, "max_tokens": 100},
        "reward": {"type": "verifiable"},
        "advantage": {"baseline": "none"},
        "loss": {"type": "sft"},
    }
    return Recipe.model_validate(settings | changes)


def steps_of(recipe: Recipe, steps: int = 2) -> list[Step]:
    source = recipe.data.open()
    folder = Path(recipe.data.model_dump()["path"]).with_name("run")
    recipe = recipe.model_copy(update={"steps": steps})
    run = context(recipe, folder, ScriptedEngine(replies=("no",)).open(), source, TOKENIZER)
    try:
        return trained(run, Trainer())[1].steps
    finally:
        shutil.rmtree(folder)


def test_demonstrations_that_fail_or_are_wrong_weigh_nothing(tmp_path: Path) -> None:
    # A half is too long; of the others some are wrong, so that there is something to find.
    said = ["Six sevens.", TOO_LONG] * 30
    wrong = readable = 0
    rollout = {"engine": DEMONSTRATED | {"errors": True}, "max_tokens": 100}
    for step in steps_of(supervised(tmp_path / "q.jsonl", said, rollout=rollout)):
        texts = [t.turns[0].text for t in step.transcripts]
        weights = [row.over_tokens("advantages")[row.mask > 0] for row in step.batch.rows]
        assert [set(w) for w in weights] == [{float("42}" in text)} for text in texts]
        credits = np.concatenate([row.over_tokens("credits") for row in step.batch.rows], axis=1)
        assert credits.min() == 0.0
        failed = sum("boxed" not in text for text in texts)
        assert step.metrics["imitation/failed_turns"] == failed
        against = sum("{42}" not in text for text in texts)
        assert step.metrics["imitation/turns_against"] == against
        wrong += against - failed
        readable += len(texts) - failed
    assert 0 < wrong < readable


def test_no_stream_weight_trains_against_a_demonstration(tmp_path: Path) -> None:
    streams = {"generator": {"weight": -1.0}}
    recipe = supervised(
        tmp_path / "q.jsonl",
        ["\\boxed{42}"] * 20,
        advantage={"baseline": "none", "streams": streams},
    )
    (step,) = steps_of(recipe, 1)
    assert all(not row.advantages.any() for row in step.batch.rows)
    assert step.metrics["imitation/turns_against"] == 8


def test_demonstrations_without_the_comparisons_that_are_asked_for_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = "<solution>42</solution><evaluation>N/A</evaluation><comparison>N/A</comparison>"
    monkeypatch.setattr(QuestionSource, "demonstrate", lambda *_, **__: silent)
    debate = {"num_agents": 3, "max_rounds": 2, "style": "compact", "personas": "none"}
    recipe = supervised(tmp_path / "q.jsonl", ["42"] * 60, debate=debate)
    with pytest.raises(UsageError, match="asked to compare others and do not"):
        steps_of(recipe)
    (step,) = steps_of(
        recipe.model_copy(update={"debate": recipe.debate.model_copy(update={"max_rounds": 1})}), 1
    )
    assert all(row.advantages.any() for row in step.batch.rows)
