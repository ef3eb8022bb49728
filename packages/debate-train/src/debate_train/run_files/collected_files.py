"""How the files of a run directory are written, and read back from what others may have changed."""

import hashlib
import json
import math
import re
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from debate_train.checkpointing.checkpoint_manifest import is_recipe
from debate_train.checkpointing.checkpoints import kept_recipe
from debate_train.checkpointing.whole_files import write_whole
from debate_train.errors import RunFailure
from debate_train.run_files.directory_layout import RunDirectoryError

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
