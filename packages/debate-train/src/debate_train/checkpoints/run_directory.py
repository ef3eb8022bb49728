"""The folder of a run: recipe, metrics, transcripts, tokens, checkpoints, environment."""

import functools
import hashlib
import json
import math
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debate_protocol.transcripts.files import write_transcripts
from debate_protocol.types import Transcript
from debate_train.checkpoints.run_state import RunState
from debate_train.checkpoints.whole_files import (
    LOCK,
    DirectoryLock,
    cut_torn_line,
    is_unfinished,
    remove_unfinished,
    whole_file,
    write_whole,
)
from debate_train.errors import RunFailure, UsageError

if TYPE_CHECKING:
    from torch import Tensor


RECIPE = "recipe.yaml"
LATER_RECIPES = "recipe-from-step-*.yaml"
METRICS = "metrics.jsonl"
RESULTS = "results.json"
ENVIRONMENT = "environment.json"
EVALUATIONS = "evaluation_files"
"""Key of results.json: SHA-256 of the evaluation files that the results are made of, by name."""
NAME_WITH_STEP = re.compile(
    r"-(\d+)\.(?:(?:(?:debates|held_out)\.)?jsonl|json|unfinished|safetensors|yaml)$"
)
MAX_ENTRIES_SHOWN = 3
MAX_SAME_NAME = 100


class RunDirectoryError(UsageError):
    """The output directory cannot be used; the message gives the path, the reason and a remedy."""


def refuse_used(path: Path) -> None:
    """Refuse to start a run in a folder with any file but a lock or a half written file.

    Raises:
        RunDirectoryError: There is such a file, or the folder cannot be read.
    """
    names = []
    try:
        if path.is_dir():
            # An interrupted start leaves half written files: it may be tried again.
            names = sorted(entry.name for entry in path.iterdir() if not is_unfinished(entry))
    except OSError as error:
        raise not_writable(path, error) from error
    # The lock of a run that was refused or ended stays in its folder.
    names = [name for name in names if name != LOCK]
    if names:
        listed = ", ".join(names[:MAX_ENTRIES_SHOWN])
        more = ", …" if len(names) > MAX_ENTRIES_SHOWN else ""
        raise RunDirectoryError(
            f"cannot start a run in {path}: it holds {listed}{more}; expected a new or empty "
            "folder; choose another --output, or continue that run with --resume"
        )


def refuse_no_run(path: Path) -> None:
    """Refuse to go on in a folder without a run.

    Raises:
        RunDirectoryError: There is no run.
    """
    if not (path / RECIPE).is_file():
        problem = f"no {RECIPE}" if path.is_dir() else "no such folder"
        raise RunDirectoryError(
            f"cannot resume {path}: found {problem}, expected the folder of an earlier "
            "run; check the path, or start a new run without --resume"
        )


def not_writable(path: Path, error: OSError) -> RunDirectoryError:
    """Build the error about a folder without space or permission for a file."""
    return RunDirectoryError(
        f"cannot write to {path}: {error.strerror or error}; "
        "choose an --output on a disk with space where you may write"
    )


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Turn an error of writing a file into a single line.

    Raises:
        RunFailure: It could not be written.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunFailure(
            f"cannot write {path}: {reason}; make room or repair the disk, then go on with --resume"
        ) from error


def plain(value: Any) -> Any:
    """Convert to JSON's types: numbers of any library to Python's, not-finite numbers to `None`."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    number = float(value)
    return number if math.isfinite(number) else None


def write_json(path: Path, value: Mapping[str, object]) -> Path:
    """Write a JSON object as a whole; return the path.

    Raises:
        RunFailure: It could not be written; an earlier file is as it was.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    with written(path):
        write_whole(path, (text + "\n").encode())
    return path


def json_hash(value: object) -> str:
    """Hash a value as JSON (SHA-256); a value without a JSON type counts as text."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def with_hash(values: Mapping[str, object]) -> dict[str, object]:
    """Add the SHA-256 of values in JSON's types, as `as_written` expects it."""
    return {**values, "sha256": json_hash(values)}


