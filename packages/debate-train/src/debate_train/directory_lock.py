"""One process at a time in an output directory."""

import errno
import importlib
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from debate_train.checkpointing.whole_files import open_plain
from debate_train.errors import UsageError

try:
    fcntl: Any = importlib.import_module("fcntl")
except ImportError:  # Windows: its modules import, its commands say that they do not run.
    fcntl = None

LOCK = ".lock"
_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}

NO_WINDOWS = (
    "debate-train runs on Linux and macOS, and on Windows in WSL: this Python has no fcntl, "
    "with which a run keeps its directory to itself"
)

_log = logging.getLogger(__name__)
_held: set[int] = set()


class DirectoryInUseError(UsageError):
    """Another process writes to the output directory; the message says which."""


class DirectoryLock:
    """Holds a directory until `release`, or until this process ends in whatever way.

    Programs that this process starts do not inherit it, and processes that it forks let go of it:
    a worker that outlives the run does not keep others out.

    Args:
        directory: An output directory that is there; `.lock` in it names the process.

    Raises:
        DirectoryInUseError: Another process holds it.
        OSError: The lock's file cannot be written.
        UsageError: There are no such locks, as on Windows.
    """

    def __init__(self, directory: Path) -> None:
        if fcntl is None:
            raise UsageError(NO_WINDOWS)
        path = directory / LOCK
        self._number = open_plain(path, os.O_RDWR | os.O_CREAT)
        try:
            _lock(self._number, directory)
            if not _is_same(self._number, path):  # The one who made it has just removed all.
                raise _in_use(directory, "")
            os.ftruncate(self._number, 0)
            os.pwrite(self._number, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(self._number)
            raise
        _held.add(self._number)

    def release(self) -> None:
        """Let others in; a second call does nothing."""
        if self._number in _held:
            _held.remove(self._number)
            os.ftruncate(self._number, 0)
            os.close(self._number)
            self._number = -1


def refuse_in_use(directory: Path) -> None:
    """Refuse a directory that another process holds.

    Raises:
        DirectoryInUseError: One does; the message says which.
        OSError: The lock is no plain file, or cannot be read.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        number = open_plain(directory / LOCK, os.O_RDWR)
        try:
            _lock(number, directory)
        finally:
            os.close(number)


def _lock(number: int, directory: Path) -> None:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use(directory, os.pread(number, 20, 0).decode(errors="replace")) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _log.warning(
            "%s: found a disk without locks (%s); expected no other process to write there",
            directory,
            error.strerror,
        )


def _in_use(directory: Path, number: str) -> DirectoryInUseError:
    process = f"process {number.strip()}" if number.strip().isdigit() else "another process"
    return DirectoryInUseError(
        f"--output: found {directory} in use by {process}; expected no other process to write "
        "there; wait for it to end, or choose another --output"
    )


def _is_same(number: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(number), path.stat())
    except FileNotFoundError:
        return False


def _let_go() -> None:
    """In a forked process: close the lock, which stays its parent's."""
    for number in _held:
        os.close(number)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
