import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from debate_train.checkpoints.whole_files import (
    LOCK,
    DirectoryInUseError,
    DirectoryLock,
)

HOLD = """\
import sys, time
from pathlib import Path
from debate_train.checkpoints.whole_files import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_lock_names_the_process_when_another_holds_it(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with pytest.raises(DirectoryInUseError) as caught:
        DirectoryLock(tmp_path)
    message = f"--output: found {tmp_path} in use by process {os.getpid()}; expected no other"
    assert str(caught.value).startswith(message)
    lock.release()
    lock.release()
    assert (tmp_path / LOCK).read_bytes() == b""
    DirectoryLock(tmp_path).release()


def test_lock_is_free_when_its_process_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            with pytest.raises(DirectoryInUseError, match=f"process {process.pid};"):
                DirectoryLock(tmp_path)
        finally:
            process.send_signal(signal.SIGKILL)
    DirectoryLock(tmp_path).release()


@pytest.mark.parametrize("releases", [False, True])
def test_lock_does_not_stay_when_a_forked_process_outlives_it(
    tmp_path: Path, releases: bool
) -> None:
    lock = DirectoryLock(tmp_path)
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        if releases:  # As an orderly end of the child would; it is its parent's all the same.
            lock.release()
        os.write(told, b".")
        signal.pause()
    try:
        assert os.read(ready, 1) == b"."
        with pytest.raises(DirectoryInUseError, match=f"process {os.getpid()};"):
            DirectoryLock(tmp_path)
        lock.release()
        DirectoryLock(tmp_path).release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(told)


def test_lock_does_not_stay_when_a_started_program_outlives_it(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with subprocess.Popen(["sleep", "60"], close_fds=False) as process:
        try:
            lock.release()
            again = DirectoryLock(tmp_path)
            assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"
            assert process.poll() is None
            again.release()
        finally:
            process.kill()


def test_lock_is_refused_when_its_directory_was_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def removed_before(number: int, how: int) -> None:
        (tmp_path / LOCK).unlink()
        flock(number, how)

    monkeypatch.setattr("fcntl.flock", removed_before)
    with pytest.raises(DirectoryInUseError, match="in use by another process"):
        DirectoryLock(tmp_path)


def test_lock_warns_when_the_disk_knows_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def without(number: int, how: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", without)
    DirectoryLock(tmp_path).release()
    assert "found a disk without locks (Function not implemented)" in caplog.text
