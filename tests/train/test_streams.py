"""Output that cannot be shown ends nothing."""

import errno
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from debate_train.commands.recipe_command import exit_code
from debate_train.monitoring.progress import Progress, SteadyStream, steady_streams


class Failing(io.StringIO):
    """Keeps what could not be written."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error, self.lost = error, ""

    def write(self, text: str) -> int:
        self.lost += text
        raise self.error


def full_disk() -> Failing:
    return Failing(OSError(errno.ENOSPC, "No space left on device"))


def closed_pipe() -> Failing:
    return Failing(BrokenPipeError())


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("make", [full_disk, closed_pipe])
def test_progress_goes_on_when_it_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Failing], live: bool
) -> None:
    stream = make()
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress(live=live) as progress:
        progress.start("train", 2)
        progress.step(1, {"loss": 0.5})
        progress.note("a line of its own")
    # All of it was written in vain, and the last line was still reached.
    assert "a line of its own" in stream.lost and stream.getvalue() == ""


@pytest.mark.parametrize("live", [False, True])
def test_progress_writes_nowhere_when_standard_error_is_closed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], live: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with Progress(live=live) as progress:
        progress.start("train", 2)
        progress.step(1, {"loss": 0.5})
    assert capfd.readouterr() == ("", "")


def test_command_ends_well_when_nobody_reads_what_it_prints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", closed_pipe())
    monkeypatch.setattr(sys, "stderr", full_disk())

    def act() -> int:
        print("printed")
        print("warned", file=sys.stderr, flush=True)
        return 0

    assert exit_code("debate-train", act) == 0
    assert isinstance(sys.stdout, Failing) and sys.stdout.lost


def test_text_that_the_encoding_lacks_is_escaped() -> None:
    inner = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    stream = SteadyStream(inner)
    assert stream.write("a\u20ac") == 2
    stream.flush()
    assert inner.buffer.getvalue() == b"a\\u20ac"  # type: ignore[attr-defined]


def test_pipe_that_was_closed_ends_the_process_without_an_error() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    code = "from debate_train.monitoring.progress import steady_streams as steady\n"
    code += "with steady(): print(1)"
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=writes, stderr=subprocess.PIPE, check=False
    )
    os.close(writes)
    assert (done.returncode, done.stderr) == (0, b"")


def test_files_get_no_standard_descriptor_when_those_are_closed(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom debate_train.monitoring.progress import steady_streams\n"
        "with steady_streams():\n"
        "    print('lost'); sys.stdout.flush()\n"
        f"    number = open({str(tmp_path / 'kept')!r}, 'w').fileno()\n"
        "sys.exit(number)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(["sh", "-c", '"$@" >&- 2>&-', "sh", *command], check=False)
    assert done.returncode > 2


def test_streams_are_those_before_when_steady_ones_end() -> None:
    before = sys.stdout, sys.stderr
    with steady_streams():
        assert sys.stdout is not before[0]
    assert (sys.stdout, sys.stderr) == before


@pytest.mark.parametrize(("command", "module"), [("train", "cli"), ("rollout", "rollout")])
def test_interrupts_while_a_command_starts_end_it_in_one_line(command: str, module: str) -> None:
    code = (
        "import signal, sys\n"
        "class Slow:\n"  # Stands for the imports that take a second.
        "    def find_spec(self, name, *_):\n"
        f"        if name == 'debate_train.commands.{module}':\n"
        "            signal.raise_signal(signal.SIGINT); signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Slow())\n"
        f"from debate_train.__main__ import {command}\n"
        f"sys.exit({command}())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"interrupted\n")


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "passive"}, "None")],
)
def test_threads_wait_for_each_other_without_taking_the_cores(
    given: dict[str, str], spins: str
) -> None:
    code = (
        "import os, sys\n"
        "class Look:\n"  # torch's threads read it when torch is imported.
        "    def find_spec(self, name, *_):\n"
        "        if name == 'torch':\n"
        "            print(os.environ.get('GOMP_SPINCOUNT')); sys.stdout.flush(); os._exit(0)\n"
        "sys.meta_path.insert(0, Look())\n"
        "from debate_train.__main__ import train\n"
        "sys.argv[1:] = ['quickstart', 'steps=1']\n"
        "sys.exit(train())\n"
    )
    kept = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=kept | given)
    assert done.stdout.splitlines()[-1] == spins
