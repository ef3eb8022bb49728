"""Processes that a run starts end with it, also where it is killed in their first moments."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

SERVER = """
import sys
from pathlib import Path
from debate_rollout.engines.vllm.server_process import ServerProcess
marker = sys.argv[1]
command = [sys.executable, "-c", "import time; time.sleep(600)", marker]
server = ServerProcess(command, {}, Path(marker))
print(flush=True)
server.ends_within(600)
"""
STUDY = """
import sys
from pathlib import Path
from debate_studies.runs import TrainProcesses
import debate_studies.runs as runs
program = "import sys, time; from pathlib import Path;"
program += "from debate_train.trainers.launching import heed_interrupts;"
program += "heed_interrupts(Path(sys.argv[-1].partition('=')[2])); time.sleep(600)"
start = runs.subprocess.Popen
def started(command, **settings):
    return start([sys.executable, "-c", program, *command[3:]], **settings)
runs.subprocess.Popen = started
print(flush=True)
TrainProcesses({})([sys.argv[1]], Path(sys.argv[1]))
"""


def processes_with(marker: Path) -> list[int]:
    """Processes that have a text among their arguments."""
    processes = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(marker) in entry.read_bytes().decode(errors="replace").split("\0"):
                processes.append(int(entry.parent.name))
    return processes


def left_of(marker: Path, kill: Callable[[], None]) -> list[int]:
    """End a process by `kill`; return what remains of those with the marker."""
    kill()
    deadline = time.monotonic() + 30
    while (left := processes_with(marker)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in left:
        os.kill(process, signal.SIGKILL)
    return left


def left_after_a_kill(program: str, delay_s: float, marker: Path) -> list[int]:
    """Kill a program that has begun to start a process."""
    starter = subprocess.Popen([sys.executable, "-c", program, str(marker)], stdout=subprocess.PIPE)
    assert starter.stdout is not None and starter.stdout.readline() == b"\n"
    time.sleep(delay_s)

    def kill() -> None:
        starter.kill()
        starter.communicate()

    return left_of(marker, kill)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(SERVER, id="server"),
        pytest.param(STUDY, id="study", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "delays_s",
    [
        pytest.param((0.0, 0.3, 1.0), id="few"),
        pytest.param([n / 20 for n in range(30)], id="many", marks=pytest.mark.slow),
    ],
)
def test_nothing_outlives_a_run_that_is_killed(
    program: str, delays_s: Sequence[float], tmp_path: Path
) -> None:
    markers = [tmp_path / str(number) for number in range(len(delays_s))]
    with ThreadPoolExecutor(3) as executor:
        programs = [program] * len(delays_s)
        left = list(executor.map(left_after_a_kill, programs, delays_s, markers))
    assert [processes for processes in left if processes] == []


def test_a_server_ends_when_its_supervisor_is_killed(tmp_path: Path) -> None:
    marker = tmp_path / "log"
    starter = subprocess.Popen([sys.executable, "-c", SERVER, str(marker)], stdout=subprocess.PIPE)
    deadline = time.monotonic() + 60
    # Starter, supervisor and server all have the marker; the supervisor is the starter's child.
    while len(processes_with(marker)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    children = Path(f"/proc/{starter.pid}/task/{starter.pid}/children")
    supervisor = [int(child) for child in children.read_text().split()]
    assert left_of(marker, lambda: os.kill(supervisor[0], signal.SIGKILL)) == []
    starter.wait()
