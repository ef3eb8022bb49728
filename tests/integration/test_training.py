"""Whole runs in miniature: phases, gates, interrupts, crashes, resumes, and what a run leaves."""

import json
import os
import signal
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from debate_train.commands.cli import main
from debate_train.trainers.torch_session import TorchTrainerSession
from json_lines import read_rows, timeless_metrics

RECIPE = """\
name: miniature
steps: 3
model: {type: scratch, hidden_size: 32, layers: 1, heads: 2, kv_heads: 1, ffn_size: 32}
data: {type: signs_puzzle, batch_size: 3}
debate: {type: simultaneous, num_agents: 3, max_rounds: 2, style: compact, personas: none}
rollout: {max_tokens: 24}
reward: {type: v2}
# Turns of a model that can do nothing all fail: without a baseline they still teach.
advantage: {baseline: none, streams: {generator: {weight: 1.0}, judge: {weight: 0.0}}}
loss: {type: ppo_clip, kl: {weight: 0.1}}
trainer: {type: torch, learning_rate: 1.0e-3, warmup_steps: 3}
evaluation: {questions: 4, every: 2, direct_samples: 1}
checkpoint: {every: 0, keep_last: 3}
recording: {every: 2, debates: 2}
tracking: {wandb: false}
phases:
  warm_start:
    steps: 4
    rollout: {engine: {type: demonstrations}, max_tokens: 48}
    reward: {type: verifiable, values: zero_one}
    advantage: {streams: {generator: {sections: {solution: 4, evaluation: 1, comparison: 1}}}}
    loss: {type: sft, kl: {weight: 0}}
    trainer:
      learning_rate: 5.0e-3
      schedule: linear
      min_lr_ratio: 0.1
      optimizer: {weight_decay: 0.01}
    evaluation: {every: 3}
    # Never reached: looked at after 4, 6 and 7 steps, then the run goes on all the same.
    exit_criterion:
      {metric: eval/judge/accuracy, at_least: 2, every: 2, max_steps: 7, if_missed: go_on}
  self_play: {}
"""
WARM = 7
ALL = 10
"""Steps of the warm-start, and of the whole run."""
Train = Callable[..., int]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("recipe") / "miniature.yaml"
    path.write_text(RECIPE)
    return str(path)


@pytest.fixture(scope="module")
def train(recipe: str) -> Train:
    """Run the recipe in this process, as the command does; returns the exit code."""
    return lambda output, *changes: main([recipe, *changes, "--output", str(output)])


def results(output: Path) -> dict[str, Any]:
    results_json: dict[str, Any] = json.loads((output / "results.json").read_text())
    del results_json["sha256"]  # Also of the seconds.
    return results_json


def last_weights(output: Path) -> Mapping[str, torch.Tensor]:
    checkpoint = sorted((output / "checkpoints").iterdir())[-1]
    assert checkpoint.name == f"step-{ALL:06d}"
    return load_file(checkpoint / "model.safetensors")


def assert_same_run(output: Path, undisturbed: Path) -> None:
    assert timeless_metrics(output) == timeless_metrics(undisturbed)
    assert {**results(output), "seconds": 0} == {**results(undisturbed), "seconds": 0}
    expected = last_weights(undisturbed)
    assert all(torch.equal(t, expected[name]) for name, t in last_weights(output).items())