def as_written(text: str | bytes) -> dict[str, Any] | None:
    """Parse the values of `with_hash`; `None` where they are not as written."""
    try:
        values: dict[str, Any] = dict(json.loads(text).items())
        digest = values.pop("sha256")
        return values if digest == json_hash(values) else None
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None


def read_as_written(path: Path) -> dict[str, Any] | None:
    """Read the values of `with_hash` from a file; `None` where they are not as written."""
    try:
        return as_written(path.read_bytes())
    except OSError:
        return None


def file_name(phase: str) -> str:
    """Build the beginning of the names of a phase's files."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", phase)


def file_digest(path: Path) -> str | None:
    """Hash a file (SHA-256); `None` where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return None


def describe_environment() -> dict[str, object]:
    """Describe the software and hardware needed to repeat a run.

    Contains no value of an environment variable, no host or user name and no path.
    """
    # Imported here because torch takes seconds to load and a report does not need it.
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "git_commit": _git_commit(),
        "device": gpus[0] if gpus else "cpu",
        "gpus": gpus,
        "cuda": torch.version.cuda,
        "torch_threads": torch.get_num_threads(),
        "packages": _installed_packages(),
    }


@functools.cache
def _installed_packages() -> dict[str, str]:
    """Read the version of each installed package, once: that parses hundreds of files."""
    packages = [(package.name, package.version) for package in metadata.distributions()]
    return dict(sorted(packages))


def _git_commit() -> str | None:
    """Ask git for the commit of the current folder, with `+changes` when tracked files differ."""
    command = ("git", "describe", "--always", "--abbrev=40", "--dirty=+changes", "--exclude=*")
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def new_folder(name: str) -> Path:
    """Choose a new folder below `runs/`, named with the time."""
    first = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    if not first.exists():
        return first
    for number in range(2, MAX_SAME_NAME):
        numbered = first.with_name(f"{first.name}-{number}")
        if not numbered.exists():
            return numbered
    return first


def earlier_run(folder: Path, resolved_recipe_yaml: str) -> tuple[Path, float] | None:
    """Find a finished run of the same recipe in the folder beside this one, and its seconds."""
    for results_path in sorted(folder.parent.glob(f"*/{RESULTS}"), reverse=True):
        run = results_path.parent
        try:
            if (run / RECIPE).read_text(encoding="utf-8") == resolved_recipe_yaml:
                seconds = json.loads(results_path.read_bytes())["seconds"]
                return run, float(sum(seconds.values()))
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue  # Another program's folder, or a damaged run: its time is unknown.
    return None


