"""The benchmark of whole runs on a GPU: its cases are recipes, and its comparison can fail."""

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import training as script
from debate_train.commands.cli import main

ROOT = Path(__file__).parents[2]


def test_every_case_is_a_recipe_that_could_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script.make_model(tmp_path / "model", tiny=True)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(script.RECIPE.format(model=tmp_path / "model", questions=2))
    for name, overrides in script.CASES.items():
        assert main([str(recipe), *overrides, "--check"]) == 0, (name, capfd.readouterr().err)


def line(case: str, *losses: float) -> dict[str, Any]:
    return {"case": case, "loss": list(losses), "optim/grad_norm": [2.0] * len(losses)}


def test_case_that_learns_something_else_fails() -> None:
    lines = [line("torch", 4.0, 3.0, 1.0), line("zero 2", 4.0, 3.02, 5.0)]
    assert script.compare(lines)
    assert lines[1]["differs"]["loss"] == pytest.approx(0.02 / 3)
    # Self-play samples for itself: its losses are not compared. Kinds are compared apart.
    assert script.compare([line("torch", 4.0, 3.0), line("torch, lora", 9.0, 8.0)])
    assert not script.compare([line("torch", 4.0, 3.0, 1.0), line("zero 2", 4.0, 3.04, 1.0)])
    assert not script.compare([line("torch", 4.0, 3.0, 1.0), line("zero 2", 4.0, 3.0)])
    assert not script.compare([line("torch", 4.0, 3.0), {"case": "zero 2", "error": "died"}])


def test_interrupt_is_sent_after_three_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = tmp_path / "metrics.jsonl"
    program = (
        "import pathlib, sys, time\n"
        "for step in range(600):\n"
        f"    with pathlib.Path({str(metrics)!r}).open('a') as file: file.write('\"loss\"\\n')\n"
        "    time.sleep(0.1)\n"
    )
    (tmp_path / "recipe.yaml").write_text("")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text(f"#!{Path('/usr/bin/env')} python3\n{program}")
    (tmp_path / "python").chmod(0o755)
    done = script.debate_train(tmp_path, interrupted=metrics)
    assert done.returncode not in (0, None)
    assert "KeyboardInterrupt" in done.stdout
    assert 3 <= metrics.read_text().count("loss") < 100
