"""Slices of the mutation scripts: no traceback, nothing executed, nothing wrongly accepted."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.robustness import mutate_models, mutate_recipes
from benchmarks.robustness import mutate_transcripts as mutating

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def test_mutated_recipes_are_refused_or_read_again_the_same() -> None:
    counts = mutate_recipes.main(mutate_recipes.parsed(["--every", "149"]))
    assert counts["trials"] > 200
    assert counts["failures"] == 0, counts
    assert counts["groups"]["override"]["accepted"] > 0


def test_damaged_models_are_refused() -> None:
    counts = mutate_models.main(["--every", "41"])
    assert counts["trials"] > 10
    assert counts["failures"] == 0, counts
    assert counts["groups"]["check"]["accepted"] > 0  # The first is whole.


def test_no_command_fails_on_mutated_transcripts(monkeypatch):
    monkeypatch.setattr("debate_rewards.estimates.RESAMPLES", 20)
    # Every fifth case verifies mathematics, for whose workers other tests wait.
    cases = [case for case in range(30) if case % 5 < 4]
    with mutating.limited_time():
        counts = mutating.counts(mutating.run_case(7, case) for case in cases)
    assert (counts["cases"], counts["inputs"]) == (24, 192)
    assert {name: counts[name] for name in mutating.FAILURES} == dict.fromkeys(mutating.FAILURES, 0)
    # Not all are refused at the door.
    assert counts["exit_codes"]["stats"]["0"] > 3
    assert counts["exit_codes"]["show"]["2"] > 3


@pytest.mark.parametrize(
    ("script", "count", "judged"),
    [("mutate_run_directories", 12, "damaged"), ("mutate_signals", 2, "runs")],
)
def test_nothing_is_lost_or_silent_when_runs_are_damaged_or_stopped(
    script: str, count: int, judged: str
) -> None:
    completed = subprocess.run(
        [sys.executable, "-m", f"benchmarks.resuming.{script}", f"--count={count}", "--seed=11"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    result: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    assert result["failures"] == []
    assert (result[judged], completed.returncode) == (count, 0)
