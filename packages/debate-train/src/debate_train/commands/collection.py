"""The folder of collected transcripts: appended to as debates end, continued after any stop."""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from debate_protocol.transcripts.files import json_line, to_json
from debate_protocol.types import Transcript
from debate_train.checkpointing.whole_files import cut_torn_line, open_plain, write_whole
from debate_train.errors import UsageError
from debate_train.run_files.directory_layout import layout_problem
from debate_train.run_files.directory_lock import LOCK, DirectoryLock
from debate_train.run_files.environment import describe_environment

RECIPE, TRANSCRIPTS, ENVIRONMENT = "recipe.yaml", "transcripts.jsonl", "environment.json"
_FILES = (LOCK, RECIPE, TRANSCRIPTS, ENVIRONMENT)
_DECIDES = ("seed", "model", "data", "debate")
"""Keys that decide what is said, beside those of the rollout."""
_FREE = ("engine", "driver")
"""Keys of the rollout that may change between two calls."""

_log = logging.getLogger(__name__)


class Collection:
    """Debates in `transcripts.jsonl`, each once and of one process at a time; use it in `with`.

    Args:
        path: A new or empty folder, or that of an earlier call with the same recipe.
        resolved_yaml: The recipe as it is kept there.

    Raises:
        UsageError: The folder cannot be used, holds debates of another recipe, or another process
            writes there.
    """

    def __init__(self, path: Path, resolved_yaml: str) -> None:
        self.path = path / TRANSCRIPTS
        self.ids: set[str] = set()
        """Debates that are there."""
        try:
            _refuse_others(path)
            path.mkdir(parents=True, exist_ok=True)
            self._lock = DirectoryLock(path)
        except OSError as error:
            raise UsageError(
                f"--output: cannot write to {path}: {error.strerror or error}; "
                "expected a folder on a disk with space where you may write"
            ) from error
        try:
            self._begin(path, resolved_yaml)
            self._file = os.fdopen(open_plain(self.path, os.O_WRONLY | os.O_APPEND), "ab")
        except BaseException:
            self._lock.release()
            raise

    def append(self, transcript: Transcript) -> None:
        """Write one debate; it is there once this returns."""
        self._file.write(json_line(to_json(transcript)))
        self._file.flush()
        self.ids.add(transcript.id)

    def __enter__(self) -> "Collection":
        return self

    def __exit__(self, *failure: object) -> None:
        self._file.close()
        self._lock.release()

    def _begin(self, path: Path, resolved_yaml: str) -> None:
        if cut_torn_line(self.path):
            _log.warning("%s: cut off a last line that was not whole", self.path)
        self.ids |= _ids(self.path)
        kept = path / RECIPE
        if self.ids and kept.is_file():
            _compare(yaml.safe_load(kept.read_text(encoding="utf-8")), resolved_yaml, path)
        write_whole(kept, resolved_yaml.encode())
        _note_environment(path / ENVIRONMENT)


def _refuse_others(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise UsageError(f"--output: {path} is a file; expected a folder")
    if path.is_dir() and (problem := layout_problem(path, _FILES, ())):
        raise UsageError(f"--output: cannot write to {path}: {problem}; choose another --output")
    found = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    if found not in ([], [LOCK]) and TRANSCRIPTS not in found:
        shown = ", ".join(found[:3]) + (", …" if len(found) > 3 else "")
        raise UsageError(
            f"--output: {path} holds {shown}; expected a new or empty folder, or one that "
            "debate-rollout has written"
        )


def _compare(before: Mapping[str, Any], resolved_yaml: str, path: Path) -> None:
    """Refuse to go on with a recipe by which the debates would be others."""
    now = yaml.safe_load(resolved_yaml)
    rollouts = before.get("rollout", {}), now.get("rollout", {})
    for key in rollouts[0] | rollouts[1]:
        if rollouts[0].get(key) != rollouts[1].get(key):
            if key not in _FREE:
                raise _other(f"rollout.{key}", path)
            _log.warning("rollout.%s is another than before", key)
    for key in _DECIDES:
        if before.get(key) != now.get(key):
            raise _other(key, path)


def _other(key: str, path: Path) -> UsageError:
    return UsageError(
        f"{key}: found another than in {path / RECIPE}, by which the transcripts there were "
        f"collected; expected the same {key} to go on, or another --output for a new run"
    )


def _ids(path: Path) -> set[str]:
    found: set[str] = set()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                found.add(str(json.loads(line)["id"]))
            except (ValueError, KeyError, TypeError):
                raise UsageError(
                    f"{path}:{number}: found no transcript; expected one debate a line. "
                    "Mend or remove the line, or choose another --output"
                ) from None
    return found


def _note_environment(path: Path) -> None:
    now = describe_environment()
    try:
        first = json.loads(path.read_text(encoding="utf-8"))
        first["resumed"] = [*first.get("resumed", []), now]
    except FileNotFoundError:
        first = now
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        _log.warning("%s cannot be read: what it said of the start is lost", path)
        first = now
    text = json.dumps(first, indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(path, (text + "\n").encode())
