"""A study that is interrupted or killed, with real runs: checkpoints, and the next call goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from debate_studies.lines import Lines
from debate_train.checkpoints.whole_files import DirectoryInUseError, DirectoryLock
from studies.test_study import MINIATURE, RECIPE

pytestmark = pytest.mark.slow

ARM = {"recipe": RECIPE, "settings": ["phases.reinforce.steps=3000"]}
LONG = MINIATURE | {"seeds": [0], "starts": {}, "arms": {"grpo": ARM}, "compared": [], "plot": []}


def begun(folder: Path) -> subprocess.Popen[str]:
    """Start a study in a process, and wait until its run has made a step of reinforcement."""
    command = [sys.executable, "-m", "debate_studies.command", "study.yaml", "--output", "runs"]
    study = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    rows, steps = folder / "runs/grpo-0/metrics.jsonl", steps_of(folder)
    for _ in range(3000):
        assert study.poll() is None
        if rows.is_file() and '"reinforce"' in rows.read_text() and steps_of(folder) > steps:
            return study
        time.sleep(0.02)
    raise AssertionError("no step within 60 s")


def steps_of(folder: Path) -> int:
    rows = folder / "runs/grpo-0/metrics.jsonl"
    return len(rows.read_text().splitlines()) if rows.is_file() else 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_run_of_a_study_that_ends_keeps_its_steps(tmp_path: Path, number: signal.Signals) -> None:
    file, run = tmp_path / "study.yaml", tmp_path / "runs/grpo-0"
    file.write_text(yaml.safe_dump(LONG | {"results": "lines.jsonl"}))
    with begun(tmp_path) as study:
        os.kill(study.pid, number)
        assert study.wait(60) == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    until_free(run)
    first = steps_of(tmp_path)
    assert f"step-{first:06d}" in {one.name for one in (run / "checkpoints").iterdir()}
    assert not (run / "results.json").exists() and not Lines(tmp_path / "lines.jsonl").read()
    if number == signal.SIGKILL:
        with begun(tmp_path) as study:  # The next call goes on from there.
            study.terminate()
        assert steps_of(tmp_path) > first


def until_free(run: Path) -> None:
    """Wait until nobody holds the run's lock."""
    for _ in range(3000):
        try:
            return DirectoryLock(run).release()
        except DirectoryInUseError:
            time.sleep(0.02)
    raise AssertionError("still in use after 60 s")
