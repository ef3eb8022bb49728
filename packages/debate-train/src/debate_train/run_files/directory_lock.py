"""One process at a time in an output directory."""

import errno
import logging
import os
from contextlib import suppress
from pathlib import Path

from filelock import Timeout, UnixFileLock, has_fcntl

from debate_train.checkpointing.whole_files import open_plain
from debate_train.errors import UsageError

LOCK = ".lock"
_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}

NO_WINDOWS = (
    "debate-train runs on Linux and macOS, and on Windows in WSL: this Python has no fcntl, "
    "with which a run keeps its directory to itself"
)

_log = logging.getLogger(__name__)


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
        if not has_fcntl:
            raise UsageError(NO_WINDOWS)
        self._path = directory / LOCK
        os.close(open_plain(self._path, os.O_RDWR | os.O_CREAT))  # Refuses links and folders.
        self._lock = _acquired(self._path)
        if self._lock is not None:
            self._path.write_text(f"{os.getpid()}\n")

    def release(self) -> None:
        """Let others in; a second call does nothing, and neither does one in a forked process."""
        if self._lock is not None and self._lock.is_locked:
            with suppress(OSError):  # It may have been removed with all of the folder.
                os.truncate(self._path, 0)
            self._lock.release()


def refuse_in_use(directory: Path) -> None:
    """Refuse a directory that another process holds.

    Raises:
        DirectoryInUseError: One does; the message says which.
        OSError: The lock is no plain file, or cannot be read.
    """
    path = directory / LOCK
    try:
        os.close(open_plain(path, os.O_RDWR))
    except (FileNotFoundError, NotADirectoryError):
        return
    if (lock := _acquired(path)) is not None:
        lock.release()


def _acquired(path: Path) -> UnixFileLock | None:
    """Return the lock, None where the disk knows no locks.

    `filelock` would then create a marker file, which stays when its process is killed.
    """
    lock = UnixFileLock(path, timeout=0, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise _in_use(path) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _log.warning(
            "%s: found a disk without locks (%s); expected no other process to write there",
            path.parent,
            error.strerror,
        )
        return None
    return lock


def _in_use(path: Path) -> DirectoryInUseError:
    try:
        number = path.read_text(errors="replace")[:20].strip()
    except OSError:  # Whoever made the folder has just removed it.
        number = ""
    process = f"process {number}" if number.isdigit() else "another process"
    return DirectoryInUseError(
        f"--output: found {path.parent} in use by {process}; expected no other process to write "
        "there; wait for it to end, or choose another --output"
    )