@pytest.fixture(scope="module")
def undisturbed(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody stopped."""
    output = tmp_path_factory.mktemp("whole") / "run"
    assert train(output) == 0
    return output


def at_step(monkeypatch: pytest.MonkeyPatch, number: int, do: Callable[[], object]) -> None:
    """Do something in the middle of the n-th optimizer step from here on."""
    original = TorchTrainerSession.step
    num_steps = 0

    def step(self: TorchTrainerSession, batch: Any) -> dict[str, float]:
        nonlocal num_steps
        num_steps += 1
        if num_steps == number:
            do()
        return original(self, batch)

    monkeypatch.setattr(TorchTrainerSession, "step", step)


def test_run_goes_through_its_phases_and_gates(undisturbed: Path) -> None:
    metrics = timeless_metrics(undisturbed)
    trained = [(row["phase"], row["step"]) for row in metrics if "loss" in row]
    assert trained == [("warm_start", k) for k in range(1, WARM + 1)] + [
        ("self_play", k) for k in range(WARM + 1, ALL + 1)
    ]
    # On the dev split: every 3 steps, and for the exit criterion; after 6 once for both reasons.
    looked = [(row["phase"], row["step"]) for row in metrics if "eval/direct/accuracy" in row]
    assert looked == [("warm_start", k) for k in (3, 4, 6, 7)] + [("self_play", WARM + 2)]
    assert results(undisturbed)["exit_criteria"] == {"warm_start": False}
    assert results(undisturbed)["steps"] == ALL
    assert set(results(undisturbed)["seconds"]) == {"warm_start", "self_play", "evaluation"}
    assert {p.name for p in (undisturbed / "checkpoints").iterdir()} == {
        "step-000007",
        "step-000010",
    }
    steps = (1, 2, 4, 6, WARM + 1, WARM + 2)
    assert {p.name for p in (undisturbed / "tokens").iterdir()} == {
        f"step-{k}.{kind}" for k, kind in product(steps, ("json", "safetensors"))
    }
    assert (undisturbed / "report.html").is_file()
    # The test can fail: losses differ from step to step, and self-play has a gradient.
    losses = [row["loss"] for row in metrics if "loss" in row]
    assert len(set(losses)) == ALL
    assert all(row["optim/grad_norm"] > 0 for row in metrics if "loss" in row)


def test_interrupted_run_goes_on_exactly_in_and_between_phases(
    train: Train,
    undisturbed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "run"
    last_step = 0
    handler = signal.getsignal(signal.SIGINT)
    # At a look at the exit criterion, between two looks, and at the last step of each phase.
    for stop in (4, 5, WARM, ALL):
        with monkeypatch.context() as patch:
            at_step(patch, stop - last_step, lambda: os.kill(os.getpid(), signal.SIGINT))
            assert train(output, *(["--resume"] if last_step else [])) == 130
        last_step = stop
        assert sorted((output / "checkpoints").iterdir())[-1].name == f"step-{stop:06d}"
        printed = capsys.readouterr().err
        assert f"interrupted; go on from step {stop} with --resume" in printed
        assert not (output / "results.json").exists()
    before = json.loads((output / f"checkpoints/step-{ALL:06d}/state.json").read_text())["seconds"]
    assert set(before) == {"warm_start", "self_play", "evaluation"}
    assert train(output, "--resume") == 0
    assert_same_run(output, undisturbed)
    assert all(results(output)["seconds"][name] >= seconds for name, seconds in before.items())
    assert signal.getsignal(signal.SIGINT) is handler


def test_run_that_crashed_in_the_first_step_of_a_phase_goes_on_from_the_border_of_the_two(
    train: Train,
    undisturbed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise RuntimeError("out of memory")

    output = tmp_path / "run"
    with monkeypatch.context() as patch:
        at_step(patch, WARM + 1, fail)
        assert train(output) == 1
    assert "RuntimeError: out of memory" in capsys.readouterr().err
    assert max(row["step"] for row in timeless_metrics(output)) == WARM
    checkpoints = [path.name for path in (output / "checkpoints").iterdir()]
    assert checkpoints == [f"step-{WARM:06d}"]
    assert train(output, "--resume") == 0
    assert_same_run(output, undisturbed)


def test_missed_criterion_may_end_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    recipe = tmp_path / "small.yaml"
    recipe.write_text(RECIPE)

    def train_until(if_missed: str, *more: str) -> int:
        # One of two measures is reached by anything.
        measures = "metric: eval/format, at_least: 0, also_at_least: {eval/judge/accuracy: 2}"
        criterion = f"{{{measures}, max_steps: 4, if_missed: {if_missed}}}"
        setting = f"phases.warm_start.exit_criterion={criterion}"
        return main([str(recipe), setting, "--output", str(output), *more])

    for more in ([], ["--resume"]):
        assert train_until("fail", *more) == 1
        printed = capsys.readouterr().err
        assert "phase warm_start missed its exit criterion" in printed
        assert "Traceback" not in printed
        assert not (output / "results.json").exists()
    rows = read_rows(output / "metrics.jsonl")
    assert {row["phase"] for row in rows} == {"warm_start"}
    state = json.loads((output / "checkpoints/step-000004/state.json").read_text())
    assert state["exit_criteria"] == {"warm_start": False}
    assert train_until("skip_rest", "--resume", "--changed") == 0
    results = json.loads((output / "results.json").read_text())
    assert results["exit_criteria"] == {"warm_start": False}


UPDATES_RECIPE = """\
name: small
steps: 2
model: {type: scratch, hidden_size: 8, layers: 1, heads: 1, kv_heads: 1, head_dim: 8, ffn_size: 8}
data: {type: signs_puzzle, batch_size: 2, num_digits: 3, largest_digit: 4}
debate: {type: simultaneous, num_agents: 2, max_rounds: 2, style: compact, personas: none}
rollout: {max_tokens: 8, debates_per_question: 2}
reward: {type: v2}
# Turns of a model that can do nothing all fail: without a baseline they still teach.
advantage: {baseline: none}
loss: {type: dapo, aggregation: token_mean_group, kl: {weight: 0.1}}
trainer: {type: torch, learning_rate: 1.0e-3, epochs: 2, minibatch_size: 3, schedule: cosine}
evaluation: {questions: 0}
checkpoint: {every: 1, keep_last: 9}
tracking: {wandb: false}
"""


@pytest.fixture(scope="module")
def train_updates(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "small.yaml"
    path.write_text(UPDATES_RECIPE)
    return lambda *arguments: main([str(path), *arguments])


@pytest.fixture(scope="module")
def whole(train_updates, tmp_path_factory):
    output = tmp_path_factory.mktemp("whole") / "run"
    assert train_updates("--output", str(output)) == 0
    return output


def weights(output, step):
    return (output / f"checkpoints/step-{step:06d}/model.safetensors").read_bytes()


@pytest.mark.parametrize(("seed", "is_equal"), [("0", True), ("6", False)])
def test_runs_are_equal_when_their_seeds_are(train_updates, whole, tmp_path, seed, is_equal):
    output = tmp_path / "run"
    assert train_updates("--output", str(output), f"seed={seed}") == 0
    assert (timeless_metrics(output) == timeless_metrics(whole)) == is_equal
    assert (weights(output, 2) == weights(whole, 2)) == is_equal


def test_rows_say_what_a_step_did_and_how_long_it_took(whole):
    for row in read_rows(whole / "metrics.jsonl"):
        # 8 rows in updates of at most 3, twice.
        assert row["optim/updates"] == 6.0
        assert row["optim/skipped"] == 0.0
        shares = {name: value for name, value in row.items() if "gradient_share" in name}
        agent_shares = [value for name, value in shares.items() if "/agent" in name]
        stream_shares = [value for name, value in shares.items() if "/agent" not in name]
        assert sum(agent_shares) == pytest.approx(1)
        assert sum(stream_shares) == pytest.approx(1)
        step_parts = ("rollout", "score", "rows", "train", "weights")
        parts_s = sum(row[f"time/{name}_s"] for name in step_parts)
        assert 0 < parts_s <= row["time/step_s"]
        assert 0 < row["time/pack_s"] < row["time/train_s"]


def test_run_of_updates_that_are_not_finite_stops_with_a_checkpoint(
    train_updates, tmp_path, capsys
):
    # A weight of a stream that is infinite in float32: so is every advantage that is not 0.
    output = tmp_path / "run"
    endless = "advantage.streams={generator: {weight: 1.0e39}}"
    assert train_updates("--output", str(output), endless, "steps=9") == 1
    error = capsys.readouterr().err
    assert "train 1: found 6 updates in a row whose gradient was not finite" in error
    assert "Traceback" not in error
    skipped_in_a_row = [
        row["optim/skipped_in_a_row"] for row in read_rows(output / "metrics.jsonl")
    ]
    assert skipped_in_a_row == [6.0]
    # Weights are those of the start: going on with finite ones works.
    assert train_updates("--output", str(tmp_path / "start"), "steps=0") == 0
    assert weights(output, 1) == weights(tmp_path / "start", 0)
    assert train_updates("--output", str(output), "--resume", "--changed", "steps=3") == 0
    assert read_rows(output / "metrics.jsonl")[-1]["optim/skipped"] == 0.0
