"""The folder of one run: recipe, metrics, transcripts, tokens, checkpoints, environment."""

import json
import math
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debate_protocol.transcripts import write_transcripts
from debate_protocol.types import Transcript
from debate_train.checkpointing.checkpoints import finish_replacing
from debate_train.checkpointing.whole_files import (
    aside,
    cut_torn_line,
    remove_unfinished,
    write_aside,
)
from debate_train.directory_lock import LOCK, DirectoryLock, refuse_in_use
from debate_train.environment import describe_environment
from debate_train.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

RECIPE = "recipe.yaml"
METRICS = "metrics.jsonl"
RESULTS = "results.json"
ENVIRONMENT = "environment.json"
_OF_STEP = re.compile(r"-(\d+)\.(?:jsonl|safetensors|yaml)$")
LATER_RECIPES = "recipe-from-step-*.yaml"


class RunDirectoryError(UsageError):
    """The output directory cannot be used; the message says which, why, and what to do."""


class RunDirectory:
    """Writes the files of one run; made by `create` or `open`, and held until `close`.

    Rows of `metrics.jsonl` are `{"phase", "step", "time_s", **metrics}`, where `time_s` counts
    the seconds this run has worked, those before a resume included.
    """

    def __init__(self, path: Path, lock: DirectoryLock, *, was_there: bool = True) -> None:
        self.path = path
        self._lock = lock
        self._was_there = was_there
        self._seconds_before = 0.0
        self._opened_at = time.monotonic()

    @classmethod
    def create(cls, path: str | Path, resolved_recipe_yaml: str) -> "RunDirectory":
        """Start a new run in a folder that is new or empty.

        Raises:
            RunDirectoryError: The folder holds files, is a file, or cannot be written.
            DirectoryInUseError: Another process writes there.
        """
        path = Path(path)
        _refuse_used(path)
        was_there = path.exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
            run = cls(path, DirectoryLock(path), was_there=was_there)
        except OSError as error:
            raise _not_writable(path, error) from error
        try:
            _refuse_used(path, held=True)
        except BaseException:
            run.close()
            raise
        try:
            run._fill(resolved_recipe_yaml)
        except OSError as error:
            run._remove()
            raise _not_writable(path, error) from error
        return run

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        """Go on with a run, wherever it stopped.

        Raises:
            RunDirectoryError: There is no run in the folder, or it cannot be written.
            DirectoryInUseError: Another process writes there.
        """
        path = Path(path)
        if not path.is_dir():
            raise RunDirectoryError(
                f"cannot resume {path}: found no such folder, expected the folder of an earlier "
                "run; check the path, or start afresh without --resume"
            )
        if not (path / RECIPE).is_file():
            raise RunDirectoryError(
                f"cannot resume {path}: expected a {RECIPE}, found none; start afresh without "
                "--resume in another folder"
            )
        try:
            run = cls(path, DirectoryLock(path))
        except OSError as error:
            raise _not_writable(path, error) from error
        try:
            run._mend()
        except OSError as error:
            run.close()
            raise _not_writable(path, error) from error
        run._seconds_before = _last_time(run.metrics())
        return run

    def close(self) -> None:
        """Let other processes write here; a second call does nothing."""
        self._lock.release()

    def discard_unused(self) -> None:
        """Remove what this run has made, unless it has trained a step or written a checkpoint."""
        if self.metrics_path.is_file():
            began = self.metrics_path.stat().st_size or any(self.checkpoints_path.iterdir())
            if not began:
                self._remove()

    @property
    def recipe(self) -> str:
        """The resolved recipe that the run was started with, as YAML."""
        return (self.path / RECIPE).read_text(encoding="utf-8")

    @property
    def has_results(self) -> bool:
        """Whether the run has found what it was to find."""
        return (self.path / RESULTS).is_file()

    @property
    def metrics_path(self) -> Path:
        """File of one JSON object a line."""
        return self.path / METRICS

    @property
    def transcripts_path(self) -> Path:
        """Folder of transcript files."""
        return self.path / "transcripts"

    @property
    def tokens_path(self) -> Path:
        """Folder of token samples."""
        return self.path / "tokens"

    @property
    def checkpoints_path(self) -> Path:
        """Folder of checkpoints."""
        return self.path / "checkpoints"

    def log(self, phase: str, step: int, metrics: Mapping[str, Any]) -> None:
        """Append one row and flush it. A number that is not finite is written as null."""
        time_s = round(self._seconds_before + time.monotonic() - self._opened_at, 3)
        row = {"phase": phase, "step": step, "time_s": time_s}
        row |= {name: _plain(value) for name, value in metrics.items()}
        with self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return all rows so far, in order."""
        if not self.metrics_path.exists():
            return []
        with self.metrics_path.open(encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def rows_on_disk(self) -> int:
        """Bring the rows so far to the disk; return how many there are."""
        with self.metrics_path.open("rb") as file:
            os.fsync(file.fileno())
            return sum(1 for _ in file)

    def go_back(self, rows: int, step: int) -> int:
        """Drop what was written after a checkpoint, so that none of it comes twice.

        Args:
            rows: how many rows of metrics there were.
            step: after how many steps; transcripts, tokens and recipes of later ones go.

        Returns:
            How many rows were dropped.
        """
        with self.metrics_path.open("rb") as file:
            lines = file.readlines()
        write_aside(self.metrics_path, b"".join(lines[:rows]))
        of_steps = (self.transcripts_path.iterdir(), self.tokens_path.iterdir())
        for path in chain(*of_steps, self.path.glob(LATER_RECIPES)):
            if (match := _OF_STEP.search(path.name)) and int(match[1]) > step:
                path.unlink()
        self._seconds_before = _last_time(self.metrics())
        self._opened_at = time.monotonic()
        return max(0, len(lines) - rows)

    def write_transcripts(self, phase: str, step: int, transcripts: Sequence[Transcript]) -> Path:
        """Write debates to `transcripts/<phase>-<step>.jsonl`, in place of an earlier file."""
        path = self.transcripts_path / f"{_file_name(phase)}-{step:06d}.jsonl"
        write_transcripts(path, transcripts)
        return path

    def write_tokens(self, step: int, tensors: Mapping[str, "Tensor"]) -> Path:
        """Write a sample of token rows to `tokens/step-<step>.safetensors`."""
        from safetensors.torch import save_file

        path = self.tokens_path / f"step-{step}.safetensors"
        with aside(path) as unfinished:
            whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
            save_file(whole, unfinished)
        return path

    def write_results(self, results: Mapping[str, Any]) -> Path:
        """Write `results.json`: what the run found, its `table` shown first in the report."""
        return self._write_json(RESULTS, {key: _plain(value) for key, value in results.items()})

    def drop_results(self) -> None:
        """Remove `results.json`, which is of another policy or of other measures."""
        (self.path / RESULTS).unlink(missing_ok=True)

    def _write_json(self, name: str, value: Mapping[str, Any]) -> Path:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
        write_aside(self.path / name, (text + "\n").encode())
        return self.path / name

    def _fill(self, resolved_recipe_yaml: str) -> None:
        write_aside(self.path / RECIPE, resolved_recipe_yaml.encode())
        for folder in (self.transcripts_path, self.tokens_path, self.checkpoints_path):
            folder.mkdir()
        self._write_json(ENVIRONMENT, describe_environment())
        self.metrics_path.touch()

    def _mend(self) -> None:
        for folder in (self.path, self.transcripts_path, self.tokens_path, self.checkpoints_path):
            folder.mkdir(exist_ok=True)
            remove_unfinished(folder)
        finish_replacing(self.checkpoints_path)
        cut_torn_line(self.metrics_path)

    def _remove(self) -> None:
        """Remove everything, and the folder where it is of this run's making; then let go."""
        for path in self.path.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if not self._was_there:
            shutil.rmtree(self.path, ignore_errors=True)
        self.close()


def _refuse_used(path: Path, held: bool = False) -> None:
    try:
        found = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
        is_file = path.exists() and not path.is_dir()
        if LOCK in found:
            found.remove(LOCK)
            if not held:
                refuse_in_use(path)
    except OSError as error:
        raise _not_writable(path, error) from error
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


def _not_writable(path: Path, error: OSError) -> RunDirectoryError:
    return RunDirectoryError(
        f"cannot write to {path}: {error.strerror or error}; "
        "choose an --output on a disk with space where you may write"
    )


def _last_time(rows: Sequence[Mapping[str, Any]]) -> float:
    return float(rows[-1].get("time_s", 0.0)) if rows else 0.0


def _plain(value: Any) -> Any:
    """Return what JSON can hold: numbers of any library as Python's, not-finite ones as None."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    number = float(value)
    return number if math.isfinite(number) else None


def _file_name(phase: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", phase)
