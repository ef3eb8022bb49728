"""ACC-Debate that is killed in each phase of both alternations ends as if it had not been."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "system.killed_sets", str(tmp_path_factory.mktemp("killed"))],
        cwd=tests,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_killed_alternations_end_with_the_same_bits(found: dict[str, Any]) -> None:
    assert found["codes"] == [0, 0], found["log"]
    assert found["missed"] == [], found["log"]
    assert found["kills"] == 16
    assert found["differences"] == [], found["log"]


def test_alternation_that_is_not_kept_leaves_both_sides_as_they_were(found: dict[str, Any]) -> None:
    assert found["kept"] == {"critic": True, "actor_again": False}
    assert found["went_back"] == []


def test_what_is_compared_holds_both_sides_and_all_sets(found: dict[str, Any]) -> None:
    last = "checkpoints/step-000008"
    names = [f"{last}/{side}/adapter_model.safetensors" for side in ("actor", "critic")]
    names += ["checkpoints/step-000007/optimizer-00000.safetensors"]
    names += ["metrics.jsonl", "results.json"]
    for phase in ("critic-000000", "actor-000002", "critic_again-000004", "actor_again-000006"):
        names += [f"offline/{phase}.jsonl", f"offline/{phase}.held_out.jsonl"]
    assert set(names) <= set(found["files"])
    # A run with another seed ends with other weights of both sides, and other pairs.
    assert set(names) <= set(found["control"])
