"""Roles that other policies speak for: frozen weights, other models, engines of their own."""

import copy
import shutil

import pytest
import torch

from debate_protocol.types import TRAINED, role_of
from debate_rollout.routing import RoutedEngine
from debate_train.batches.rows import build_batch
from debate_train.commands.cli import main
from debate_train.models import ScratchModel
from debate_train.playing import start_debates
from debate_train.recipe import Recipe
from debate_train.running.open_engines import open_engine
from train.small_runs import AHEAD, RECIPE, end_of

pytestmark = pytest.mark.numeric

RATE = 0.01
SMALL = {
    "type": "scratch",
    "hidden_size": 8,
    "layers": 1,
    "heads": 1,
    "kv_heads": 1,
    "head_dim": 8,
    "ffn_size": 8,
}
OTHER = {**SMALL, "hidden_size": 16}
RIVAL = {"type": "model", "model": OTHER}
LEARNER_AGAINST_START = {"learner": {}, "opponent": {"policy": "start", "temperature": 0.7}}
FROZEN_JUDGE = {
    "debater": {"count": 2, "sees": {"debater": -1}},
    "judge": {"policy": "start", "answers": False},
}
TWO_MODELS = {"ours": {"temperature": 0.75}, "theirs": {"policy": "rival"}}


def make_recipe(roles, **rollout):
    trainer = {
        "type": "torch",
        "device": "cpu",
        "learning_rate": RATE,
        "schedule": "constant",
        "max_grad_norm": float("inf"),
        "optimizer": {"type": "torch", "name": "SGD"},
    }
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
            "trainer": trainer,
            "evaluation": {"questions": 0},
            "tracking": {"wandb": False},
        }
    )


def two_steps(recipe, loaded, engine):
    """Train two steps; yield debates, batch, and the policy's weights before and after each."""
    source = recipe.data.open(recipe.seed)
    trainer = recipe.trainer.open(loaded, recipe.loss, recipe.steps)
    for step in range(2):
        debates = start_debates(recipe, source.batch(step), f"train/{step}")
        transcripts = recipe.rollout.play(debates, engine)
        advantages = recipe.advantage.compute(transcripts, recipe.reward(transcripts), {})
        streams = recipe.advantage.streams
        batch = build_batch(transcripts, advantages.turns, streams, loaded.tokenizer)
        before = copy.deepcopy(loaded.model.state_dict())
        trainer.step(batch)
        engine.load(trainer.weights(step + 1))
        yield transcripts, batch, before, loaded.model.state_dict()
    trainer.close()


def logps_of(model, turn):
    """Compute the log-probabilities of a turn's tokens at its temperature, shape (T,)."""
    reply = turn.reply
    token_ids = torch.tensor([[*reply.prompt_ids, *reply.token_ids]])
    logits = model(token_ids).logits[0, len(reply.prompt_ids) - 1 : -1]
    logps = (logits / reply.temperature).log_softmax(-1)
    return logps.gather(1, torch.tensor(reply.token_ids)[:, None])[:, 0]


@pytest.mark.parametrize(
    ("roles", "policies", "frozen_model"),
    [
        (LEARNER_AGAINST_START, {}, SMALL),
        (FROZEN_JUDGE, {}, SMALL),
        (TWO_MODELS, {"rival": RIVAL}, OTHER),
    ],
    ids=["against the start", "frozen judge", "two models"],
)
def test_only_the_trained_roles_teach_in_two_exact_steps(float64, roles, policies, frozen_model):
    recipe = make_recipe(roles, policies=policies)
    loaded = recipe.model.load(recipe.seed)
    learner = copy.deepcopy(loaded.model)
    frozen = ScratchModel.model_validate(frozen_model).load(recipe.seed).model
    engine = open_engine(recipe, loaded)
    assert isinstance(engine, RoutedEngine)
    trained_agents = set(recipe.debate.trained_agents())
    steps = two_steps(recipe, loaded, engine)
    for step, (transcripts, batch, before, after) in enumerate(steps):
        learner.load_state_dict(before)
        trained_logps = []
        for transcript in transcripts:
            for turn in transcript.turns:
                is_trained = role_of(transcript.protocol, turn.agent).policy == TRAINED
                assert is_trained == (turn.agent in trained_agents)
                # Exactly the weights that spoke: the newest ones, or those of the start.
                assert turn.reply.weight_version == (step if is_trained else 0)
                expected = logps_of(learner if is_trained else frozen, turn)
                sampled = torch.tensor(turn.reply.logps)
                torch.testing.assert_close(sampled, expected, rtol=1e-12, atol=1e-12)
                if is_trained:
                    trained_logps.append(expected)
        # No token of a frozen role is in a row, but as what the others were shown.
        assert {row.agent for row in batch.rows} == trained_agents
        assert batch.sampled_tokens == sum(map(len, trained_logps))
        # Every turn fails, so that A = -1: the loss is the sum of our log-probabilities.
        learner.zero_grad()
        torch.cat(trained_logps).sum().backward()
        for name, parameter in learner.named_parameters():
            expected = before[name] - RATE * parameter.grad
            torch.testing.assert_close(after[name], expected, rtol=1e-12, atol=1e-12)
            assert not torch.equal(after[name], before[name]) or "norm" in name
    frozen_engine = engine._engines["rival" if policies else "start"]
    weights = frozen_engine._model.state_dict()
    for name, tensor in frozen.state_dict().items():
        assert torch.equal(weights[name], tensor)
    engine.close()


def test_resumed_run_plays_on_against_the_weights_of_the_start(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(
        RECIPE.replace("num_agents: 2", "roles: {learner: {}, opponent: {policy: start}}")
    )
    arguments = [str(path), "checkpoint.every=1", "checkpoint.keep_last=9", *AHEAD]
    whole = tmp_path / "whole"
    resumed = tmp_path / "resumed"
    assert main([*arguments, "--output", str(whole)]) == 0
    shutil.copytree(whole, resumed)
    for checkpoint in sorted((resumed / "checkpoints").glob("step-*"))[2:]:
        shutil.rmtree(checkpoint)
    assert main([*arguments, "--resume", "--output", str(resumed)]) == 0
    assert end_of(resumed) == end_of(whole)


# What is checked of them


@pytest.mark.parametrize(
    ("roles", "policies", "message"),
    [
        (
            {"a": {}, "b": {"policy": "rivl"}},
            {"rival": {}},
            "debate.roles.b.policy: found 'rivl', expected one of trained, start, rival "
            "(rollout.policies); did you mean 'rival'?",
        ),
        ({"a": {}, "b": {}}, {"start": {}}, "rollout.policies.start: the name is"),
        ({"a": {}, "b": {"policy": "start", "train": True}}, {}, "roles.b.train: found True, but"),
    ],
)
def test_roles_of_no_policy_are_refused(roles, policies, message):
    with pytest.raises(ValueError) as error:
        make_recipe(roles, policies=policies)
    assert message in str(error.value)
