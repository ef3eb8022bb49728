"""Roles that other policies speak for: frozen weights, other models, engines of their own."""

import copy
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from debate_protocol.transcripts.files import from_json, to_json
from debate_protocol.types import TRAINED, Transcript, Turn, role_of
from debate_rollout.routing import RoutedEngine
from debate_train.batches.row_types import Batch
from debate_train.batches.rows import Step, build_batch
from debate_train.commands.cli import main
from debate_train.models import ScratchModel
from debate_train.playing import start_debates
from debate_train.recipe import Recipe
from debate_train.recipe.check import check
from debate_train.recipe.conflicts import sampling_problems
from debate_train.running.open_engines import open_engine
from debate_train.running.step_metrics import role_rewards
from train.small_runs import AHEAD, RECIPE, end_of

pytestmark = pytest.mark.numeric

RATE = 0.01
SMALL = {"type": "scratch", "hidden_size": 8, "layers": 1, "heads": 1, "kv_heads": 1} | {
    "head_dim": 8,
    "ffn_size": 8,
}
OTHER = {**SMALL, "hidden_size": 16}
LEARNER_AGAINST_START = {"learner": {}, "opponent": {"policy": "start", "temperature": 0.7}}
FROZEN_JUDGE = {
    "debater": {"count": 2, "sees": {"debater": -1}},
    "judge": {"policy": "start", "answers": False},
}
TWO_MODELS = {"ours": {"temperature": 0.75}, "theirs": {"policy": "rival"}}


def recipe(roles: dict[str, Any], **rollout: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "roles",
            "steps": 2,
            "model": SMALL,
            "data": {"type": "signs_puzzle", "batch_size": 2, "num_digits": 3, "largest_digit": 4},
            "debate": {"max_rounds": 2, "style": "compact", "personas": "none", "roles": roles},
            "rollout": {"max_tokens": 6, **rollout},
            "reward": {"type": "verifiable"},
            "advantage": {"baseline": "none"},
            "loss": {"type": "reinforce", "aggregation": "token_sum"},
            "trainer": {
                "type": "torch",
                "device": "cpu",
                "learning_rate": RATE,
                "schedule": "constant",
                "max_grad_norm": float("inf"),
                "optimizer": {"type": "torch", "name": "SGD"},
            },
            "evaluation": {"questions": 0},
            "tracking": {"wandb": False},
        }
    )


Taken = tuple[Sequence[Transcript], Batch, dict[str, torch.Tensor], dict[str, torch.Tensor]]


def two_steps(asked: Recipe, loaded: Any, engine: Any) -> Iterator[Taken]:
    """Train two steps; yield debates, batch, and the policy's weights before and after each."""
    source = asked.data.open(asked.seed)
    trainer = asked.trainer.open(loaded, asked.loss, asked.steps)
    for step in range(2):
        debates = start_debates(asked, source.batch(step), f"train/{step}")
        played = asked.rollout.play(debates, engine)
        found = asked.advantage.compute(played, asked.reward(played), {})
        batch = build_batch(played, found.turns, asked.advantage.streams, loaded.tokenizer)
        before = copy.deepcopy(loaded.model.state_dict())
        trainer.step(batch)
        engine.load(trainer.weights(step + 1))
        yield played, batch, before, loaded.model.state_dict()
    trainer.close()


def logps_of(model: Any, turn: Turn) -> torch.Tensor:
    """The log-probabilities of a turn's tokens at its temperature, shape (T,)."""
    assert turn.reply is not None
    reply = turn.reply
    ids = torch.tensor([[*reply.prompt_ids, *reply.token_ids]])
    logits = model(ids).logits[0, len(reply.prompt_ids) - 1 : -1]
    logps = (logits / reply.temperature).log_softmax(-1)
    return logps.gather(1, torch.tensor(reply.token_ids)[:, None])[:, 0]


@pytest.mark.parametrize(
    ("roles", "policies", "frozen_model"),
    [
        (LEARNER_AGAINST_START, {}, SMALL),
        (FROZEN_JUDGE, {}, SMALL),
        (TWO_MODELS, {"rival": {"type": "model", "model": OTHER}}, OTHER),
    ],
    ids=["against the start", "frozen judge", "two models"],
)
def test_only_the_trained_roles_teach_in_two_exact_steps(
    float64: None, roles: dict[str, Any], policies: dict[str, Any], frozen_model: dict[str, Any]
) -> None:
    asked = recipe(roles, policies=policies)
    loaded = asked.model.load(asked.seed)
    learner = copy.deepcopy(loaded.model)
    frozen = ScratchModel.model_validate(frozen_model).load(asked.seed).model
    with_engine = open_engine(asked, loaded)
    assert isinstance(with_engine, RoutedEngine)
    trained = set(asked.debate.trained_agents())
    for step, (played, batch, before, after) in enumerate(two_steps(asked, loaded, with_engine)):
        learner.load_state_dict(before)
        taught = []
        for debate in played:
            assert {turn.agent for turn in debate.turns} == set(range(asked.debate.num_agents))
            for turn in debate.turns:
                assert turn.reply is not None
                is_ours = role_of(debate.protocol, turn.agent).policy == TRAINED
                assert is_ours == (turn.agent in trained)
                # Exactly the weights that spoke: the newest ones, or those of the start.
                assert turn.reply.weight_version == (step if is_ours else 0)
                expected = logps_of(learner if is_ours else frozen, turn)
                sampled = torch.tensor(turn.reply.logps)
                torch.testing.assert_close(sampled, expected, rtol=1e-12, atol=1e-12)
                taught += [expected] if is_ours else []
        # No token of a frozen role is in a row, but as what the others were shown.
        assert {row.agent for row in batch.rows} == trained
        assert batch.sampled_tokens == sum(map(len, taught))
        # Every turn fails, so that A = -1: the loss is the sum of our log-probabilities.
        learner.zero_grad()
        torch.cat(taught).sum().backward()
        for name, parameter in learner.named_parameters():
            expected = before[name] - RATE * parameter.grad
            torch.testing.assert_close(after[name], expected, rtol=1e-12, atol=1e-12)
            assert not torch.equal(after[name], before[name]) or "norm" in name
    kept = with_engine._engines["rival" if policies else "start"]._model.state_dict()
    first = frozen.state_dict()
    assert all(torch.equal(kept[name], first[name]) for name in first)
    with_engine.close()


