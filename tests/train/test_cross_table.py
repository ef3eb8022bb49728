"""The cross table of an actor and a critic: each trained side with the other as it was."""

import json
from pathlib import Path
from typing import Any

from debate_protocol.types import TRAINED, Question, TurnRequest
from debate_rollout.engines import ScriptedEngine
from debate_train.commands.cli import main
from debate_train.commands.evaluate import main as evaluate_policies
from debate_train.evaluation.measuring import evaluate
from debate_train.recipe import Recipe
from train.two_adapters import settings

QUESTIONS = [Question(f"q{n}", "Is it so?", "yes", meta={"kind": "yes_no"}) for n in range(4)]
DEBATE: dict[str, Any] = {
    "type": "actor_critic",
    "contract": "boxed",
    "max_rounds": 2,
    "roles": {"actor": {"adapter": "first"}, "critic": {"adapter": "second"}},
}


def said(request: TurnRequest) -> str:
    """Right on 1 question of 4, on 2 more if the actor is trained, on 1 more if the critic is."""
    if request.agent == 1:
        return "trained feedback" if request.policy == TRAINED else "other feedback"
    is_heard = any("trained feedback" in message["content"] for message in request.messages)
    right = 1 + 2 * (request.policy == TRAINED) + is_heard
    return f"\\boxed{{{'yes' if QUESTIONS.index(request.question) < right else 'no'}}}"


def asked(base: str, **changes: Any) -> dict[str, Any]:
    evaluation = {"direct_samples": 1, "questions": 2, "modes": {"cross": {"type": "opponents"}}}
    return settings(base, {}, debate=DEBATE, evaluation=evaluation) | changes


def test_mode_opponents_is_the_cross_table(base: str) -> None:
    recipe = Recipe.model_validate(asked(base))
    engine = ScriptedEngine().open(script=said)
    found = evaluate(recipe.evaluated(), engine, QUESTIONS, "dev").means()
    assert found["eval/last_round/accuracy"] == 1.0  # Both are trained.
    assert found["eval/cross/learned/accuracy/seat_1"] == 0.75  # The actor alone.
    assert found["eval/cross/opponent/accuracy"] == 0.5  # The critic alone: the actor is not.


def test_command_measures_both_sides_alone_against_the_start(base: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(json.dumps(asked(base, steps=1, evaluation={"questions": 2})))
    off = "evaluation.questions=0"
    run, output = tmp_path / "run", tmp_path / "evaluation"
    assert main([str(file), off, "--output", str(run)]) == 0
    arguments = [str(file), "--policy", "recipe", "--policy", f"acc={run}"]
    assert (
        evaluate_policies([*arguments, "--against", "start=recipe", "--output", str(output)]) == 0
    )
    results = (output / "results.json").read_text()
    assert "against-start/learned/accuracy/seat_1" in results
    assert "against-start/opponent/accuracy" in results
