"""Runs gone on with by another recipe, refused ones, and two of them in one directory."""

import json
import os
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml

from debate_train.checkpoints.run_directory import RunDirectory
from debate_train.commands.cli import main
from debate_train.errors import RecipeError
from debate_train.models import ScratchModel
from debate_train.trainers.processes import Place, lost
from debate_train.trainers.trainer import TorchTrainer

RECIPE = """\
name: small
steps: 4
model: {type: scratch, hidden_size: 16, layers: 1, heads: 2, kv_heads: 1, head_dim: 8, ffn_size: 16}
data: {type: signs_puzzle, batch_size: 2, num_digits: 3, largest_digit: 4}
debate: {type: simultaneous, num_agents: 2, max_rounds: 2, style: compact, personas: none}
rollout: {max_tokens: 8}
reward: {type: v2}
advantage: {baseline: none}
loss: {type: ppo_clip}
trainer: {type: torch, learning_rate: 1.0e-3}
evaluation: {questions: 2, direct_samples: 1}
checkpoint: {every: 1, keep_last: 5}
tracking: {wandb: false, project: "${oc.env:SERVICE_PROJECT,none}"}
"""
Run = Callable[..., int]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def run(tmp_path: Path, output: Path) -> Run:
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE)
    return lambda *arguments: main([str(path), "--output", str(output), *arguments])


def resumed(output: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((output / "environment.json").read_text())["resumed"]
    return found


def later_recipes(output: Path) -> list[str]:
    return sorted(path.name for path in output.glob("recipe-from-step-*.yaml"))


def refuse_checkpoints_after(output: Path, step: int) -> None:
    for path in (output / "checkpoints").glob("step-*"):
        if int(path.name.removeprefix("step-")) > step:
            (path / "state.json").write_text("{}")


def test_changes_of_the_recipe_are_kept_when_resumed(
    run: Run,
    output: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SERVICE_PROJECT", "value-of-the-environment")
    assert run("steps=2") == 0
    started = (output / "recipe.yaml").read_bytes()
    refuse_checkpoints_after(output, 1)
    capsys.readouterr()
    change = "trainer.learning_rate=0.0005"
    assert run("--resume", "--changed", "steps=3", change) == 0
    told = "steps: 2 → 3; trainer.learning_rate: 0.001 → 0.0005"
    warning = f"warning: resumed with another recipe from step 2 on: {told}\n"
    assert warning in capsys.readouterr().err
    assert (output / "recipe.yaml").read_bytes() == started
    assert later_recipes(output) == ["recipe-from-step-000002.yaml"]
    text = (output / "recipe-from-step-000002.yaml").read_text()
    assert yaml.safe_load(text)["trainer"]["learning_rate"] == 0.0005
    assert "${oc.env:SERVICE_PROJECT,none}" in text
    (one,) = resumed(output)
    assert (one["from_step"], one["changes"]) == (
        2,
        {
            "steps": {"before": 2, "now": 3},
            "trainer.learning_rate": {"before": 0.001, "now": 0.0005},
        },
    )
    page = unescape((output / "report.html").read_text())
    row = "<td>trainer.learning_rate</td><td>0.001 → 0.0005</td>"
    assert f'<th scope="row">from step 2</th>{row}' in page
    for path in (output / "environment.json", output / "report.html"):
        assert "value-of-the-environment" not in path.read_text()

    # The same again changes nothing; the first recipe, from the start, undoes the change.
    refuse_checkpoints_after(output, 2)
    assert run("--resume", "--changed", "steps=3", change) == 0
    assert "resumed with another" not in capsys.readouterr().err
    assert resumed(output)[-1]["changes"] == {}
    assert later_recipes(output) == ["recipe-from-step-000002.yaml"]
    assert row in unescape((output / "report.html").read_text())
    refuse_checkpoints_after(output, 1)
    assert run("--resume", "--changed", "steps=2") == 0
    assert resumed(output)[-1]["changes"] == {} and later_recipes(output) == []
    assert row not in unescape((output / "report.html").read_text())


def test_resume_takes_the_runs_own_recipe_and_refuses_another(
    run: Run, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("steps=1", "trainer.learning_rate=0.0005") == 0
    metrics = (output / "metrics.jsonl").read_bytes()
    for forgotten in ([], ["steps=1"]):
        assert run("--resume", *forgotten) == 2
        rows = [line.split() for line in capsys.readouterr().err.splitlines()]
        assert ["trainer.learning_rate", "0.0005", "→", "0.001"] in rows
    assert later_recipes(output) == []

    # With the folder alone, in either place, the run goes on as it was.
    assert main(["--resume", str(output)]) == 0
    assert main(["--resume", "--output", str(output)]) == 0
    assert (output / "metrics.jsonl").read_bytes() == metrics
    # The recipe that was agreed to last is the run's own from then on.
    assert main(["--resume", str(output), "steps=2"]) == 2
    assert main(["--resume", "--changed", str(output), "steps=2"]) == 0
    assert main(["--resume", str(output)]) == 0
    assert all(one["changes"] == {} for one in resumed(output) if one["from_step"] == 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume"], "expected debate-train --resume RUN"),
        (["--resume", "no-such-run"], "no-such-run"),
        (["quickstart", "--changed"], "--changed"),
    ],
)
def test_resume_refuses_what_names_no_run(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "key"), [("model.layers=2", "model"), ("phases.other={}", "phases")]
)
def test_resume_refuses_another_run_and_changes_nothing(
    run: Run, output: Path, capsys: pytest.CaptureFixture[str], change: str, key: str
) -> None:
    assert run("steps=1") == 0
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    assert run("--resume", "steps=1", change) == 2
    assert f"debate-train: {key}: found another than in {output}" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "cannot start a run in {}: it holds "),
        (["--resume"], "--output: found {} in use by process {}; expected"),
    ],
)
def test_run_is_refused_when_another_process_uses_the_directory(
    run: Run,
    output: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    more: list[str],
    message: str,
) -> None:
    held = RunDirectory.create(output, RECIPE)
    monkeypatch.setattr(ScratchModel, "load", pytest.fail)  # One may not fit beside the other's.
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    assert run(*more) == 2
    assert f"debate-train: {message.format(output, os.getpid())}" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    held.close()


