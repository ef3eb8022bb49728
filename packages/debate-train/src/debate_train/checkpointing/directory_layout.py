"""What stands where in an output directory, and how its files are read back."""

import hashlib
import json
import math
import os
import re
import stat
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from debate_train.checkpointing.checkpoints import is_recipe, kept_recipe
from debate_train.checkpointing.whole_files import LOCK, refuse_in_use, write_whole
from debate_train.interrupts import RunFailure, UsageError

RUN_FOLDERS = (
    "transcripts",
    "tokens",
    "evaluations",
    "checkpoints",
    "offline",
    "wandb",
    "tensorboard",
    "trackio",
)
RUN_FILES = (
    LOCK,
    "recipe.yaml",
    "metrics.jsonl",
    "results.json",
    "environment.json",
    "recipe-from-step-*.yaml",
    "report.html",
    "phase_start.safetensors",
    "transcripts/*",
    "tokens/*",
    "evaluations/*",
    "offline/*",
    "checkpoints/best.json",
    "wandb/*.txt",
    "tensorboard/*",
    "trackio/*",
)
"""Plain files and folders of a run, in or below its folder."""
_WANDB = "wandb"
"""The folder of W&B, which itself links to its last run."""
_UNBORN = re.compile(r"\.recipe\.yaml\.\d+")
"""The only file, beside the lock, of a run that was killed while its folder was made."""


class RunDirectoryError(UsageError):
    """The output directory cannot be used; the message says which, why, and what to do."""


def layout_problem(path: Path, files: tuple[str, ...], folders: tuple[str, ...]) -> str | None:
    """Return what in a folder is a link, or is not what a run has there; None where all is well.

    Args:
        path: The folder.
        files: Patterns of names of plain files, in it or in one of `folders`.
        folders: Names of folders in it, which hold nothing but files and folders, to their bottom.
    """
    for name in folders:
        if problem := _unlike(path / name, path, stat.S_ISDIR, "a folder"):
            return problem
        for place, below, files_there in os.walk(path / name):
            if _WANDB in Path(place).parts[len(path.parts) :]:
                continue
            for one in (*below, *files_there):
                if problem := _unlike(Path(place, one), path, _is_plain, "a plain file or folder"):
                    return problem
    for pattern in files:
        for found in sorted(path.glob(pattern)):
            if problem := _unlike(found, path, stat.S_ISREG, "a plain file"):
                return problem
    return None


def _is_plain(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


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
        _refuse_file(path, path)
        if LOCK in found:
            found.remove(LOCK)
            if not held:
                refuse_in_use(path)
    except OSError as error:
        raise not_writable(path, error) from error
    found = [name for name in found if not _UNBORN.fullmatch(name)]
    if found:
        shown = ", ".join(found[:3]) + (", …" if len(found) > 3 else "")
        raise RunDirectoryError(
            f"cannot start a run in {path}: it holds {shown}; expected a new or empty folder; "
            "choose another --output, or continue that run with --resume"
        )


def _refuse_file(found: Path, path: Path) -> None:
    if found.exists() and not found.is_dir():
        which = "" if found == path else f" {found}"
        raise RunDirectoryError(
            f"cannot write a run to {path}: found a file{which}, expected a folder; "
            "choose another --output"
        )


def refuse_absent(path: Path) -> None:
    """Refuse to go on with a run where there is none, or where something stands in its place.

    Raises:
        RunDirectoryError: So it is.
    """
    if not path.is_dir():
        raise RunDirectoryError(
            f"cannot resume {path}: found no such folder, expected the folder of an earlier "
            "run; check the path, or start a new run without --resume"
        )
    if problem := layout_problem(path, RUN_FILES, RUN_FOLDERS):
        raise RunDirectoryError(
            f"cannot resume {path}: {problem}, as a run writes it; put it back, or start in "
            "another folder without --resume"
        )


def refuse_unusable(path: Path, *, is_there: bool) -> None:
    """Refuse a folder that a run cannot write to; nothing is left behind.

    Args:
        path: The folder.
        is_there: Whether a run in it is to be resumed, or a new one started.

    Raises:
        RunDirectoryError: It is not what it must be, or a file in it cannot be made.
        DirectoryInUseError: Another process writes there.
    """
    try:
        if is_there:
            refuse_absent(path)
            refuse_in_use(path)
        else:
            refuse_used(path)
        # No folder is made to try it: another run might find it there, or miss it.
        nearest = next(folder for folder in (path, *path.parents) if folder.exists())
        _refuse_file(nearest, path)
        with TemporaryFile(dir=nearest) as file:
            file.write(b"\n")
            file.flush()
    except OSError as error:
        raise not_writable(path, error) from error


def not_writable(path: Path, error: OSError) -> RunDirectoryError:
    """Return what to say of a folder in which a file cannot be written."""
    return RunDirectoryError(
        f"cannot write to {path}: {error.strerror or error}; "
        "choose an --output on a disk with space where you may write"
    )


RECIPE = "recipe.yaml"


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Say in one line that a file could not be written.

    Raises:
        RunFailure: It could not.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunFailure(
            f"cannot write {path}: {reason}; make room or repair the disk, then go on with --resume"
        ) from error


def lost_recipe(path: Path) -> str | None:
    """Return the copy that a checkpoint keeps where the folder's own recipe is lost."""
    try:
        if is_recipe((path / RECIPE).read_text(encoding="utf-8")):
            return None
        problem = f"its {RECIPE} holds no recipe"
    except FileNotFoundError:
        problem = f"expected a {RECIPE}, found none"
    except UnicodeDecodeError:
        problem = f"its {RECIPE} is no text"
    kept = kept_recipe(path / "checkpoints")
    if kept is None:
        raise RunDirectoryError(
            f"cannot resume {path}: {problem}, and no checkpoint keeps a copy; start a new run "
            "without --resume in another folder"
        )
    print(f"warning: {path}: {problem}; the copy in a checkpoint is used", file=sys.stderr)
    return kept


def last_time(path: Path) -> float:
    """Return the time of the last row, 0 where there is none that can be read."""
    with path.open("rb") as file:
        last = deque(file, maxlen=1)
    try:
        return float(json.loads(last[0])["time_s"])
    except (IndexError, KeyError, TypeError, ValueError, RecursionError):
        return 0.0


def plain(value: Any) -> Any:
    """Return what JSON can hold: numbers of any library as Python's, not-finite ones as None."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    number = float(value)
    return number if math.isfinite(number) else None


def write_json(path: Path, value: Mapping[str, object]) -> Path:
    """Write one JSON object as a whole; return its path.

    Raises:
        RunFailure: It could not be written; an earlier file is as it was.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    with written(path):
        write_whole(path, (text + "\n").encode())
    return path


def with_hash(values: Mapping[str, object]) -> dict[str, object]:
    """Return values that JSON can hold with their own SHA-256, as `as_written` expects them."""
    text = json.dumps(values, sort_keys=True)
    return {**values, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def as_written(text: str | bytes) -> dict[str, Any] | None:
    """Return the values of a JSON text that `with_hash` was given; None where they are others."""
    try:
        found = json.loads(text)
        values: dict[str, Any] = {k: v for k, v in found.items() if k != "sha256"}
        return values if found["sha256"] == with_hash(values)["sha256"] else None
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None


def read_as_written(path: Path) -> dict[str, Any] | None:
    """Return the values of a JSON file that `with_hash` was given; None where it has others."""
    try:
        return as_written(path.read_bytes())
    except OSError:
        return None


def file_name(phase: str) -> str:
    """Return what files of a phase are called."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", phase)
