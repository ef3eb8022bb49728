"""A run that is started from Python: what it takes, what it gives back."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import debate_train
from debate_protocol.types import Protocol, Question, Transcript, Turn
from debate_rewards.reward import Credit, FunctionReward, Score, ScoreError, score_debates
from debate_train import StepEnd, train
from debate_train.advantages import Advantages
from debate_train.errors import UsageError
from debate_train.recipe import Recipe
from debate_train.recipe.files import load_recipe
from debate_train.running.run import _rewarded
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
    assert yaml.safe_load(kept)["reward"] == {"type": f"{length.__module__}:length"}


def test_train_without_a_function_is_the_recipes_own_run(tmp_path: Path) -> None:
    recipe = Recipe.model_validate(yaml.safe_load(RECIPE) | {"steps": 1})
    trained = train(recipe, output=tmp_path / "run")
    assert repr(trained).startswith(f"Trained({str(tmp_path / 'run')!r}, finished, ")
    assert len(repr(trained)) < 300 + len(str(tmp_path))
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
        ("quickstrat", [], "did you mean 'quickstart'?"),
        ({"name": "t", "stepz": 1}, [], "^recipe: steps: missing; expected a value"),
        (SMALL, ["debate.num_agents=3", "rollout.max_tokens=4000"], "above the window"),
    ],
)
def test_train_refuses_a_wrong_recipe(recipe: Any, overrides: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        train(recipe, overrides)


def test_function_takes_the_place_of_rewards_but_not_of_imitation() -> None:
    recipe = load_recipe("from_nothing", model=Recipe).recipe
    phases = _rewarded(recipe, length).phase_recipes()
    found = {name: phase.reward.type for name, phase in phases.items()}
    own = f"{length.__module__}:length"
    assert found == {"warm_start": "verifiable", "settle": "verifiable", "self_play": own}


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
        ([np.float32(0.5), torch.tensor(2)], [0.5, 2.0]),
        (np.float64(0.5), [0.5, 0.5]),
        (whole, [0.25]),
    ):
        (score,) = FunctionReward.of(lambda _, said=said: said)([two_turns])
        assert [credit.value for credit in score.credits] == values


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("text", "found 'text' for debate 'd', agent 0, round 0, stream 'generator'; expected"),
        ([1.0], "one of these for each of its 2 turns"),
        ([1.0, "2"], "found '2' for debate 'd', agent 1, round 0, stream 'generator'; expected"),
        (True, "found True for debate 'd'"),
        (object(), "found <object object at"),
        (math.nan, "found nan for debate 'd'"),
        (-math.inf, "found -inf for debate 'd'"),
        (10**400, "found 1329 bits for debate 'd'"),
        pytest.param(10**5000, "found 16610 bits for debate", id="huge"),
        (1e39, "found 1e[+]39 for debate 'd'"),
        (np.float32("nan"), r"found np.float32\(nan\) for debate 'd'"),
        (np.ones(1), "expected None or .* 3.4e[+]38: for a number for each turn return a list"),
        (torch.ones(2), "found tensor.* number for each turn return a list .array.tolist"),
        ([np.ones(2), 1.0], "found array.* for a number for each turn return a list"),
    ],
)
def test_function_that_returns_something_else_is_refused(
    said: object, message: str, two_turns: Transcript
) -> None:
    with pytest.raises(ScoreError, match=message):
        FunctionReward.of(lambda _: said)([two_turns])


def test_score_of_a_function_is_checked_where_rewards_enter(two_turns: Transcript) -> None:
    def score(value: Any, **returns: Any) -> list[Score]:
        own = Score((Credit(1, 0, "judge", value),), (0.5, value), returns=returns)
        return score_debates(FunctionReward.of(lambda _: own), [two_turns])

    (found,) = score(np.float32(0.25))
    assert (found.credits[0].value, found.agents) == (0.25, (0.5, 0.25))
    assert type(found.credits[0].value) is type(found.agents[1]) is float
    with pytest.raises(ScoreError, match="debate 'd', agent 1, round 0, stream 'judge'"):
        score(math.nan)
    with pytest.raises(ScoreError, match="found inf for debate 'd', agent 0, stream 'return'"):
        score(0.0, part=(math.inf,))


def test_agents_of_a_score_are_the_means_of_its_credits_when_it_leaves_them_out(
    two_turns: Transcript,
) -> None:
    credits = (Credit(0, 0, "generator", 1.0), Credit(0, 0, "judge", 0.5))
    (score,) = score_debates(FunctionReward.of(lambda _: Score(credits)), [two_turns])
    assert score.agents == (0.75, None)


def test_run_that_a_score_stops_goes_on_from_a_checkpoint_that_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = SMALL | {"advantage": {"type": "role_ema"}}
    calls = iter([1.0, 2.0, math.nan])
    with pytest.raises(ScoreError, match="found nan for debate 'train/2/0/0', agent 0, round 0"):
        train(recipe, output=tmp_path / "run", reward=lambda _: next(calls))
    assert "a checkpoint of step 2 is written" in capsys.readouterr().err
    resumed = train(recipe, output=tmp_path / "run", reward=lambda _: 3.0, resume=True)
    values = iter([1.0, 2.0, 3.0])
    whole = train(recipe, output=tmp_path / "whole", reward=lambda _: next(values))
    ends = [one.metrics[-1]["advantage/baseline/generator/debater"] for one in (resumed, whole)]
    assert ends[0] == ends[1] is not None
    weights = [(one.checkpoint or Path()) / "model.safetensors" for one in (resumed, whole)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_baselines_that_are_not_finite_reach_no_state() -> None:
    with pytest.raises(ScoreError, match="advantage: found nan as baseline 'generator/debater'"):
        Advantages([], {"generator/debater": math.nan})


def test_package_offers_what_starts_a_run() -> None:
    assert debate_train.__all__ == ["StepEnd", "Trained", "train"]
    assert set(debate_train.__all__) <= set(dir(debate_train))
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = debate_train.trian
