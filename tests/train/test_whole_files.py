"""The lock of an output directory: held by one process, and by none that is dead."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from debate_train.checkpoints.whole_files import LOCK, DirectoryInUseError, DirectoryLock

LOCK_AND_WAIT = """\
import sys, time
from pathlib import Path
from debate_train.checkpoints.whole_files import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
print("locked", flush=True)
time.sleep(60)
"""


def assert_locked_by(process_id: int, folder: Path) -> None:
    with pytest.raises(DirectoryInUseError, match=f"in use by process {process_id};"):
        DirectoryLock(folder)


def test_lock_names_the_process_that_has_it(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with pytest.raises(DirectoryInUseError) as refusal:
        DirectoryLock(tmp_path)
    message = f"--output: found {tmp_path} in use by process {os.getpid()}; expected no other"
    assert str(refusal.value).startswith(message)
    lock.release()
    lock.release()
    assert (tmp_path / LOCK).read_bytes() == b""
    DirectoryLock(tmp_path).release()


def test_lock_is_free_when_its_process_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOCK_AND_WAIT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "locked\n"
            assert_locked_by(process.pid, tmp_path)
        finally:
            process.kill()
    DirectoryLock(tmp_path).release()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read_end, write_end = os.pipe()
    yield read_end, write_end
    os.close(read_end)
    os.close(write_end)


@pytest.mark.parametrize("child_releases", [False, True])
def test_lock_does_not_stay_when_a_forked_process_outlives_it(
    tmp_path: Path, pipe: tuple[int, int], child_releases: bool
) -> None:
    read_end, write_end = pipe
    lock = DirectoryLock(tmp_path)
    child = os.fork()
    if child == 0:
        if child_releases:  # As an orderly end of the child would; the lock stays its parent's.
            lock.release()
        os.write(write_end, b".")
        signal.pause()
    try:
        assert os.read(read_end, 1) == b"."
        assert_locked_by(os.getpid(), tmp_path)
        lock.release()
        DirectoryLock(tmp_path).release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


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

    def remove_before(number: int, how: int) -> None:
        (tmp_path / LOCK).unlink()
        flock(number, how)

    monkeypatch.setattr("fcntl.flock", remove_before)
    with pytest.raises(DirectoryInUseError, match="in use by another process"):
        DirectoryLock(tmp_path)


def test_lock_warns_when_the_disk_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(number: int, how: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    DirectoryLock(tmp_path).release()
    assert "found a disk without locks (Function not implemented)" in caplog.text
