"""Baselines that go on from step to step are kept by checkpoints."""

import json
from pathlib import Path

import pytest
from tests.train.test_resumes import RECIPE, Run, refuse_checkpoints_after

from debate_train.commands.cli import main

ROLE_EMA = ("advantage={type: role_ema, decay: 0.5}", "debate.num_agents=3")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def run(tmp_path: Path, output: Path) -> Run:
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE)
    return lambda *arguments: main([str(path), "--output", str(output), *arguments])


def baselines(output: Path) -> dict[int, dict[str, float]]:
    """Return the running baselines after each step, as the metrics say."""
    rows = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return {
        row["step"]: {k: v for k, v in row.items() if k.startswith("advantage/baseline/")}
        for row in rows
    }


def test_running_baselines_go_on_where_a_checkpoint_left_them(run: Run, output: Path) -> None:
    assert run(*ROLE_EMA) == 0
    whole = baselines(output)
    assert "advantage/baseline/generator/debater" in whole[4]
    assert whole[4] != whole[2]
    refuse_checkpoints_after(output, 2)
    assert run(*ROLE_EMA, "--resume") == 0
    assert baselines(output) == whole
