"""Files that are there complete or not at all, whenever the process stops."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BLOCK = 1 << 16
_UNFINISHED = re.compile(r"\..+\.\d+(\.part)?|\.tmp\w{6}")
"""Names of `aside`, of `write_transcripts` and of safetensors, which writes aside, too."""


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """Give a name to write to, moved onto `path` only when the writing ended well."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Remove what a process that was killed left half written in a folder."""
    for path in folder.iterdir():
        if _UNFINISHED.fullmatch(path.name) and path.is_file():
            path.unlink()


def write_aside(path: Path, content: bytes) -> None:
    """Write a file as a whole."""
    with aside(path) as unfinished, unfinished.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def cut_torn_line(path: Path) -> bool:
    """Cut off a last line without its end, which a stop in mid-write leaves.

    Returns:
        Whether there was one.
    """
    path.touch()
    with path.open("rb+") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - _BLOCK)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        file.truncate(end)
    return end < size


def sync_directory(path: Path) -> None:
    """Bring the names in a folder to the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
