"""Questions of a step that are debated in several forms, in turn."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from debate_protocol.types import Gate
from debate_rollout.engines import ScriptedEngine
from debate_train.data import SignsPuzzle
from debate_train.models.scratch import word_tokenizer
from debate_train.playing import named_debates
from debate_train.recipe import Recipe
from debate_train.recipe.check import check
from debate_train.recipe.step_counts import step_counts
from train.contexts import Trainer, context, trained

SAID: dict[str, Any] = {"contract": "five_section", "style": "compact", "personas": "none"}
SELF = {"type": "self_debate", "first_turns": 2, "second_turns": 1, **SAID}
LARGE = {"type": "simultaneous", "num_agents": 5, "max_rounds": 1, **SAID}


def recipe(**changes: Any) -> Recipe:
    settings: dict[str, Any] = {
        "name": "t",
        "steps": 1,
        "model": {"type": "scratch"},
        "data": {"type": "signs_puzzle", "batch_size": 4},
        "debate": {"num_agents": 3, "max_rounds": 2, **SAID},
        "rollout": {"other_forms": [LARGE, SELF]},
        "reward": {"type": "verifiable"},
        "advantage": {"baseline": "question_round"},
    }
    return Recipe.model_validate(settings | changes)


def test_questions_are_debated_in_the_forms_in_turn() -> None:
    form = recipe(rollout={"other_forms": [LARGE, SELF], "direct_per_question": 1})
    alone = recipe(rollout={"direct_per_question": 1})
    questions = SignsPuzzle(batch_size=4).open().batch(0)
    first = []
    for one in (form, alone):
        runs = named_debates(one, questions, "train/0")
        waits = [next(run) for _, run in runs]
        assert not any(isinstance(found, Gate) for found in waits)
        first.append(
            [
                (name, [request.seed for request in found])
                for (name, _), found in zip(runs, waits, strict=True)
            ]
        )
    # Debate and single reply of each question; the first form again for the fourth question.
    assert [len(seeds) for _, seeds in first[0]] == [3, 1, 5, 1, 2, 1, 3, 1]
    assert [len(seeds) for _, seeds in first[1]] == [3, 1] * 4
    same = [pair for pair in zip(*first, strict=True) if len(pair[0][1]) == len(pair[1][1])]
    assert len(same) == 6 and all(ours == theirs for ours, theirs in same)


def test_the_check_counts_what_is_played() -> None:
    form = recipe(rollout={"other_forms": [LARGE, SELF], "direct_per_question": 1})
    # Two debates of 3 x 2 turns, one of 5, one of 2 + 1, and four single replies.
    assert step_counts(form, 4)[:3] == (4, 4, 2 * 6 + 5 + 3 + 4)
    lines = check(form).lines
    assert any("4 debates; x 6 or 5 or 3 turns + 4 direct replies = 24 turns" in x for x in lines)


def test_a_form_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValidationError, match="num_agents"):
        recipe(rollout={"other_forms": [LARGE | {"num_agents": 0}]})


@pytest.mark.parametrize("contract", ["five_section", "answer_line"])
def test_a_step_learns_from_all_its_forms(tmp_path: Path, contract: str) -> None:
    source = SignsPuzzle(batch_size=4).open()
    tokenizer = word_tokenizer(["Answer:"])
    player = ScriptedEngine().open(None, tokenizer, script=source.demonstrate)
    large = LARGE | {"contract": contract}
    form = recipe(advantage={"baseline": "none"}, rollout={"other_forms": [large, SELF]})
    trainer = Trainer()
    trained(context(form, tmp_path / "run", player, source, tokenizer), trainer)
    (batch,) = trainer.batches
    assert batch.turns == 2 * 6 + 5 + 3
    said = [tokenizer.decode(row.tokens[row.sampled_positions]) for row in batch.rows]
    assert sum("<solution>" not in one for one in said) == (5 if contract == "answer_line" else 0)
