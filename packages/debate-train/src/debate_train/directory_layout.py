"""What stands where in an output directory, judged before anything in it is opened."""

import re
import stat
from pathlib import Path

from debate_train.directory_lock import LOCK, refuse_in_use
from debate_train.errors import UsageError

RUN_FOLDERS = ("transcripts", "tokens", "checkpoints", "wandb")
RUN_FILES = (
    LOCK,
    "recipe.yaml",
    "metrics.jsonl",
    "results.json",
    "environment.json",
    "recipe-from-step-*.yaml",
    "report.html",
    "transcripts/*",
    "tokens/*",
    "checkpoints/best.json",
    "wandb/run-id.txt",
)
"""Plain files and folders of a run, in or below its folder."""
_UNBORN = re.compile(r"\.recipe\.yaml\.\d+")
"""The only file, beside the lock, of a run that was killed while its folder was made."""


class RunDirectoryError(UsageError):
    """The output directory cannot be used; the message says which, why, and what to do."""


def layout_problem(path: Path, files: tuple[str, ...], folders: tuple[str, ...]) -> str | None:
    """Return what in a folder is a link, or is not what a run has there; None where all is well.

    Args:
        path: The folder.
        files: Patterns of names of plain files, in it or in one of `folders`.
        folders: Names of folders in it, which hold nothing but files and folders.
    """
    for pattern in files:
        for found in sorted(path.glob(pattern)):
            if problem := _unlike(found, path, stat.S_ISREG, "a plain file"):
                return problem
    for name in folders:
        if problem := _unlike(path / name, path, stat.S_ISDIR, "a folder"):
            return problem
    return None


def _unlike(found: Path, root: Path, is_kind: object, expected: str) -> str | None:
    try:
        mode = found.lstat().st_mode
    except FileNotFoundError:
        return None
    if callable(is_kind) and is_kind(mode):
        return None
    kind = (
        "a link"
        if stat.S_ISLNK(mode)
        else "a folder"
        if stat.S_ISDIR(mode)
        else "a file"
        if stat.S_ISREG(mode)
        else "a device"
    )
    return f"{found.relative_to(root)} is {kind}, expected {expected}"


def refuse_used(path: Path, held: bool = False) -> None:
    """Refuse to start a run in a folder that holds anything.

    Args:
        path: The folder, which need not be there.
        held: Whether this process has its lock.

    Raises:
        RunDirectoryError: It does, is a file, or cannot be read.
        DirectoryInUseError: Another process writes there.
    """
    try:
        found = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
        is_file = path.exists() and not path.is_dir()
        if LOCK in found:
            found.remove(LOCK)
            if not held:
                refuse_in_use(path)
    except OSError as error:
        raise not_writable(path, error) from error
    found = [name for name in found if not _UNBORN.fullmatch(name)]
    if is_file:
        raise RunDirectoryError(
            f"cannot write a run to {path}: found a file, expected a folder; "
            "choose another --output"
        )
    if found:
        shown = ", ".join(found[:3]) + (", …" if len(found) > 3 else "")
        raise RunDirectoryError(
            f"cannot start a run in {path}: it holds {shown}; expected a new or empty folder; "
            "choose another --output, or continue that run with --resume"
        )


def not_writable(path: Path, error: OSError) -> RunDirectoryError:
    """Return what to say of a folder in which a file cannot be written."""
    return RunDirectoryError(
        f"cannot write to {path}: {error.strerror or error}; "
        "choose an --output on a disk with space where you may write"
    )
