"""A phase that misses its exit criterion may end the run."""

import json
from pathlib import Path

import pytest

from debate_train.commands.cli import main
from system.test_training import RECIPE


def test_missed_criterion_may_end_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, recipe = tmp_path / "run", tmp_path / "small.yaml"
    recipe.write_text(RECIPE)

    def train(if_missed: str, *more: str) -> int:
        # One of two measures is reached by anything.
        asked = "metric: eval/format, at_least: 0, also_at_least: {eval/judge/accuracy: 2}"
        criterion = f"{{{asked}, max_steps: 4, if_missed: {if_missed}}}"
        setting = f"phases.warm_start.exit_criterion={criterion}"
        return main([str(recipe), setting, "--output", str(output), *more])

    for more in ([], ["--resume"]):
        assert train("fail", *more) == 1
        said = capsys.readouterr().err
        assert "phase warm_start missed its exit criterion" in said and "Traceback" not in said
        assert not (output / "results.json").exists()
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert {row["phase"] for row in rows} == {"warm_start"}
    state = json.loads((output / "checkpoints/step-000004/state.json").read_text())
    assert state["exit_criteria"] == {"warm_start": False}
    assert train("skip_rest", "--resume", "--changed") == 0
    results = json.loads((output / "results.json").read_text())
    assert results["exit_criteria"] == {"warm_start": False}
