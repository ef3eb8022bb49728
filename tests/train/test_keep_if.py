"""Phases that are kept only if a measure has not fallen: both outcomes, resumed, and refusals."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from debate_train.commands.cli import main
from debate_train.evaluation.measuring import Measure, Measures
from debate_train.evaluation.settings import KeepIf
from debate_train.monitoring.health import HealthWatch
from debate_train.recipe import Recipe
from debate_train.recipe.check import check
from debate_train.running import loop
from debate_train.running import run_context as taking_back
from train.small_runs import RECIPE, end_of, steps

METRIC = "eval/format"
PHASES = """\
phases:
  first: {keep_if: {metric: eval/format}}
  second: {}
  third: {keep_if: {metric: eval/format, since: second}}
"""


def run(folder: Path, *arguments: str, phases: str = PHASES) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(RECIPE.replace("steps: 3", "steps: 1") + phases)
    every = ("checkpoint.every=1", "evaluation.every=0", *arguments)
    assert main([str(path), *every, "--output", str(folder / "run")]) == 0
    return folder / "run"


def weights(run: Path, step: int) -> bytes:
    return (run / f"checkpoints/step-{step:06d}/model.safetensors").read_bytes()


def measured(monkeypatch: pytest.MonkeyPatch, start: float, *ends: float) -> None:
    """Let the dev split have these values at the starts, and at the ends of phases, in turn."""

    def means(value: float) -> Measures:
        return Measures({METRIC: Measure(value, 0, 1, 1)}, {})

    left = iter(ends)
    monkeypatch.setattr(taking_back, "evaluate", lambda *_: means(start))
    monkeypatch.setattr(loop, "evaluate", lambda *_: means(next(left)))


def test_start_comes_back_where_the_measure_has_fallen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(monkeypatch, 0.5, 0.4, 0.49)
    found = run(tmp_path, "checkpoint.keep_last=1")
    said = capsys.readouterr()
    out = " ".join((said.out + said.err).split())
    assert "first: eval/format 0.400, at the start of first 0.500: NOT KEPT: the weights of " in out
    assert (
        "third: eval/format 0.490, at the start of second 0.500: NOT KEPT: the weights of " in out
    )
    results = json.loads((found / "results.json").read_text())
    assert results["kept"] == {"first": False, "third": False}
    # The start that third goes back to is kept, whatever keep_last says, until it is not needed.
    assert steps(tmp_path) == [3]
    assert [row["step"] for row in rows(found)] == [1, 1, 2, 3, 3]


def rows(found: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (found / "metrics.jsonl").read_text().splitlines()]


def test_weights_go_back_to_the_start_and_on_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(monkeypatch, 0.5, 0.4, 0.4)
    found = run(tmp_path, "checkpoint.keep_last=9")
    assert steps(tmp_path) == [0, 1, 2, 3]
    start = weights(found, 0)
    assert weights(found, 1) == start  # First is taken back,
    assert weights(found, 2) != start  # second trains from there,
    assert weights(found, 3) == start  # and goes with third.
    assert not json.loads((found / "checkpoints/step-000003/trainer.json").read_text())[
        "optimizer_steps"
    ]


def test_run_is_as_one_without_the_condition_where_the_measure_has_not_fallen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(monkeypatch, 0.5, 0.5, 0.6)
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    found = run(tmp_path / "with")
    plain = run(tmp_path / "without", phases="phases: {first: {}, second: {}, third: {}}\n")
    assert weights(found, 3) == weights(plain, 3)
    assert json.loads((found / "results.json").read_text())["kept"] == {
        "first": True,
        "third": True,
    }


def test_watch_knows_what_was_measured_of_the_phases_own_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[tuple[int, object]] = []
    monkeypatch.setattr(
        HealthWatch, "know_start", lambda watch, found: known.append((watch._start, dict(found)))
    )
    measured(monkeypatch, 0.5, 0.5, 0.6)
    run(tmp_path)
    assert known == [(0, {METRIC: 0.5})]  # That of third is the start of second.


@pytest.mark.parametrize("step", [0, 1, 2])
def test_outcome_is_the_same_when_the_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    measured(monkeypatch, 0.5, 0.4, 0.4, 0.4, 0.4)
    whole = run(tmp_path, "checkpoint.keep_last=9")
    names = ("model.safetensors", "trainer.json")
    expected = end_of(whole, *names)
    shutil.copytree(whole, tmp_path / "again/run")
    for later in range(step + 1, 4):
        shutil.rmtree(tmp_path / f"again/run/checkpoints/step-{later:06d}")
    again = run(tmp_path / "again", "checkpoint.keep_last=9", "--resume")
    assert end_of(again, *names) == expected
    assert json.loads((again / "results.json").read_text())["kept"] == {
        "first": False,
        "third": False,
    }


def test_run_ends_with_one_message_where_the_start_to_go_back_to_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(monkeypatch, 0.5, 0.6, 0.4, 0.4)
    found = run(tmp_path, "checkpoint.keep_last=9")
    for name in ("step-000003", "step-000001"):
        shutil.rmtree(found / "checkpoints" / name)
    command = [str(tmp_path / "recipe.yaml"), "--resume", "--output", str(found)]
    assert (
        main([*command, "checkpoint.every=1", "evaluation.every=0", "checkpoint.keep_last=9"]) == 1
    )
    assert "step-000001, to go back to: " in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("start", "end", "tolerance", "kept"),
    [
        (0.5, 0.5, 0.0, True),
        (0.5, 0.499, 0.0, False),
        (0.5, 0.45, 0.06, True),
        (0.5, 0.45, 0.04, False),
        (None, 0.1, 0.0, True),  # Nothing was measured that can have fallen.
        (0.5, None, 0.0, False),
    ],
)
def test_measure_may_fall_by_the_tolerance(
    start: float | None, end: float | None, tolerance: float, kept: bool
) -> None:
    before, after = ({} if one is None else {METRIC: one} for one in (start, end))
    assert KeepIf(metric=METRIC, tolerance=tolerance).keeps(before, after) == kept


def recipe(**changes: Any) -> Recipe:
    settings: dict[str, Any] = {
        "name": "t",
        "steps": 1,
        "model": {"type": "scratch"},
        "data": {"type": "signs_puzzle", "batch_size": 2},
        "debate": {"num_agents": 3, "max_rounds": 2, "style": "compact", "personas": "none"},
        "rollout": {"max_tokens": 32},
    }
    return Recipe.model_validate(settings | changes)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"keep_if.metric: 'eval/formal' is not measured"):
        recipe(keep_if={"metric": "eval/formal"})
    with pytest.raises(ValidationError, match="found 0, but keep_if measures on them"):
        recipe(keep_if={"metric": METRIC}, evaluation={"questions": 0})
    rule = {"metric": METRIC, "since": "laster"}
    errors = check(recipe(phases={"first": {"keep_if": rule}, "last": {}})).errors
    assert errors == [
        "phases.first.keep_if.since: found 'laster'; expected this phase or one before it: first",
    ]
    # One later phase is no start to go back to.
    rule = {"metric": METRIC, "since": "last"}
    assert check(recipe(phases={"first": {"keep_if": rule}, "last": {}})).errors


def test_check_says_what_a_phase_must_not_lose() -> None:
    rule = {"metric": METRIC, "since": "first", "tolerance": 0.01}
    lines = check(recipe(phases={"first": {}, "last": {"keep_if": rule}})).lines
    assert (
        "  kept only if eval/format on the dev split is not below what it is at the start of first "
        "less 0.01; else the weights of that start come back"
    ) in lines
