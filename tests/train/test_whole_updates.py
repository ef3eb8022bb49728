"""Whole runs on the command line: equal seeds, updates that are not finite, stale samples."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from debate_train.commands.cli import main

RECIPE = """\
name: small
steps: 3
model: {type: scratch, hidden_size: 16, layers: 1, heads: 2, kv_heads: 1, head_dim: 8, ffn_size: 16}
data: {type: signs_puzzle, batch_size: 2, num_digits: 3, largest_digit: 4}
debate: {type: simultaneous, num_agents: 2, max_rounds: 2, style: compact, personas: none}
rollout: {max_tokens: 8, debates_per_question: 2}
reward: {type: v2}
# Turns of a model that can do nothing all fail: without a baseline they still teach.
advantage: {baseline: none}
loss: {type: dapo, aggregation: token_mean_group, kl: {weight: 0.1}}
trainer: {type: torch, learning_rate: 1.0e-3, epochs: 2, minibatch_size: 4, schedule: cosine}
evaluation: {questions: 0}
recording: {every: 1, debates: 1}
tracking: {wandb: false}
"""
Run = Callable[..., int]
CLOCKS = ("time_s", "tokens_per_s", "time/", "memory/")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE)
    return lambda *arguments: main([str(path), *arguments])


def metrics(output: Path) -> list[dict[str, Any]]:
    """All that was logged, without what a clock says."""
    lines = (output / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [{k: v for k, v in row.items() if not k.startswith(CLOCKS)} for row in rows]


def weights(output: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(output / f"checkpoints/step-{step:06d}/model.safetensors")


def test_runs_with_one_seed_are_equal_and_another_seed_is_not(run: Run, tmp_path: Path) -> None:
    outputs = [tmp_path / name for name in ("one", "again", "other")]
    for output, seed in zip(outputs, (5, 5, 6), strict=True):
        assert run("--output", str(output), f"seed={seed}") == 0
    one, again, other = (metrics(output) for output in outputs)
    assert len(one) == 3
    assert one == again != other
    kept = weights(outputs[0], 3)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in weights(outputs[1], 3).items())
    assert any(not torch.equal(kept[name], t) for name, t in weights(outputs[2], 3).items())
    for row in one:
        shares = {k.split("/")[-1]: v for k, v in row.items() if "gradient_share" in k}
        assert sum(v for k, v in shares.items() if "agent" in k) == pytest.approx(1)
        assert sum(v for k, v in shares.items() if "agent" not in k) == pytest.approx(1)
        assert row["optim/skipped"] == 0.0


def test_run_goes_on_exactly_where_updates_have_a_size(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "run"
    sized = ("--output", str(output), "trainer.minibatch_size=3", "checkpoint.every=1")
    assert run(*sized) == 0
    rows, kept = metrics(output), weights(output, 3)
    # 8 rows in parts of at most 3, twice.
    assert [row["optim/updates"] for row in rows] == [6.0, 6.0, 6.0]
    shutil.rmtree(output / "checkpoints/step-000003")
    assert run(*sized, "--resume") == 0
    assert metrics(output) == rows
    assert all(torch.equal(tensor, kept[name]) for name, tensor in weights(output, 3).items())


def test_parts_of_a_step_are_timed_and_a_checkpoint_with_the_step_after_it(
    run: Run, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    assert run("--output", str(output), "checkpoint.every=2") == 0
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 3
    for row in rows:
        parts = ("rollout", "score", "rows", "train", "weights")
        assert 0 < sum(row[f"time/{part}_s"] for part in parts) <= row["time/step_s"]
        assert 0 < row["time/pack_s"] < row["time/train_s"]
    assert [row.get("time/checkpoint_s", 0.0) > 0 for row in rows] == [False, False, True]


def test_run_of_updates_that_are_not_finite_stops_with_a_checkpoint(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A weight of a stream that is infinite in float32: so is every advantage that is not 0.
    output = tmp_path / "run"
    endless = (
        "advantage.streams={generator: {weight: 1.0e39}}",
        "steps=9",
        "trainer.max_skipped=7",
    )
    assert run("--output", str(output), *endless) == 1
    message = capsys.readouterr().err
    assert "train 2: found 8 updates in a row whose gradient was not finite" in message
    assert "Traceback" not in message
    assert [row["optim/skipped"] for row in metrics(output)] == [4.0, 4.0]
    assert [row["optim/skipped_in_a_row"] for row in metrics(output)] == [4.0, 8.0]
    # Weights are those of the start: going on with finite ones works.
    assert run("--output", str(tmp_path / "start"), "steps=0") == 0
    start, kept = weights(tmp_path / "start", 0), weights(output, 2)
    assert all(torch.equal(tensor, start[name]) for name, tensor in kept.items())
    assert run("--output", str(output), "--resume", "--changed", "steps=3") == 0
    assert [row["optim/skipped"] for row in metrics(output)] == [4.0, 4.0, 0.0]


@pytest.mark.parametrize("loss", ["importance_sampling", "reinforce"])
@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (["trainer.minibatch_size=null"], "trainer.epochs 2 and minibatch_size None"),
        (
            ["trainer={epochs: 1, minibatch_size: null}", "pipeline.max_staleness=1"],
            "pipeline.max_staleness 1",
        ),
    ],
)
def test_losses_without_bounds_are_refused_for_stale_samples_unless_forced(
    run: Run, capsys: pytest.CaptureFixture[str], loss: str, changes: list[str], found: str
) -> None:
    named = ["--check", f"loss.type={loss}"]
    assert run(*named, "trainer={epochs: 1, minibatch_size: null}") == 0
    assert run(*named, *changes, "loss.allow_off_policy=true") == 0
    capsys.readouterr()
    assert run(*named, *changes) == 2
    assert f"loss.type: found {loss} with {found}" in capsys.readouterr().err


def test_check_counts_updates_and_refuses_a_reference_that_is_not_there(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--check") == 0
    out = capsys.readouterr().out
    # 2 questions x 2 debates x 2 agents, whose dialogues grow: 8 rows, 2 x 8 / 4 updates.
    assert "3 steps of at most 4 optimizer updates each" in out
    assert "at most 12 updates" in out
    assert run("--check", "loss.kl.reference=phase_strat") == 2
    assert "loss: found the reference 'phase_strat', which is no directory" in (
        capsys.readouterr().err
    )


def test_check_refuses_pairs_that_no_set_of_examples_gives(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--check", "loss.type=dpo") == 2
    assert "found dpo, which learns from preference pairs" in capsys.readouterr().err
