"""Runs and evaluations that are killed and resumed end as if they had not been."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stress import killed_runs

pytestmark = pytest.mark.slow
TESTS = Path(__file__).parents[1]


def results_of(script: str, *arguments: str) -> dict[str, Any]:
    """Run a script, which forks after its imports: a start costs nothing."""
    completed = subprocess.run(
        [sys.executable, "-m", f"stress.{script}", *arguments],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr[-4000:]
    results: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    return results


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results_of("killed_runs", str(tmp_path_factory.mktemp("runs")), "0")


@pytest.fixture(scope="module")
def evaluations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results_of("killed_evaluations", str(tmp_path_factory.mktemp("evaluations")))


@pytest.mark.parametrize(
    ("variant", "num_kills"), [(name, kills) for name, (_, kills) in killed_runs.VARIANTS.items()]
)
def test_killed_run_ends_as_if_it_had_not_been_when_resumed(
    runs: dict[str, Any], variant: str, num_kills: int
) -> None:
    chains = [chain for chain in runs["chains"] if chain["variant"] == variant]
    for chain in chains:
        assert not chain["differences"], "\n".join(chain["differences"])
    assert sum(chain["kills"] for chain in chains) >= num_kills


def test_some_runs_are_killed_while_they_write_a_checkpoint(runs: dict[str, Any]) -> None:
    assert sum(chain["while_writing_one"] for chain in runs["chains"]) >= 5


def test_comparison_notices_another_run(runs: dict[str, Any]) -> None:
    different = {"metrics.jsonl", "checkpoints/step-000006/model.safetensors"}
    assert different <= set(runs["control"])


def test_run_ends_with_one_message_when_the_disk_is_full(runs: dict[str, Any]) -> None:
    full_disk = runs["full_disk"]
    assert full_disk["codes"] == [1, 0]
    message = full_disk["log"].splitlines()[-1]
    assert message.startswith("debate-train: cannot write ")
    assert "File too large (os error 27); the checkpoints before it are whole" in message
    assert "Traceback" not in full_disk["log"]
    # Those before are there, and no other; the run then goes on as if nothing had been.
    before, after = full_disk["checkpoints"]
    assert before
    assert set(before) <= set(after) <= {*before, "best.json"}
    assert full_disk["differences"] == []


def test_killed_evaluation_ends_as_if_it_had_not_been_when_resumed(
    evaluations: dict[str, Any],
) -> None:
    killed = [chain for chain in evaluations["chains"] if chain["codes"][0] is None]
    assert len(killed) >= 10
    for chain in killed:
        assert chain["codes"][1] == 0, chain["log"]
        assert not chain["differences"], chain
    assert sum(chain["resumed"] for chain in killed) >= 8
    policies = {f"policies/{name}.json" for name in ("recipe", "other")}
    assert {"evaluation.json", "results.json", *policies} <= set(evaluations["files"])
    assert not [name for name in evaluations["files"] if name.startswith("replies/")]
