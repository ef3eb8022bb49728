"""A miniature of the quickstart: interrupted, crashed and resumed, it trains as if it had not been.

Warm-start by demonstrations with an exit criterion that is looked at three times, then self-play.
"""

import json
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from debate_train.commands.cli import main
from debate_train.trainers.torch_session import TorchTrainerSession

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
CRITERION = "phases.warm_start.exit_criterion"
WARM, ALL = 7, 10
"""Steps of the warm-start, and of the whole run."""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("recipe") / "miniature.yaml"
    path.write_text(RECIPE)
    return str(path)


Train = Callable[..., int]


@pytest.fixture(scope="module")
def train(recipe: str) -> Train:
    """Run the recipe in this process, as the command does; returns the exit code."""
    return lambda output, *changes: main([recipe, *changes, "--output", str(output)])


def rows(output: Path) -> list[dict[str, Any]]:
    """The metrics, without what a clock says."""
    lines = (output / "metrics.jsonl").read_text().splitlines()
    timed = ("time_s", "tokens_per_s", "time/", "memory/")
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith(timed)}
        for line in lines
    ]


def results(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((output / "results.json").read_text())
    del found["sha256"]  # Also of the seconds.
    return found


def last_weights(output: Path) -> Mapping[str, torch.Tensor]:
    checkpoint = sorted((output / "checkpoints").iterdir())[-1]
    assert checkpoint.name == f"step-{ALL:06d}"
    return load_file(checkpoint / "model.safetensors")


def assert_same_run(output: Path, whole: Path) -> None:
    assert rows(output) == rows(whole)
    assert {**results(output), "seconds": 0} == {**results(whole), "seconds": 0}
    expected = last_weights(whole)
    assert all(torch.equal(t, expected[name]) for name, t in last_weights(output).items())


@pytest.fixture(scope="module")
def whole(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody stopped."""
    output = tmp_path_factory.mktemp("whole") / "run"
    assert train(output) == 0
    return output


def at_step(monkeypatch: pytest.MonkeyPatch, number: int, do: Callable[[], object]) -> None:
    """Do something in the middle of the n-th optimizer step from here on."""
    original, made = TorchTrainerSession.step, 0

    def step(self: TorchTrainerSession, batch: Any) -> dict[str, float]:
        nonlocal made
        made += 1
        if made == number:
            do()
        return original(self, batch)

    monkeypatch.setattr(TorchTrainerSession, "step", step)


def test_run_goes_through_its_phases_and_gates(whole: Path) -> None:
    found = rows(whole)
    trained = [(row["phase"], row["step"]) for row in found if "loss" in row]
    assert trained == [("warm_start", k) for k in range(1, WARM + 1)] + [
        ("self_play", k) for k in range(WARM + 1, ALL + 1)
    ]
    # On the dev split: every 3 steps, and for the exit criterion; after 6 once for both reasons.
    looked = [(row["phase"], row["step"]) for row in found if "eval/direct/accuracy" in row]
    assert looked == [("warm_start", k) for k in (3, 4, 6, 7)] + [("self_play", WARM + 2)]
    assert results(whole)["exit_criteria"] == {"warm_start": False}
    assert results(whole)["steps"] == ALL
    assert set(results(whole)["seconds"]) == {"warm_start", "self_play", "evaluation"}
    assert {p.name for p in (whole / "checkpoints").iterdir()} == {"step-000007", "step-000010"}
    steps = (1, 2, 4, 6, WARM + 1, WARM + 2)
    assert {p.name for p in (whole / "tokens").iterdir()} == {
        f"step-{k}.{kind}" for k in steps for kind in ("json", "safetensors")
    }
    assert (whole / "report.html").is_file()
    # The test can fail: losses differ from step to step, and self-play has a gradient.
    losses = [row["loss"] for row in found if "loss" in row]
    assert len(set(losses)) == ALL
    assert all(row["optim/grad_norm"] > 0 for row in found if "loss" in row)


def test_interrupted_run_goes_on_exactly_in_and_between_phases(
    train: Train,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "run"
    done = 0
    handler = signal.getsignal(signal.SIGINT)
    # Stopped within a phase, at a look at the exit criterion and between two looks at it, at the
    # last step of each phase, and in self-play.
    for stop in (2, 4, 5, WARM, WARM + 1, ALL):
        with monkeypatch.context() as patch:
            at_step(patch, stop - done, lambda: os.kill(os.getpid(), signal.SIGINT))
            assert train(output, *(["--resume"] if done else [])) == 130
        done = stop
        assert sorted((output / "checkpoints").iterdir())[-1].name == f"step-{stop:06d}"
        said = capsys.readouterr().err
        assert f"interrupted; go on from step {stop} with --resume" in said
        assert not (output / "results.json").exists()
    before = json.loads((output / f"checkpoints/step-{ALL:06d}/state.json").read_text())["seconds"]
    assert set(before) == {"warm_start", "self_play", "evaluation"}
    assert train(output, "--resume") == 0
    assert_same_run(output, whole)
    assert all(results(output)["seconds"][name] >= taken for name, taken in before.items())
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize(
    "case",
    [
        (3, 6, [3, 5]),  # between two checkpoints: the steps that were made are saved
        (0, WARM + 1, [WARM]),  # in the first step of a phase: from the border of the two
    ],
)
def test_crashed_run_goes_on_exactly_from_its_last_complete_step(
    train: Train,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: tuple[int, int, list[int]],
) -> None:
    every, crash, kept = case

    def fail() -> None:
        raise RuntimeError("out of memory")

    output = tmp_path / "run"
    with monkeypatch.context() as patch:
        at_step(patch, crash, fail)
        assert train(output, f"checkpoint.every={every}") == 1
    assert "RuntimeError: out of memory" in capsys.readouterr().err
    assert max(row["step"] for row in rows(output)) == crash - 1
    found = sorted(p.name for p in (output / "checkpoints").iterdir())
    assert found == [f"step-{step:06d}" for step in kept]
    assert train(output, f"checkpoint.every={every}", "--resume") == 0
    assert_same_run(output, whole)


def test_finished_run_that_is_resumed_trains_no_more(
    train: Train,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = Path(shutil.copytree(whole, tmp_path / "run"))
    at_step(monkeypatch, 1, lambda: pytest.fail("a step was made"))
    assert train(output, "--resume") == 0
    assert "this run is finished: none of its phases trains more" in capsys.readouterr().err
    assert_same_run(output, whole)


def test_same_seed_gives_the_same_run_and_another_another(
    train: Train, whole: Path, tmp_path: Path
) -> None:
    shorter = [f"{CRITERION}.max_steps=4", "evaluation.questions=1"]
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert train(tmp_path / name, *shorter, f"seed={seed}") == 0
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    losses = {
        name: [row["loss"] for row in rows(tmp_path / name) if "loss" in row] for name in "ac"
    }
    assert len(losses["a"]) == 4 + 3
    assert all(a != c for a, c in zip(losses["a"], losses["c"], strict=True))


def test_shut_gate_skips_what_follows_and_changes_nothing_more(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    assert train(output, f"{CRITERION}.if_missed=skip_rest", f"{CRITERION}.max_steps=4") == 0
    assert "self_play: skipped" in capsys.readouterr().err
    assert {row["phase"] for row in rows(output)} == {"warm_start"}
    assert results(output)["before"] == results(output)["after"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["model.layers=2"], "model: found another than in"),
        (["phases=null"], "phases: found another than in"),
    ],
)
def test_resuming_another_run_is_refused(
    train: Train, whole: Path, changes: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (whole / "metrics.jsonl").read_bytes()
    assert train(whole, *changes, "--resume") == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert (whole / "metrics.jsonl").read_bytes() == before


def test_run_begins_again_when_it_is_resumed_before_its_first_checkpoint(
    train: Train, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    shutil.copytree(whole, output)
    for left in (output / "checkpoints").iterdir():
        shutil.rmtree(left)
    assert train(output, "--resume") == 0
    assert "no checkpoint was written yet: the run begins again" in capsys.readouterr().err
    assert_same_run(output, whole)


def test_resuming_without_a_folder_is_refused(
    train: Train, recipe: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path / "none", "--resume") == 2
    assert main([recipe, "--resume"]) == 2
    assert "found no directory of a run" in capsys.readouterr().err
    assert train(whole) == 2  # without --resume: the folder is in use
    assert "continue that run with --resume" in capsys.readouterr().err


def test_engine_that_cannot_open_leaves_no_run_behind(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path / "run", "rollout.engine.copy_model=false") == 2
    assert "rollout.engine.copy_model: found false" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
