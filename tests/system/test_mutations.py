"""A seeded slice of the mutation scripts: damaged run directories, signals at random moments."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("script", "count", "judged"),
    [("mutate_run_directories", 12, "damaged"), ("mutate_signals", 2, "runs")],
)
def test_nothing_is_lost_or_silent_when_runs_are_damaged_or_stopped(
    script: str, count: int, judged: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.resuming.{script}", f"--count={count}", "--seed=11"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert result["failures"] == []
    assert (result[judged], done.returncode) == (count, 0)
