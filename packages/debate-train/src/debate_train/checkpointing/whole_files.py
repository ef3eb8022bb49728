"""Files that are there complete or not at all, whenever the process stops."""

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BLOCK = 1 << 16
_UNFINISHED = re.compile(r"\..+\.\d+(\.part)?|\.tmp\w{6}")
"""Names of unfinished files: of `whole_file`, of `write_transcripts` and of safetensors."""


def open_plain(path: Path, flags: int) -> int:
    """Open a file in a folder that may come from somebody else; return its descriptor.

    A link there could lead to any file of the user's, so that none is followed, and a file with a
    second name is another one, too.

    Raises:
        OSError: It is a link or no plain file, or cannot be opened.
    """
    try:
        number = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(error.errno, f"{path.name} is a link, expected a plain file") from error
        raise
    found = os.fstat(number)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(number)
        what = (
            "is a link, too: a second name of a file" if found.st_nlink > 1 else "is no plain file"
        )
        raise OSError(errno.EINVAL, f"{path.name} {what}")
    return number


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a name to write to, moved onto `path` only when the writing ended well."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)  # It might be a link that somebody put there.
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
        if _UNFINISHED.fullmatch(path.name) and (path.is_file() or path.is_symlink()):
            path.unlink()


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
    with os.fdopen(open_plain(path, os.O_RDWR | os.O_CREAT), "rb+") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - _BLOCK)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        if end < size:
            file.truncate(end)
    return end < size


def sync_directory(path: Path) -> None:
    """Bring the names in a folder to the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
