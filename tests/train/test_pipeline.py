"""Whole runs with rollouts ahead of training: nothing but the age of the weights changes."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from arithmetic import UNIT, in_float64
from debate_train.commands.cli import main
from debate_train.trainers.torch_session import TorchTrainerSession

RECIPE = """\
name: overlapped
steps: 5
model: {type: scratch, hidden_size: 32, layers: 1, heads: 2, kv_heads: 1, ffn_size: 32}
data: {type: signs_puzzle, batch_size: 2}
debate: {type: simultaneous, num_agents: 2, max_rounds: 2, style: compact, personas: none}
rollout: {max_tokens: 16}
pipeline: {max_staleness: 2}
reward: {type: v2}
advantage: {baseline: none, streams: {generator: {weight: 1.0}, judge: {weight: 0.0}}}
loss: {type: ppo_clip, kl: {weight: 0.1}}
trainer: {type: torch, learning_rate: 1.0e-3}
evaluation: {questions: 2, every: 3, direct_samples: 1}
# Never reached: looked at after 5 and 8 steps; nothing is played ahead beyond a look.
exit_criterion: {metric: eval/judge/accuracy, at_least: 2, every: 3, max_steps: 8, if_missed: go_on}
recording: {every: 1, debates: 2}
checkpoint: {every: 0, keep_last: 9}
tracking: {wandb: false}
"""
LAST = 8


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("recipe") / "overlapped.yaml"
    path.write_text(RECIPE)
    return str(path)


Train = Callable[..., int]


@pytest.fixture(scope="module")
def train(recipe: str) -> Train:
    return lambda output, *changes: main([recipe, *changes, "--output", str(output)])


def rows(output: Path, *without: str) -> list[dict[str, Any]]:
    """The metrics, without what a clock says."""
    lines = (output / "metrics.jsonl").read_text().splitlines()
    left_out = ("time_s", "tokens_per_s", "time/", "memory/", *without)
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith(left_out)}
        for line in lines
    ]


def assert_same_debates_and_weights(output: Path, whole: Path) -> None:
    for path in (whole / "transcripts").iterdir():
        assert (output / "transcripts" / path.name).read_bytes() == path.read_bytes()
    last = f"checkpoints/step-{LAST:06d}/model.safetensors"
    expected = load_file(whole / last)
    assert all(torch.equal(t, expected[n]) for n, t in load_file(output / last).items())


@pytest.fixture(scope="module")
def whole(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("whole") / "run"
    assert train(output) == 0
    return output


def test_staleness_is_bounded_and_logged(whole: Path) -> None:
    found = [row for row in rows(whole) if "loss" in row]
    # Steps 0 to 4, then 5 to 7 after the look at the exit criterion, each with the weights of two
    # before.
    assert [row["rollout/staleness_max"] for row in found] == [0, 1, 2, 2, 2, 0, 1, 2]
    assert [row["rollout/staleness_mean"] for row in found] == [0, 1, 2, 2, 2, 0, 1, 2]
    for step in range(1, LAST + 1):
        tokens = load_file(whole / f"tokens/step-{step}.safetensors")
        sampled = tokens["versions_BT"][tokens["mask_BT"] > 0]
        expected = max(0 if step <= 5 else 5, step - 1 - 2)
        assert set(sampled.tolist()) == {expected}


@pytest.mark.numeric
def test_ratios_are_to_what_was_really_sampled(train: Train, tmp_path: Path) -> None:
    with in_float64():
        assert train(tmp_path / "run") == 0
    found = [row for row in rows(tmp_path / "run") if "loss" in row]
    # 1 on fresh samples alone: rows keep log-probabilities in float32, and one below 16 in size is
    # rounded by 8 units at most; an update at learning rate 1e-3 moves it by much more.
    for row, age in zip(found, [0, 1, 2, 2, 2, 0, 1, 2], strict=True):
        is_one = row["optim/ratio_max"] == pytest.approx(1, abs=8 * UNIT)
        assert is_one == (age == 0), row["optim/ratio_max"] - 1


def test_runs_with_one_seed_are_equal_when_rollouts_overlap(
    train: Train, whole: Path, tmp_path: Path
) -> None:
    assert train(tmp_path / "again") == 0
    assert rows(tmp_path / "again") == rows(whole)
    assert_same_debates_and_weights(tmp_path / "again", whole)


def test_frozen_weights_give_the_results_of_depth_0(train: Train, tmp_path: Path) -> None:
    for depth in (0, 1, 3):
        frozen = ("trainer.learning_rate=0", f"pipeline.max_staleness={depth}")
        assert train(tmp_path / str(depth), *frozen) == 0
    on_policy = rows(tmp_path / "0", "rollout/staleness")
    assert len([row for row in on_policy if "loss" in row]) == LAST
    for depth in (1, 3):
        assert rows(tmp_path / str(depth), "rollout/staleness") == on_policy
        assert_same_debates_and_weights(tmp_path / str(depth), tmp_path / "0")


def test_interrupted_run_goes_on_exactly_with_what_was_played_ahead(
    train: Train, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, done = tmp_path / "run", 0
    original = TorchTrainerSession.step
    # Early, when two steps are ahead; twice in a row; before a look at the exit criterion; at it.
    for stop in (1, 3, 4, 5, 7):
        made = 0

        def step(self: TorchTrainerSession, batch: Any, left: int = stop - done) -> Any:
            nonlocal made
            made += 1
            if made == left:
                os.kill(os.getpid(), signal.SIGINT)
            return original(self, batch)

        with monkeypatch.context() as patch:
            patch.setattr(TorchTrainerSession, "step", step)
            assert train(output, *(["--resume"] if done else [])) == 130
        done = stop
        folder = output / f"checkpoints/step-{stop:06d}"
        lines = (folder / "lookahead.jsonl").read_text() if stop != 5 else ""
        heads = [json.loads(line) for line in lines.splitlines() if '"debates"' in line]
        end = 5 if stop <= 5 else LAST
        ahead = list(range(stop, min(stop + 2, end)))
        assert [head["step"] for head in heads] == ahead
        assert (folder / "lookahead.jsonl").exists() == bool(ahead)
    assert train(output, "--resume") == 0
    assert rows(output) == rows(whole)
    assert_same_debates_and_weights(output, whole)


def test_demonstrations_are_never_stale(train: Train, tmp_path: Path) -> None:
    changes = ("exit_criterion=null", "steps=2", "loss={type: sft}", "evaluation.questions=0")
    phase = "phases={a: {rollout: {engine: {type: demonstrations}}}}"
    assert train(tmp_path / "run", *changes, phase) == 0
    assert len(rows(tmp_path / "run")) == 2