def test_scripted_engine_speaks_for_a_role_and_the_reward_sees_it() -> None:
    answers = "<solution> + + + </solution>"
    script = {"type": "engine", "engine": {"type": "scripted", "replies": {"*": answers}}}
    asked = recipe(
        {"learner": {}, "teacher": {"policy": "script"}}, policies={"script": script}, max_tokens=40
    )
    loaded = asked.model.load(asked.seed)
    engine = open_engine(asked, loaded)
    played = asked.rollout.play(
        start_debates(asked, asked.data.open(0).batch(0), "train/0"), engine
    )
    said = [turn.text.strip() for debate in played for turn in debate.turns if turn.agent == 1]
    assert said == [answers] * 4
    scores = asked.reward(played)
    assert {credit.agent for score in scores for credit in score.credits} == {0, 1}
    # The learner says nothing that can be read; a script of one answer is right or wrong.
    right = fmean(score.agents[1] or 0.0 for score in scores)
    step = Step(0, played, scores, Batch((), (), 0, 0), {})
    assert role_rewards(step) == {"reward/role/learner": -1.0, "reward/role/teacher": right}
    again = from_json(to_json(played[0]))
    assert role_of(again.protocol, 1) == role_of(played[0].protocol, 1)
    assert not role_of(again.protocol, 1).trains
    engine.close()


def test_resumed_run_plays_on_against_the_weights_of_the_start(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    roles = "roles: {learner: {}, opponent: {policy: start}}"
    file.write_text(RECIPE.replace("num_agents: 2", roles))
    changes = ("checkpoint.every=1", "checkpoint.keep_last=9", *AHEAD)
    whole, again = tmp_path / "whole", tmp_path / "again"
    assert main([str(file), *changes, "--output", str(whole)]) == 0
    shutil.copytree(whole, again)
    for late in sorted((again / "checkpoints").glob("step-*"))[2:]:
        shutil.rmtree(late)
    assert main([str(file), *changes, "--resume", "--output", str(again)]) == 0
    assert end_of(again) == end_of(whole)


def test_check_says_who_speaks_and_what_is_trained() -> None:
    found = check(recipe(TWO_MODELS, policies={"rival": {"type": "model", "model": OTHER}}))
    assert "  role ours: 1 agent, the trained policy, trained on" in found.lines
    assert (
        "  role theirs: 1 agent, policy rival (a model made from scratch, engine transformers), "
        "not trained on"
    ) in found.lines
    # Two rounds of the one trained agent grow into one sample; the other has none.
    assert "x 2 agents x 2 rounds = 8 turns; 2 samples" in "\n".join(found.lines)
    assert "role" not in str(check(recipe({})).lines)


@pytest.mark.parametrize(
    ("roles", "rollout", "problem"),
    [
        (
            {"a": {}, "b": {"policy": "rivl"}},
            {"policies": {"rival": {}}},
            "debate.roles.b.policy: found 'rivl', expected one of trained, start, rival "
            "(rollout.policies); did you mean 'rival'?",
        ),
        ({"a": {}, "b": {}}, {"policies": {"start": {}}}, "rollout.policies.start: the name is"),
        ({"a": {}, "b": {"policy": "start", "train": True}}, {}, "roles.b.train: found True, but"),
    ],
)
def test_roles_of_no_policy_are_refused(
    roles: dict[str, Any], rollout: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError) as refused:
        recipe(roles, **rollout)
    assert problem in str(refused.value)


def test_policies_of_phases_and_evaluations_are_the_runs() -> None:
    settings = recipe(LEARNER_AGAINST_START).model_dump(exclude_unset=True)
    phases = {"one": {"rollout": {"policies": {"late": {}}}}}
    report = str(check(Recipe.model_validate(settings | {"phases": phases})))
    assert "phases.one.rollout.policies: found a difference, but a run has one" in report
    debate = settings["debate"] | {"roles": {"a": {}, "b": {"policy": "late"}}}
    evaluation = {"debate": {"type": "simultaneous", **debate}}
    with pytest.raises(ValueError, match=r"evaluation\.debate\.roles\.b\.policy: found 'late'"):
        Recipe.model_validate(settings | {"evaluation": evaluation})


def test_recipe_in_which_nothing_is_trained_is_refused() -> None:
    (problem,) = sampling_problems(recipe({"a": {"train": False, "count": 2}}))
    assert "found no role that is trained on" in problem


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (
            {"type": "engine", "engine": {"type": "transformers"}},
            "rollout.policies.rival.engine: found transformers, which is opened with a model",
        ),
        (
            {"type": "model", "model": {"type": "pretrained", "name": "./nowhere"}},
            "rollout.policies.rival.model.name: there is no directory './nowhere'",
        ),
    ],
)
def test_check_names_what_keeps_a_policy_from_speaking(
    policy: dict[str, Any], problem: str
) -> None:
    assert problem in str(check(recipe(TWO_MODELS, policies={"rival": policy})))
