"""Complete or absent files, and a directory for a single process at a time."""

import errno
import logging
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from debate_train.errors import UsageError

if TYPE_CHECKING:
    from filelock import UnixFileLock

LOCK = ".lock"
# Names of unfinished files: of `whole_file`, of `write_transcripts` and of safetensors.
UNFINISHED_NAME = re.compile(r"\..+\.\d+(\.part)?|\.tmp\w{6}")
DISK_WITHOUT_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}
NO_WINDOWS = (
    "debate-train runs on Linux and macOS, and on Windows in WSL: this Python has no fcntl, "
    "with which a run keeps its directory to itself"
)

_log = logging.getLogger(__name__)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a name to write to, moved onto `path` only when the writing ended well."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    try:
        unfinished.touch(exist_ok=False)
        mode = stat.S_IMODE(unfinished.stat().st_mode)
        yield unfinished
        # A library may have replaced the file by one that others cannot read.
        unfinished.chmod(mode)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Remove the half written files of a killed process from a folder."""
    for path in folder.iterdir():
        if is_unfinished(path):
            path.unlink()


def is_unfinished(path: Path) -> bool:
    """Say whether a killed process left this file half written."""
    is_file = path.is_file() or path.is_symlink()
    return is_file and UNFINISHED_NAME.fullmatch(path.name) is not None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file as a whole."""
    with whole_file(path) as unfinished, unfinished.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def cut_torn_line(path: Path) -> bool:
    """Cut off a last line without an end, left by a stop in mid-write.

    Returns:
        Whether there was such a line.
    """
    with path.open("ab+") as file:
        file_size = file.seek(0, os.SEEK_END)
        file.seek(max(0, file_size - 1))
        if file.read() in (b"", b"\n"):
            return False
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
    return True


def sync_directory(path: Path) -> None:
    """Sync the names in a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class DirectoryInUseError(UsageError):
    """Another process writes to the output directory; the message names it."""


class DirectoryLock:
    """Locks a directory until `release`, or until this process ends in whatever way.

    Programs started by this process do not inherit the lock, and forked processes let go of it:
    a worker may outlive the run without keeping others out.

    Args:
        directory: An existing output directory; `.lock` in it names the process.

    Raises:
        DirectoryInUseError: Another process has the lock.
        OSError: The lock's file cannot be written.
        UsageError: There are no such locks, as on Windows.
    """

    def __init__(self, directory: Path) -> None:
        from filelock import has_fcntl

        if not has_fcntl:
            raise UsageError(NO_WINDOWS)
        self._path = directory / LOCK
        self._lock = _acquire(self._path)
        if self._lock is not None:
            self._path.write_text(f"{os.getpid()}\n")

    def release(self) -> None:
        """Let others in; a second call has no effect, nor has a call in a forked process."""
        if self._lock is not None and self._lock.is_locked:
            # The file may have been removed with all of the folder.
            with suppress(OSError):
                os.truncate(self._path, 0)
            self._lock.release()


def _acquire(path: Path) -> "UnixFileLock | None":
    """Acquire the lock; `None` where the disk knows no locks."""
    from filelock import Timeout, UnixFileLock

    # Without the fallback: its marker file would stay when the process is killed.
    lock = UnixFileLock(path, timeout=0, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise _in_use(path) from None
    except OSError as error:
        if error.errno not in DISK_WITHOUT_LOCKS:
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
        process_id = path.read_text(errors="replace")[:20].strip()
    except OSError:
        # The process that made the folder has just removed it.
        process_id = ""
    process = f"process {process_id}" if process_id.isdigit() else "another process"
    return DirectoryInUseError(
        f"--output: found {path.parent} in use by {process}; expected no other process to write "
        "there; wait for it to end, or choose another --output"
    )