def refuse(monkeypatch: pytest.MonkeyPatch, learning_rate: float) -> None:
    """Have the trainer refuse a learning rate when it is opened, as others refuse models."""
    opened = TorchTrainer.open

    def open_(config: TorchTrainer, *arguments: Any) -> Any:
        if config.learning_rate == learning_rate:
            raise RecipeError(f"trainer.learning_rate: found {learning_rate}")
        return opened(config, *arguments)

    monkeypatch.setattr(TorchTrainer, "open", open_)


@pytest.mark.parametrize("was_there", [False, True])
def test_new_run_leaves_nothing_when_it_is_refused_before_its_first_step(
    run: Run, output: Path, monkeypatch: pytest.MonkeyPatch, was_there: bool
) -> None:
    refuse(monkeypatch, 0.5)
    if was_there:
        output.mkdir()
    assert run("steps=1", "trainer.learning_rate=0.5") == 2
    assert output.exists() == was_there
    assert not was_there or not list(output.iterdir())
    assert run("steps=1") == 0
    # What an earlier run has made stays.
    refuse_checkpoints_after(output, 0)
    (output / "checkpoints" / "step-000001").rename(output / "checkpoints" / ".writing-000001")
    assert run("--resume", "steps=1", "trainer.learning_rate=0.5") == 2
    assert (output / "recipe.yaml").is_file()


def test_run_keeps_its_directory_when_a_later_phase_is_refused(
    run: Run, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, 0.5)
    assert run("phases={one: {steps: 1}, two: {trainer: {learning_rate: 0.5}}}") == 2
    assert [path.name for path in (output / "checkpoints").iterdir()] == ["step-000001"]


def test_finished_run_trains_no_more_and_measures_again_only_other_questions(
    run: Run, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("steps=1") == 0
    results = output / "results.json"
    before = results.stat().st_mtime_ns
    capsys.readouterr()
    assert run("--resume", "--changed", "steps=3") == 0
    printed = capsys.readouterr()
    assert "this run is finished: none of its phases trains more" in printed.out + printed.err
    assert "measuring" not in printed.out + printed.err
    assert results.stat().st_mtime_ns == before
    assert len((output / "metrics.jsonl").read_text().splitlines()) == 1
    assert run("--resume", "--changed", "steps=3", "evaluation.questions=3") == 0
    assert results.stat().st_mtime_ns > before
    results.unlink()  # As a run leaves it that was killed after its last checkpoint.
    assert run("--resume", "--changed", "steps=3", "evaluation.questions=3") == 0
    written = json.loads(results.read_text())
    results.write_text(json.dumps({**written, "steps": written["steps"] + 1}))
    assert run("--resume", "--changed", "steps=3", "evaluation.questions=3") == 0
    again = json.loads(results.read_text())
    assert {**again, "seconds": 0, "sha256": 0} == {**written, "seconds": 0, "sha256": 0}


def test_run_trains_more_steps_when_resumed_within_a_phase(run: Run, output: Path) -> None:
    assert run("steps=2") == 0
    refuse_checkpoints_after(output, 1)
    assert run("--resume", "--changed", "steps=4") == 0
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["time_s"] for row in rows] == sorted(row["time_s"] for row in rows)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["evaluation.runs=2"], ["evaluation.runs=2"]),
        (["evaluation.modes={ring: {topology: ring}}"], []),
        (
            ["trainer.optimizer={type: torch, name: SGD}"],
            ["trainer.optimizer={type: torch, name: SGD}"],
        ),
        (["trainer.epochs=2"], ["trainer.epochs=1"]),
    ],
)
def test_run_resumes_with_what_its_own_recipe_wrote(
    before: list[str], after: list[str], run: Run, output: Path
) -> None:
    assert run("steps=3", *before) == 0
    for step in (2, 1):  # The second time by a recipe that is no longer a change.
        refuse_checkpoints_after(output, step)
        assert run("--resume", "--changed", "steps=3", *after) == 0
        assert f"refused-{step:06d}" not in {p.name for p in (output / "checkpoints").iterdir()}


def test_run_resumes_when_its_questions_have_no_answers(
    run: Run, output: Path, tmp_path: Path
) -> None:
    rows = [json.dumps({"question": f"Write about {number}."}) for number in range(60)]
    (tmp_path / "open.jsonl").write_text("\n".join(rows))
    settings = (
        "steps=2",
        f"data={{type: questions, path: {tmp_path / 'open.jsonl'}, batch_size: 1}}",
        "debate={type: direct, contract: boxed, personas: none}",
        "reward={type: overlong, max_tokens: 4, buffer: 2}",
    )
    assert run(*settings) == 0
    refuse_checkpoints_after(output, 1)
    assert run("--resume", *settings) == 0


def test_process_that_has_lost_another_says_how_to_go_on() -> None:
    message = str(lost(Place(rank=0, size=2), RuntimeError("Connection closed by peer")))
    assert message.startswith("rank 0 of 2: found another process of the run gone (Connection")
    assert message.endswith("go on from the run's last checkpoint with --resume")
