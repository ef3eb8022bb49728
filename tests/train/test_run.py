"""A run that is started from Python: its arguments, its results, what a function may return."""

import math

import numpy as np
import pytest
import torch
import yaml

from debate_protocol.types import Protocol, Question, Transcript, Turn
from debate_rewards.reward import Credit, FunctionReward, Score, ScoreError, score_debates
from debate_train import train
from debate_train.advantages import Advantages
from debate_train.errors import UsageError
from debate_train.recipe import Recipe
from debate_train.recipe.files import load_recipe
from debate_train.running.run import with_reward
from train.small_runs import RECIPE

SMALL = yaml.safe_load(RECIPE) | {"evaluation": {"questions": 0}}


def length(debate):
    return [float(len(turn.text)) for turn in debate.turns]


def test_train_learns_from_a_function_and_calls_after_each_step(tmp_path):
    ends = []
    output = tmp_path / "run"
    run = train(SMALL, ["steps=2"], output=output, reward=length, on_step_end=ends.append)
    assert [(end.phase, end.step) for end in ends] == [("train", 1), ("train", 2)]
    for end in ends:
        (debate,), (score,) = end.transcripts, end.scores
        assert score.agents == tuple(length(debate))
        assert run.metrics[end.step - 1]["loss"] == end.metrics["loss"]
    assert (run.finished, run.results) == (True, {})
    assert run.checkpoint == output / "checkpoints/step-000002"
    recipe = yaml.safe_load((output / "recipe.yaml").read_text())
    assert recipe["reward"] == {"type": f"{length.__module__}:length"}


@pytest.mark.parametrize(
    ("recipe", "overrides", "message"),
    [
        ("quickstrat", [], r"did you mean 'quickstart'\?"),
        ({"name": "t", "stepz": 1}, [], "^recipe: steps: missing; expected a value"),
        (SMALL, ["debate.num_agents=3", "rollout.max_tokens=4000"], "above the window"),
    ],
    ids=["name", "key", "window"],
)
def test_train_refuses_a_wrong_recipe(recipe, overrides, message):
    with pytest.raises(UsageError, match=message):
        train(recipe, overrides)


def test_function_takes_the_place_of_rewards_but_not_of_imitation():
    phases = with_reward(load_recipe("from_nothing", model=Recipe).recipe, length).phase_recipes()
    assert {name: phase.reward.type for name, phase in phases.items()} == {
        "warm_start": "verifiable",
        "settle": "verifiable",
        "self_play": f"{length.__module__}:length",
    }


# What a function may return

TWO_TURNS = Transcript(
    "d",
    Question("q", "3 + 4?"),
    Protocol(2),
    (Turn(0, 0, "<solution>7</solution>"), Turn(1, 0, "<solution>8</solution>")),
)


@pytest.mark.parametrize(
    ("result", "values"),
    [
        (2, [2.0, 2.0]),
        (None, [None, None]),
        ([1, None], [1.0, None]),
        ([np.float32(0.5), torch.tensor(2)], [0.5, 2.0]),
        (np.float64(0.5), [0.5, 0.5]),
        (Score((Credit(0, 0, "generator", 0.25),)), [0.25]),
    ],
)
def test_function_may_value_debates_turns_or_all_credits(result, values):
    (score,) = FunctionReward.of(lambda _: result)([TWO_TURNS])
    assert [credit.value for credit in score.credits] == values


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("text", "found 'text' for debate 'd', agent 0, round 0, stream 'generator'; expected"),
        ([1.0, "2"], "found '2' for debate 'd', agent 1, round 0, stream 'generator'; expected"),
        (math.nan, "found nan for debate 'd'"),
        (1e39, "found 1e[+]39 for debate 'd'"),
        (np.ones(1), "expected None or .* 3.4e[+]38: for a number for each turn return a list"),
        ([np.ones(2), 1.0], "found array.* for a number for each turn return a list"),
    ],
    ids=["text", "turn", "nan", "large", "array", "list"],
)
def test_function_that_returns_something_else_is_refused(result, message):
    with pytest.raises(ScoreError, match=message):
        FunctionReward.of(lambda _: result)([TWO_TURNS])


def score_of(value, **returns):
    score = Score((Credit(1, 0, "judge", value),), (0.5, value), returns=returns)
    return score_debates(FunctionReward.of(lambda _: score), [TWO_TURNS])[0]


def test_score_of_a_function_is_checked_where_rewards_enter():
    score = score_of(np.float32(0.25))
    assert (score.credits[0].value, score.agents) == (0.25, (0.5, 0.25))
    assert type(score.credits[0].value) is type(score.agents[1]) is float
    with pytest.raises(ScoreError, match="debate 'd', agent 1, round 0, stream 'judge'"):
        score_of(math.nan)
    with pytest.raises(ScoreError, match="found inf for debate 'd', agent 0, stream 'return'"):
        score_of(0.0, total=(math.inf, None))
    with pytest.raises(ScoreError, match="advantage: found nan as baseline 'generator/debater'"):
        Advantages([], {"generator/debater": math.nan})


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([Score((Credit(1, 1, "generator", 1.0),))], "found Credit.agent=1, round=1.*a turn of"),
        ([Score((Credit(0, 0, "generator", 1.0, span=(0, 999)),))], "span inside of its text"),
        ([Score((), (1.0,))], r"found \(1.0,\) for debate 'd'; expected .* each of its 2 agents"),
        ([Score((), (None, None), returns={"a": (1.0,)})], "for each of its 2 agents"),
        ([], "expected 1 scores, one a debate"),
        ([1.0], "expected 1 scores, one a debate"),
        (None, "found None; expected 1 scores"),
    ],
)
def test_value_that_no_token_learns_from_is_refused(scores, message):
    with pytest.raises(ScoreError, match=message):
        score_debates(lambda _: scores, [TWO_TURNS])


def test_run_that_a_score_stops_goes_on_from_a_checkpoint_that_works(tmp_path, capsys):
    recipe = SMALL | {"advantage": {"type": "role_ema"}}

    def train_with(folder, values, **options):
        scores = iter(values)
        return train(recipe, output=tmp_path / folder, reward=lambda _: next(scores), **options)

    with pytest.raises(ScoreError, match="found nan for debate 'train/2/0/0', agent 0, round 0"):
        train_with("run", [1.0, 2.0, math.nan])
    assert "a checkpoint of step 2 is written" in capsys.readouterr().err
    resumed = train_with("run", [3.0], resume=True)
    whole = train_with("whole", [1.0, 2.0, 3.0])
    baseline = "advantage/baseline/generator/debater"
    assert resumed.metrics[-1][baseline] == whole.metrics[-1][baseline]
    weights = "model.safetensors"
    assert (resumed.checkpoint / weights).read_bytes() == (whole.checkpoint / weights).read_bytes()
