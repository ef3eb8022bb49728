"""ACC-Debate with two whole models: a run for each side in turn, the other as it is on the disk."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from debate_protocol.types import Transcript, role_of
from debate_train.checkpoints.policy_files import save_policy
from debate_train.commands.cli import main
from debate_train.models import ScratchModel
from debate_train.offline import Completion, Example, ExampleSet, GuidedPairs

SIZES: dict[str, Any] = {
    "hidden_size": 8, "layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 8, "ffn_size": 8,
    "context_window": 4096,
}  # fmt: skip
RECIPE = Path(__file__).resolve().parents[2] / "recipes/papers/acc_debate_two_models_{}.yaml"


@pytest.fixture(scope="module", autouse=True)
def patched() -> Iterator[None]:
    """Every guided reply makes a pair: a model that was never trained guides to nothing."""

    def take(self: GuidedPairs, transcripts: Sequence[Transcript]) -> ExampleSet:
        taken = ExampleSet()
        for transcript in transcripts:
            for turn in transcript.turns:
                role = role_of(transcript.protocol, turn.agent)
                for branch in turn.branches if role.name == self.role else ():
                    asked, said = turn.reply, branch.turn.reply
                    if asked and said and asked.token_ids != said.token_ids:
                        replies = Completion.of(said), Completion.of(asked)
                        found = Example(turn.prompt or (), asked.prompt_ids, *replies, turn.agent)
                        taken.keep(found, "guided")
        return taken

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GuidedPairs, "take", take)
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    for seed, side in enumerate(("critic", "actor")):
        save_policy(folder / side, ScratchModel(**SIZES, extra_words=("Answer:",)).load(seed))
    return {side: folder / side for side in ("critic", "actor")}


def run(side: str, own: Path, other: Path, output: Path) -> Path:
    """Train one side as its recipe says, on a puzzle and at the size of a test."""
    changes = [
        f"model.name={own}",
        "model.dtype=float32",
        f"rollout.policies.other.model.name={other}",
        "rollout.policies.other.model.dtype=float32",
        "rollout.policies.other.engine={type: transformers, device: cpu}",
        "rollout.engine={type: transformers, device: cpu}",
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
        *("evaluation.questions=0", "keep_if=null"),
        "checkpoint.every=0",
        "tracking.wandb=false",
        "steps=2",
    ]
    assert main([str(RECIPE).format(side), *changes, "--output", str(output)]) == 0
    return output / "checkpoints/step-000002"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def said(output: Path, agent: int) -> list[str]:
    """Return what an agent said in the debates that a run played for its pairs."""
    (path,) = output.glob("offline/*.debates.jsonl")
    debates = [json.loads(line) for line in path.read_text().splitlines()]
    return [turn["text"] for one in debates for turn in one["turns"] if turn["agent"] == agent]


def test_sides_are_trained_in_turn_each_against_the_other_as_it_has_become(
    models: dict[str, Path], tmp_path: Path
) -> None:
    before = {side: (models[side] / "model.safetensors").read_bytes() for side in models}
    critic = run("critic", models["critic"], models["actor"], tmp_path / "critic")
    actor = run("actor", models["actor"], critic, tmp_path / "actor")
    # Each run moves the weights of its own side, and no other's by a bit.
    trained_critic = (critic / "model.safetensors").read_bytes()
    assert any(not torch.equal(a, b) for a, b in both(weights(critic), weights(models["critic"])))
    assert any(not torch.equal(a, b) for a, b in both(weights(actor), weights(models["actor"])))
    assert {side: (models[side] / "model.safetensors").read_bytes() for side in models} == before
    # The actor hears the critic that was trained: what the actor says first is the same, not what
    # it is answered.
    run("actor", models["actor"], models["critic"], tmp_path / "control")
    assert said(tmp_path / "actor", 0)[0] == said(tmp_path / "control", 0)[0]
    assert said(tmp_path / "actor", 1) != said(tmp_path / "control", 1)
    # A second alternation begins where the first has ended.
    run("critic", critic, actor, tmp_path / "again")
    assert (critic / "model.safetensors").read_bytes() == trained_critic
    assert said(tmp_path / "again", 0)[0] != said(tmp_path / "critic", 0)[0]


def both(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> Any:
    return [(one[name], other[name]) for name in one]


def test_plan_counts_both_models(
    models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    named = [
        f"model.name={models['critic']}",
        f"rollout.policies.other.model.name={models['actor']}",
    ]
    data = "data={type: signs_puzzle, batch_size: 2}"
    assert main([str(RECIPE).format("critic"), *named, data, "--plan", "--gpus", "1"]) == 0
    out = capsys.readouterr().out
    assert "policy other: " in out