class MetricsFile:
    """Rows `{"phase", "step", "time_s", **metrics}`, appended row by row.

    `time_s` counts the seconds this run has worked, the seconds before a resume included.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._max_rows: int | None = None
        self._seconds_before = 0.0
        self._opened_at = time.monotonic()

    def log(self, phase: str, step: int, metrics: Mapping[str, object]) -> None:
        """Append a row and flush it. A number without a finite value is written as null.

        Raises:
            RunFailure: It could not be written.
        """
        # Monotonic: the clock of the machine may be set while the run works.
        time_s = round(self._seconds_before + time.monotonic() - self._opened_at, 3)
        row = {"phase": phase, "step": step, "time_s": time_s}
        for name, value in metrics.items():
            row[name] = plain(value)
        line = json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        with written(self.path):
            cut_torn_line(self.path)  # an earlier row may have been written in part
            with self.path.open("ab") as file:
                file.write(line)

    def rows(self) -> list[dict[str, object]]:
        """Parse all rows so far, in order; after `return_to` only the rows of the checkpoint."""
        return [json.loads(line) for line in self._lines()]

    def _lines(self) -> list[bytes]:
        content = self.path.read_bytes() if self.path.is_file() else b""
        whole_lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
        return whole_lines[: self._max_rows]

    def count_into(self, state: RunState) -> None:
        """Sync the rows so far to the disk, and write their number and hash into a state.

        Raises:
            RunFailure: The file cannot be read.
        """
        with written(self.path):
            with self.path.open("rb") as file:
                os.fsync(file.fileno())
            lines = self._lines()
        state.rows = len(lines)
        state.metrics_sha256 = hashlib.sha256(b"".join(lines)).hexdigest()

    def return_to(self, rows: int) -> None:
        """Show only the rows of a checkpoint, until `go_back`."""
        self._max_rows = rows

    def go_back(self, rows: int) -> None:
        """Remove all rows after a checkpoint."""
        self._max_rows = None
        # The steps after the checkpoint are made again, and log their rows again.
        write_whole(self.path, b"".join(self._lines()[:rows]))
        self.go_on()

    def go_on(self) -> None:
        """Continue the seconds of the run where the last row stopped."""
        rows = self.rows()
        self._seconds_before = float(str(rows[-1]["time_s"])) if rows else 0.0
        self._opened_at = time.monotonic()


class RunDirectory:
    """Writes the files of a run; made by `create` or `open`, and locked until `close`."""

    def __init__(self, path: Path, lock: DirectoryLock, *, was_there: bool = True) -> None:
        self.path = path
        self.metrics_path = path / METRICS
        self.transcripts_path = path / "transcripts"
        self.tokens_path = path / "tokens"
        self.evaluations_path = path / "evaluations"
        self.offline_path = path / "offline"
        self.checkpoints_path = path / "checkpoints"
        self._lock = lock
        self._was_there = was_there
        self.has_begun = False
        """Whether the run writes here: before that it may still be refused."""
        self.records: dict[str, str] = {}
        """SHA-256 of the samples that were written, by their path in the folder."""
        self.metrics = MetricsFile(self.metrics_path)

    @classmethod
    def create(cls, path: str | Path, resolved_recipe_yaml: str) -> "RunDirectory":
        """Start a run in a new or empty folder.

        Raises:
            RunDirectoryError: The folder has files, is a file, or cannot be written.
            DirectoryInUseError: Another process writes there.
        """
        path = Path(path)
        refuse_used(path)
        was_there = path.exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
            # Locked before anything is written: of two starts at once, one is refused.
            run = cls(path, DirectoryLock(path), was_there=was_there)
            try:
                write_whole(path / RECIPE, resolved_recipe_yaml.encode())
                run._mend()
            except OSError:
                run._remove()
                raise
        except OSError as error:
            raise not_writable(path, error) from error
        return run

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        """Go on with a run, wherever it stopped.

        Raises:
            RunDirectoryError: There is no run in the folder, or it cannot be written.
            DirectoryInUseError: Another process writes there.
        """
        path = Path(path)
        refuse_no_run(path)
        try:
            run = cls(path, DirectoryLock(path))
            run._mend()
        except OSError as error:
            raise not_writable(path, error) from error
        run.metrics.go_on()
        return run

    def describe(self, facts: Mapping[str, object]) -> None:
        """Write `environment.json`: the environment, and these facts of a new run."""
        write_json(self.path / ENVIRONMENT, {**describe_environment(), **facts})

    def close(self) -> None:
        """Let other processes write here; a second call does nothing."""
        self._lock.release()

    def discard_unused(self) -> None:
        """Remove this run's files, unless it has trained a step or written a checkpoint."""
        if self.metrics_path.is_file() and self.checkpoints_path.is_dir():
            # A run that failed at its start leaves no folder that looks like a run.
            has_rows = self.metrics_path.stat().st_size > 0
            has_checkpoint = any(self.checkpoints_path.iterdir())
            if not has_rows and not has_checkpoint:
                self._remove()

    @property
    def recipe(self) -> str:
        """The run's first resolved recipe, as YAML."""
        return (self.path / RECIPE).read_text(encoding="utf-8")

    @property
    def has_results(self) -> bool:
        """Whether there are results, and they and all evaluations of them are as written."""
        results = read_as_written(self.path / RESULTS)
        if results is None:
            return False
        evaluations: dict[str, str] = results.get(EVALUATIONS, {})
        return all(file_digest(self.path / name) == sha for name, sha in evaluations.items())

    def count_into(self, state: RunState) -> None:
        """Write the rows so far and the samples of a state's steps into the state."""
        self.metrics.count_into(state)
        # Samples of a step are written before its update, and do not count if that fails.
        state.records = {
            name: digest for name, digest in self.records.items() if _step_of(name) <= state.step
        }

    def return_to(self, state: RunState) -> None:
        """Show only the rows and samples of a checkpoint, until `begin`."""
        self.metrics.return_to(state.rows)
        self.records = dict(state.records)

    def begin(self, state: RunState | None = None) -> None:
        """Begin to write; remove all files after a checkpoint, or they would come twice."""
        self.has_begun = True
        if state is None:
            return
        self.metrics.go_back(state.rows)
        files = [*self.offline_path.glob("*"), *self.path.glob(LATER_RECIPES)]
        for folder in self._sample_folders():
            files += folder.iterdir()
        for path in files:
            if _step_of(path.name) > state.step:
                path.unlink()

    def write_transcripts(self, phase: str, step: int, transcripts: Sequence[Transcript]) -> Path:
        """Write debates to `transcripts/<phase>-<step>.jsonl`, in place of an earlier file."""
        path = self.transcripts_path / f"{file_name(phase)}-{step:06d}.jsonl"
        with written(path):
            write_transcripts(path, transcripts)
            self.note_record(path)
        return path

    def write_tokens(self, step: int, tensors: Mapping[str, "Tensor"]) -> Path:
        """Write a sample of token rows to `tokens/step-<step>.safetensors`."""
        from safetensors.torch import save_file

        path = self.tokens_path / f"step-{step}.safetensors"
        # Tensors of a batch may be views, which safetensors refuses.
        with written(path), whole_file(path) as unfinished:
            contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
            save_file(contiguous, unfinished)
        with written(path):
            self.note_record(path)
        return path

    def note_record(self, path: Path) -> str:
        """Note the hash of a sample for the next checkpoint; return it."""
        digest = file_digest(path) or ""
        self.records[path.relative_to(self.path).as_posix()] = digest
        return digest

    def write_results(self, results: Mapping[str, object]) -> Path:
        """Write `results.json`: the run's figures, with `table` shown first in the report.

        The hashes of the run's evaluations are written with the figures.
        """
        prefix = f"{self.evaluations_path.name}/after-"
        evaluations = {name: sha for name, sha in self.records.items() if name.startswith(prefix)}
        values = plain({**results, EVALUATIONS: evaluations})
        return write_json(self.path / RESULTS, with_hash(values))

    def drop_results(self) -> None:
        """Remove the `results.json` of another policy or of other measures."""
        (self.path / RESULTS).unlink(missing_ok=True)

    def _sample_folders(self) -> tuple[Path, ...]:
        return self.transcripts_path, self.tokens_path, self.evaluations_path

    def _mend(self) -> None:
        """Make the folders, and remove half written files of a stopped process."""
        for folder in (self.path, *self._sample_folders(), self.checkpoints_path):
            folder.mkdir(exist_ok=True)
            remove_unfinished(folder)
        cut_torn_line(self.metrics_path)

    def _remove(self) -> None:
        """Remove all files, and the folder if this run made it; then release the lock."""
        shutil.rmtree(self.path.resolve(), ignore_errors=True)
        if self._was_there:
            self.path.mkdir(exist_ok=True)
        self.close()


def _step_of(name: str) -> int:
    """Parse the step in a file's name, 0 where there is none."""
    match = NAME_WITH_STEP.search(name)
    return 0 if match is None else int(match[1])
