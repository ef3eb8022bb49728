"""A run that is killed at any moment and resumed ends as one that nobody killed: exactly."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from system import killed_runs

pytestmark = pytest.mark.slow

SEED = 0


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    script = Path(__file__).parent / "killed_runs.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path_factory.mktemp("killed")), str(SEED)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize(
    ("variant", "least"), [(name, kills) for name, (_, kills) in killed_runs.VARIANTS.items()]
)
def test_killed_run_ends_as_if_it_had_not_been_when_resumed(
    found: dict[str, Any], variant: str, least: int
) -> None:
    chains = [one for one in found["chains"] if one["variant"] == variant]
    for one in chains:
        assert not one["differences"], "\n".join(one["differences"])
    assert sum(one["kills"] for one in chains) >= least


def test_some_runs_are_killed_while_they_write_a_checkpoint(found: dict[str, Any]) -> None:
    assert sum(one["while_writing_one"] for one in found["chains"]) >= 5


def test_run_ends_with_one_message_when_the_disk_is_full(found: dict[str, Any]) -> None:
    full = found["full_disk"]
    assert full["codes"] == [1, 0]
    message = full["log"].splitlines()[-1]
    assert message.startswith("debate-train: cannot write ")
    assert "File too large (os error 27); the checkpoints before it are whole" in message
    assert "Traceback" not in full["log"]
    # Those before are there, and no other; the run then goes on as if nothing had been.
    before, after = full["checkpoints"]
    assert before and set(before) <= set(after) <= {*before, "best.json"}
    assert full["differences"] == []


def test_comparison_notices_another_run(found: dict[str, Any]) -> None:
    told = {"metrics.jsonl", "checkpoints/step-000006/model.safetensors"}
    assert told <= set(found["control"])


def test_runs_heed_signals_that_the_process_which_starts_them_ignores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def which(_: list[str]) -> int:
        heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        return 10 * heeded + (signal.getsignal(signal.SIGHUP) == signal.SIG_DFL)

    monkeypatch.setattr(killed_runs, "main", which)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert killed_runs.launch(tmp_path, [], killed_runs.Moment()) == 11
