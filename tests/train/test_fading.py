"""A part of a mixed reward that fades: step by step of its phase, the same when resumed."""

import json
import shutil
from pathlib import Path

import pytest

from debate_train.commands.cli import main
from train.small_runs import RECIPE, end_of

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


def test_weight_falls_from_the_phases_first_step_on_when_resumed_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, whole, again = tmp_path / "r.yaml", tmp_path / "whole", tmp_path / "again"
    kept = [line for line in RECIPE.splitlines() if not line.startswith(("reward", "evaluation"))]
    recipe.write_text("\n".join(kept) + "\n" + FADING)
    assert main([str(recipe), "--check"]) == 0
    said = "reward.components.truth.weight: from 0.5 to 0 over the phase's first 4 steps"
    assert capsys.readouterr().out.count(said) == 2
    assert main([str(recipe), "--output", str(whole)]) == 0
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    found = [row["reward/weight/truth"] for row in rows]
    assert found == [0.5, 0.375, 0.5, 0.375, 0.25, 0.125, 0, 0]
    assert "reward/weight/peers" not in rows[0]
    shutil.copytree(whole, again)
    for step in (5, 6, 7, 8):
        shutil.rmtree(again / f"checkpoints/step-{step:06d}")
    assert main([str(recipe), "--resume", "--output", str(again)]) == 0
    assert end_of(again) == end_of(whole)
