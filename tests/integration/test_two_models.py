"""ACC-Debate with two whole models: a run for each side, the other as it is on the disk."""

import json
from pathlib import Path

import pytest

from debate_protocol.types import role_of
from debate_train.checkpoints.policy_files import save_policy
from debate_train.commands.cli import main
from debate_train.models import ScratchModel
from debate_train.offline import Completion, Example, ExampleSet, GuidedPairs

RECIPES = Path(__file__).resolve().parents[2] / "recipes/papers"
WEIGHTS = "model.safetensors"


def pair_every_guided_reply(config, transcripts):
    example_set = ExampleSet()
    for transcript in transcripts:
        for turn in transcript.turns:
            if role_of(transcript.protocol, turn.agent).name != config.role:
                continue
            for branch in turn.branches:
                natural = turn.reply
                guided = branch.turn.reply
                if natural.token_ids != guided.token_ids:
                    example = Example(
                        turn.prompt,
                        natural.prompt_ids,
                        Completion.of(guided),
                        Completion.of(natural),
                        turn.agent,
                    )
                    example_set.keep(example, "guided")
    return example_set


@pytest.fixture
def models(tmp_path):
    shape = {"hidden_size": 8, "layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 8, "ffn_size": 8}
    model = ScratchModel(**shape, context_window=4096, extra_words=("Answer:",))
    for seed, side in enumerate(("critic", "actor")):
        save_policy(tmp_path / side, model.load(seed))
    return {side: tmp_path / side for side in ("critic", "actor")}


def train_side(side, model, other, output):
    """Train one side as its recipe says, on a puzzle and at the size of a test."""
    on_cpu = "{type: transformers, device: cpu}"
    changes = [
        f"model.name={model}",
        "model.dtype=float32",
        f"rollout.policies.other.model.name={other}",
        "rollout.policies.other.model.dtype=float32",
        f"rollout.policies.other.engine={on_cpu}",
        f"rollout.engine={on_cpu}",
        "rollout.max_tokens=4",
        "data={type: signs_puzzle, batch_size: 2, num_digits: 3, largest_digit: 4}",
        "debate.max_rounds=2",
        "debate.continuations=1",
        "debate.guide_round_zero=true",
        "debate.contract=answer_line",
        "debate.style=compact",
        "offline.questions=4",
        "offline.held_out=0",
        "offline.batch_size=2",
        "trainer={type: torch, device: cpu, learning_rate: 0.05, warmup_steps: 0}",
        "evaluation.questions=0",
        "keep_if=null",
        "checkpoint.every=0",
        "tracking.wandb=false",
        "steps=2",
    ]
    recipe = RECIPES / f"acc_debate_two_models_{side}.yaml"
    assert main([str(recipe), *changes, "--output", str(output)]) == 0
    return output / "checkpoints/step-000002"


def texts_of(output, agent):
    """Read what an agent said in the debates that a run played for its pairs."""
    (path,) = output.glob("offline/*.debates.jsonl")
    texts = []
    for line in path.read_text().splitlines():
        turns = json.loads(line)["turns"]
        texts += [turn["text"] for turn in turns if turn["agent"] == agent]
    return texts


def test_sides_are_trained_in_turn_each_against_the_other_as_it_has_become(
    models, tmp_path, monkeypatch
):
    # A model that was never trained guides to nothing.
    monkeypatch.setattr(GuidedPairs, "take", pair_every_guided_reply)
    before = {side: (folder / WEIGHTS).read_bytes() for side, folder in models.items()}
    critic = train_side("critic", models["critic"], models["actor"], tmp_path / "train_critic")
    trained_critic = (critic / WEIGHTS).read_bytes()
    actor = train_side("actor", models["actor"], critic, tmp_path / "train_actor")
    # Each run moves the weights of its side only.
    assert trained_critic != before["critic"]
    assert (actor / WEIGHTS).read_bytes() != before["actor"]
    assert (critic / WEIGHTS).read_bytes() == trained_critic
    for side, folder in models.items():
        assert (folder / WEIGHTS).read_bytes() == before[side]
    # The actor hears the critic that was trained: what the actor says first is the same, not what
    # it is answered.
    train_side("actor", models["actor"], models["critic"], tmp_path / "control")
    assert texts_of(tmp_path / "train_actor", 0)[0] == texts_of(tmp_path / "control", 0)[0]
    assert texts_of(tmp_path / "train_actor", 1) != texts_of(tmp_path / "control", 1)
