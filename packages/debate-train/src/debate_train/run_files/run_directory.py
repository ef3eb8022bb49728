"""The folder of one run: recipe, metrics, transcripts, tokens, checkpoints, environment."""

import hashlib
import re
import shutil
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from debate_protocol.transcripts.files import write_transcripts
from debate_protocol.types import Transcript
from debate_train.checkpointing.checkpoints import RunState, finish_replacing
from debate_train.checkpointing.whole_files import (
    cut_torn_line,
    remove_unfinished,
    whole_file,
    write_whole,
)
from debate_train.run_files.collected_files import (
    RECIPE,
    file_name,
    lost_recipe,
    plain,
    read_as_written,
    with_hash,
    write_json,
    written,
)
from debate_train.run_files.directory_layout import (
    not_writable,
    refuse_absent,
    refuse_used,
)
from debate_train.run_files.directory_lock import DirectoryLock
from debate_train.run_files.environment import describe_environment
from debate_train.run_files.metrics_file import MetricsFile

if TYPE_CHECKING:
    from torch import Tensor

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
