"""Files that are complete or absent, and one process at a time in a directory."""

import errno
import logging
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import Timeout, UnixFileLock, has_fcntl

from debate_train.interrupts import UsageError

_UNFINISHED = re.compile(r"\..+\.\d+(\.part)?|\.tmp\w{6}")
"""Names of unfinished files: of `whole_file`, of `write_transcripts` and of safetensors."""


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a name to write to, moved onto `path` only when the writing ended well."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    try:
        unfinished.touch(exist_ok=False)
        mode = stat.S_IMODE(unfinished.stat().st_mode)
        yield unfinished
        unfinished.chmod(mode)  # A library may have put one in its place that others cannot read.
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Remove what a process that was killed left half written in a folder."""
    for path in folder.iterdir():
        if is_unfinished(path):
            path.unlink()


def is_unfinished(path: Path) -> bool:
    """Return whether a process that was killed left this file half written."""
    is_file = path.is_file() or path.is_symlink()
    return is_file and _UNFINISHED.fullmatch(path.name) is not None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file as a whole."""
    with whole_file(path) as unfinished, unfinished.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def cut_torn_line(path: Path) -> bool:
    """Cut off a last line without its end, which a stop in mid-write leaves.

    Returns:
        Whether there was one.
    """
    with path.open("ab+") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        if file.read() in (b"", b"\n"):
            return False
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
    return True


def sync_directory(path: Path) -> None:
    """Bring the names in a folder to the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


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
        self._lock = _acquired(self._path)
        if self._lock is not None:
            self._path.write_text(f"{os.getpid()}\n")

    def release(self) -> None:
        """Let others in; a second call does nothing, and neither does one in a forked process."""
        if self._lock is not None and self._lock.is_locked:
            with suppress(OSError):  # It may have been removed with all of the folder.
                os.truncate(self._path, 0)
            self._lock.release()


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
