"""Phases of a run: taken back where a measure falls, parts of a reward that fade, resumed."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from debate_train.commands.cli import main
from debate_train.errors import RecipeError
from debate_train.evaluation.measuring import Measure, Measures
from debate_train.evaluation.settings import KeepIf
from debate_train.recipe.check import check
from debate_train.running import loop, run_context
from train.small_recipes import recipe_of, write
from train.small_runs import RECIPE, end_of, steps

METRIC = "eval/format"
PHASES = """\
phases:
  first: {keep_if: {metric: eval/format}}
  second: {}
  third: {keep_if: {metric: eval/format, since: second}}
"""
ONE_STEP = RECIPE.replace("steps: 3", "steps: 1")


def arguments(folder: Path, *changes: str) -> list[str]:
    every_step = ["checkpoint.every=1", "evaluation.every=0"]
    return [str(folder / "r.yaml"), *every_step, *changes, "--output", str(folder / "run")]


def run(folder: Path, *changes: str, phases: str = PHASES) -> Path:
    folder.mkdir(exist_ok=True)
    write(folder, ONE_STEP + phases)
    assert main(arguments(folder, *changes)) == 0
    return folder / "run"


def weights(run: Path, step: int) -> bytes:
    return (run / f"checkpoints/step-{step:06d}/model.safetensors").read_bytes()


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def results(run: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((run / "results.json").read_text())
    return loaded


def remove_checkpoints_after(run: Path, step: int, last_step: int) -> None:
    for number in range(step + 1, last_step + 1):
        shutil.rmtree(run / f"checkpoints/step-{number:06d}")


def let_dev_split_measure(monkeypatch: pytest.MonkeyPatch, start: float, *ends: float) -> None:
    """Let the dev split have these values at the starts, and at the ends of phases, in turn."""

    def measures(value: float) -> Measures:
        return Measures({METRIC: Measure(value, 0, 1, 1)}, {})

    next_end = iter(ends)
    monkeypatch.setattr(run_context, "evaluate", lambda *_: measures(start))
    monkeypatch.setattr(loop, "evaluate", lambda *_: measures(next(next_end)))


def test_weights_go_back_to_the_start_and_on_from_it_when_resumed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_dev_split_measure(monkeypatch, 0.5, *[0.4] * 8)
    folder = run(tmp_path, "checkpoint.keep_last=9")
    assert steps(tmp_path) == [0, 1, 2, 3]
    start = weights(folder, 0)
    assert weights(folder, 1) == start  # First is taken back,
    assert weights(folder, 2) != start  # second trains from there,
    assert weights(folder, 3) == start  # and goes with third.
    trainer_state = json.loads((folder / "checkpoints/step-000003/trainer.json").read_text())
    assert not trainer_state["optimizer_steps"]

    files = ("model.safetensors", "trainer.json")
    complete = end_of(folder, *files)
    for last_step in (0, 1, 2):
        again = tmp_path / f"from-{last_step}"
        shutil.copytree(folder, again / "run")
        remove_checkpoints_after(again / "run", last_step, 3)
        run(again, "checkpoint.keep_last=9", "--resume")
        assert end_of(again / "run", *files) == complete
        assert results(again / "run")["kept"] == {"first": False, "third": False}


def test_run_ends_with_one_message_where_the_start_to_go_back_to_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    let_dev_split_measure(monkeypatch, 0.5, 0.6, 0.4, 0.4)
    folder = run(tmp_path, "checkpoint.keep_last=9")
    for name in ("step-000003", "step-000001"):
        shutil.rmtree(folder / "checkpoints" / name)
    assert main(arguments(tmp_path, "checkpoint.keep_last=9", "--resume")) == 1
    assert "step-000001, to go back to: " in capsys.readouterr().err.splitlines()[-1]


FADING = """\
checkpoint: {every: 1, keep_last: 9}
evaluation: {questions: 0}
reward:
  type: mixed
  components:
    peers: {reward: {type: v2}, weight: 0.5}
    truth: {reward: {type: verifiable}, weight: {start: 0.5, steps: 4}}
phases: {first: {steps: 2}, second: {steps: 6}}
"""


def test_weight_falls_from_the_phases_first_step_when_resumed_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line for line in RECIPE.splitlines() if not line.startswith(("reward", "evaluation"))]
    recipe = write(tmp_path, "\n".join(lines) + "\n" + FADING)
    assert main([str(recipe), "--check"]) == 0
    note = "reward.components.truth.weight: from 0.5 to 0 over the phase's first 4 steps"
    assert capsys.readouterr().out.count(note) == 2
    complete, again = tmp_path / "complete", tmp_path / "again"
    assert main([str(recipe), "--output", str(complete)]) == 0
    truth_weights = [row["reward/weight/truth"] for row in rows(complete)]
    assert truth_weights == [0.5, 0.375, 0.5, 0.375, 0.25, 0.125, 0, 0]
    assert "reward/weight/peers" not in rows(complete)[0]
    shutil.copytree(complete, again)
    remove_checkpoints_after(again, 4, 8)
    assert main([str(recipe), "--resume", "--output", str(again)]) == 0
    assert end_of(again) == end_of(complete)


@pytest.mark.parametrize(
    ("before", "after", "tolerance", "is_kept"),
    [
        ({METRIC: 0.5}, {METRIC: 0.5}, 0.0, True),
        ({METRIC: 0.5}, {METRIC: 0.45}, 0.06, True),
        ({}, {METRIC: 0.1}, 0.0, True),  # Nothing was measured that can have fallen.
        ({METRIC: 0.5}, {}, 0.0, False),
    ],
)
def test_measure_may_fall_by_the_tolerance(
    before: Mapping[str, float], after: Mapping[str, float], tolerance: float, is_kept: bool
) -> None:
    assert KeepIf(metric=METRIC, tolerance=tolerance).keeps(before, after) == is_kept


def test_measure_that_is_not_taken_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"keep_if.metric: 'eval/formal' is not measured"):
        recipe_of(RECIPE, "keep_if.metric=eval/formal")
    with pytest.raises(RecipeError, match="found 0, but keep_if measures on them"):
        recipe_of(RECIPE, f"keep_if.metric={METRIC} evaluation.questions=0")


def two_phases(first: str, last: str = "{}") -> str:
    return f"phases='{{first: {first}, last: {last}}}'"


def test_check_refuses_a_start_that_comes_later() -> None:
    rule = f"{{keep_if: {{metric: {METRIC}, since: laster}}}}"
    assert check(recipe_of(RECIPE, two_phases(rule))).errors == [
        "phases.first.keep_if.since: found 'laster'; expected this phase or one before it: first",
    ]
    rule = f"{{keep_if: {{metric: {METRIC}, since: last}}}}"
    assert check(recipe_of(RECIPE, two_phases(rule))).errors
