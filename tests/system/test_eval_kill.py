"""An evaluation that is killed and resumed ends as one that nobody killed: exactly."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    script = Path(__file__).parent / "killed_evaluations.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path_factory.mktemp("killed"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_killed_evaluation_ends_as_if_it_had_not_been_when_resumed(found: dict[str, Any]) -> None:
    killed = [one for one in found["chains"] if one["codes"][0] == -9]
    assert len(killed) >= 14
    for one in killed:
        assert one["codes"][1] == 0, one["log"]
        assert not one["differences"], one
    # Some had begun, and some were torn in the middle of the replies of a call.
    assert sum(one["began"] for one in killed) >= 12
    assert sum(one["moment"][1] > 0 for one in killed) == 4


def test_evaluation_leaves_results_and_transcripts_and_no_single_replies(
    found: dict[str, Any],
) -> None:
    expected = {
        *(f"policies/{name}.json" for name in ("recipe", "other")),
        *(f"transcripts/{name}/direct.jsonl" for name in ("recipe", "other")),
        *("evaluation.json", "recipe.yaml", "results.json"),
    }
    files = {name.removeprefix("found/") for name in found["files"]}
    assert expected <= files
    assert not [name for name in files if name.startswith("replies/")]
    # Two policies, each: direct replies, first turns of both modes of debate, and later rounds.
    assert found["calls"] == 2 * (1 + 1 + 1 + 1)
