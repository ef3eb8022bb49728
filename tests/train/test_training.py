"""A run that is started from Python: what it takes, what it gives back."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import debate_train
from debate_protocol.types import Protocol, Question, Transcript, Turn
from debate_rewards.credits import Credit, Score
from debate_train import StepEnd, train
from debate_train.errors import UsageError
from debate_train.function_reward import FunctionReward
from debate_train.reading.recipe_file import load_recipe
from debate_train.recipe import Recipe
from debate_train.training import _rewarded
from train.small_runs import RECIPE

SMALL = yaml.safe_load(RECIPE) | {"evaluation": {"questions": 0}}


def length(debate: Transcript) -> list[float]:
    return [float(len(turn.text)) for turn in debate.turns]


def test_train_learns_from_a_function_and_calls_after_each_step(tmp_path: Path) -> None:
    ends: list[StepEnd] = []
    trained = train(
        SMALL, ["steps=2"], output=tmp_path / "run", reward=length, on_step_end=ends.append
    )
    assert [(end.phase, end.step) for end in ends] == [("train", 1), ("train", 2)]
    for end in ends:
        (debate,), (score,) = end.transcripts, end.scores
        assert score.agents == tuple(length(debate))
        assert trained.metrics[end.step - 1]["loss"] == end.metrics["loss"]
    assert (trained.finished, trained.results) == (True, {})
    assert trained.checkpoint == tmp_path / "run/checkpoints/step-000002"
    kept = (tmp_path / "run/recipe.yaml").read_text()
    assert kept.startswith(f"# The reward was a function, '{length.__module__}.length'")
    assert load_recipe(tmp_path / "run/recipe.yaml", model=Recipe).recipe.steps == 2


def test_train_without_a_function_is_the_recipes_own_run(tmp_path: Path) -> None:
    recipe = Recipe.model_validate(yaml.safe_load(RECIPE) | {"steps": 1})
    trained = train(recipe, output=tmp_path / "run")
    assert {"table", "before", "after"} <= set(trained.results)
    again = train(recipe, ["steps=1"], output=tmp_path / "again")
    assert trained.metrics[0]["loss"] == again.metrics[0]["loss"]


def test_what_on_step_end_raises_ends_the_run_after_a_checkpoint(tmp_path: Path) -> None:
    def stop(end: StepEnd) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        train(SMALL, output=tmp_path / "run", on_step_end=stop)
    trained = train(SMALL, output=tmp_path / "run", resume=True)
    assert [row["step"] for row in trained.metrics] == [1, 2, 3]


@pytest.mark.parametrize(
    ("recipe", "overrides", "message"),
    [
        ("quickstrat", [], "did you mean quickstart?"),
        ({"name": "t", "stepz": 1}, [], "stepz: unknown key; did you mean steps?"),
        (SMALL, ["debate.num_agents=3", "rollout.max_tokens=4000"], "above the window"),
    ],
)
def test_train_refuses_a_wrong_recipe(recipe: Any, overrides: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        train(recipe, overrides)


def test_function_takes_the_place_of_rewards_but_not_of_imitation() -> None:
    recipe = load_recipe("quickstart", model=Recipe).recipe
    phases = _rewarded(recipe, length).phase_recipes()
    found = {name: phase.reward.type for name, phase in phases.items()}
    assert found == {"warm_start": "verifiable", "settle": "verifiable", "self_play": "function"}


@pytest.fixture
def two_turns() -> Transcript:
    turns = (Turn(0, 0, "<solution>7</solution>"), Turn(1, 0, "<solution>8</solution>"))
    return Transcript("d", Question("q", "3 + 4?"), Protocol(2), turns)


def test_function_may_value_debates_turns_or_all_credits(two_turns: Transcript) -> None:
    whole = Score((Credit(0, 0, "generator", 0.25),))
    for said, values in (
        (2, [2.0, 2.0]),
        (None, [None, None]),
        ([1, None], [1.0, None]),
        (whole, [0.25]),
    ):
        (score,) = FunctionReward.of(lambda _, said=said: said)([two_turns])
        assert [credit.value for credit in score.credits] == values


@pytest.mark.parametrize("said", ["text", [1.0], [1.0, "2"], True, object()])
def test_function_that_returns_something_else_is_refused(
    said: object, two_turns: Transcript
) -> None:
    with pytest.raises(ValueError, match="one of these for each of its 2 turns"):
        FunctionReward.of(lambda _: said)([two_turns])


def test_package_offers_what_starts_a_run() -> None:
    assert debate_train.__all__ == ["StepEnd", "Trained", "train"]
    assert set(debate_train.__all__) <= set(dir(debate_train))
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = debate_train.trian
