"""Checkpoints: complete or absent, sealed by a manifest that hashes every file."""

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError

from debate_protocol.plugins import Config
from debate_train.checkpoints.whole_files import sync_directory, write_whole
from debate_train.interrupts import RunFailure, UsageError

MANIFEST = "manifest.json"
FORMAT: Final = "debate-checkpoint/4"
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class RefusedCheckpoint(Exception):
    """Why a checkpoint is not used."""


def run_hash(recipe_yaml: str, base: str = "") -> str:
    """Return a hash of what the recipe that a run was started with means.

    Where its model is found may change: the weights that are trained are in the checkpoint, and
    `base` knows the others and the tokenizer (`model_print`).
    """
    recipe: dict[str, Any] = yaml.safe_load(recipe_yaml)
    if isinstance(model := recipe.get("model"), dict):
        recipe["model"] = {key: value for key, value in model.items() if key != "name"}
    text = json.dumps([recipe, base], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class Manifest(Config):
    """All that is in a checkpoint: the SHA-256 of each file, and which run it belongs to."""

    format: Literal["debate-checkpoint/4"] = FORMAT
    run: Sha256
    files: dict[str, Sha256]


def seal(directory: Path, run: str) -> None:
    """Bring every file to the disk and write the manifest, the last file of a checkpoint."""
    found = _files(directory)
    mode = stat.S_IMODE(directory.stat().st_mode) & 0o666  # By the umask; safetensors takes 0600.
    for path in found.values():
        path.chmod(mode)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    manifest = Manifest(run=run, files=file_hashes(found))
    with (directory / MANIFEST).open("w", encoding="utf-8") as file:
        file.write(manifest.model_dump_json(indent=1))
        file.flush()
        os.fsync(file.fileno())
    for folder in {directory, *(path.parent for path in found.values())}:
        sync_directory(folder)


def verify(directory: Path, run: str | None) -> None:
    """Read every byte of a checkpoint, of this run unless that is None.

    Raises:
        RefusedCheckpoint: It is torn, altered or of another run; the message says how.
    """
    try:
        manifest = Manifest.model_validate_json((directory / MANIFEST).read_bytes())
    except FileNotFoundError as error:
        raise RefusedCheckpoint(
            f"it holds no {MANIFEST}: it is not complete, or another version wrote it"
        ) from error
    except (OSError, ValidationError) as error:
        raise RefusedCheckpoint(f"its {MANIFEST} is damaged, or not of {FORMAT!r}") from error
    if run not in (None, manifest.run):
        raise RefusedCheckpoint("it belongs to a run with another recipe, base model or tokenizer")
    found, expected = file_hashes(_files(directory)), manifest.files
    for name in sorted(found.keys() | expected.keys()):
        if name not in found:
            raise RefusedCheckpoint(f"{name} is missing")
        if name not in expected:
            raise RefusedCheckpoint(f"{name} is not named in its {MANIFEST}")
        if found[name] != expected[name]:
            raise RefusedCheckpoint(f"{name} is not as it was written (SHA-256 differs)")


def _files(directory: Path) -> dict[str, Path]:
    """Return all files of a checkpoint but its manifest, by name."""
    found = (path for path in sorted(directory.rglob("*")) if not path.is_dir())
    named = {path.relative_to(directory).as_posix(): path for path in found}
    return {name: path for name, path in named.items() if name != MANIFEST}


def file_hashes(files: Mapping[str, Path]) -> dict[str, str]:
    """Hash several files at a time; hashing lets other threads run."""
    with ThreadPoolExecutor() as pool:
        return dict(zip(files, pool.map(_file_hash, files.values()), strict=True))


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
_STATE, _BEST = "state.json", "best.json"
_NAME = re.compile(r"step-(\d{6,})")
_WRITING, _REPLACED, _REMOVED, _REFUSED = ".writing-", ".replaced-", ".removed-", "refused-"


@dataclass(frozen=True, slots=True)
class Best:
    """The checkpoint that did best on the dev split."""

    step: int
    metric: str
    value: float
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


class KeepBest(Config):
    """Which checkpoint is kept besides the last ones.

    Args:
        metric: Name as in the evaluation on the dev split, such as eval/majority/accuracy.
        mode: Whether the largest or the smallest value is best.
    """

    metric: str
    mode: Literal["max", "min"] = "max"

    def is_better(self, value: float, best: Best | None) -> bool:
        """Return whether a value is better than the best so far; equal ones are not."""
        if best is None or best.metric != self.metric:
            return True
        return value > best.value if self.mode == "max" else value < best.value


class Checkpointing(Config):
    """When the run can be resumed from.

    Args:
        every: Steps between checkpoints; 0 counts minutes alone.
        every_minutes: Minutes after which a step is followed by a checkpoint; 0 counts steps alone.
        keep_last: How many of the last checkpoints are kept.
        keep_best: Whenever an evaluation on the dev split is the best so far, a checkpoint is kept.
    """

    every: int = Field(0, ge=0)
    every_minutes: float = Field(15.0, ge=0)
    keep_last: int = Field(2, ge=1)
    keep_best: KeepBest | None = None


@dataclass(slots=True)
class RunState:
    """Where a run is; all that a checkpoint needs beside the trainer's own files."""

    phase: int = 0
    """Number of the phase, from 0."""
    phase_start: int = 0
    """Steps done in the whole run when the phase began."""
    step: int = 0
    """Steps done in the whole run; also the weight version that engines serve."""
    rows: int = 0
    """Rows of metrics so far."""
    exit_criteria: dict[str, bool] = field(default_factory=dict)
    """For each phase that has ended and has an exit criterion: whether it met it."""
    before: dict[str, Any] | None = None
    """Measures on the test split when the last phase began."""
    last_eval: tuple[str, int, dict[str, float]] | None = None
    """The last evaluation of the dev split: phase, step, means by name."""
    eval_pending: bool = False
    """Whether the evaluation of the dev split after the last step is still to be made."""
    best: Best | None = None
    starts: dict[str, tuple[int, dict[str, float]]] = field(default_factory=dict)
    """For phases that may be taken back: the step to go back to, and means on the dev split there.
    Their checkpoints are kept."""
    kept: dict[str, bool] = field(default_factory=dict)
    """For each phase that has ended and could be taken back: whether it was kept."""
    held_out_start: list[float] = field(default_factory=list)
    """Log-probabilities of the phase's held-out replies at its start."""
    held_out: dict[str, dict[str, float]] = field(default_factory=dict)
    """For each phase that has ended and held out pairs: its accuracies on them."""
    baselines: dict[str, float] = field(default_factory=dict)
    """Running baselines of the advantage after the phase's last step, by name."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each part so far."""
    metrics_sha256: str = ""
    """Of the rows of metrics so far."""
    records: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the samples that are kept of rollouts, by path in the run directory."""
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that may be resumed from."""

    path: Path
    state: RunState
    notes: tuple[str, ...]
    """Why newer ones are not used."""


Check = Callable[[RunState], None]


class Checkpoints:
    """The numbered checkpoints of a run, `step-NNNNNN`: the last ones, and the best.

    Args:
        root: their folder.
        run: which they belong to, see `run_hash`.
        keep_last: how many are kept besides the best.
    """

    def __init__(self, root: Path, run: str, keep_last: int) -> None:
        self._root, self._run, self._keep_last = root, run, keep_last
        root.mkdir(parents=True, exist_ok=True)
        finish_replacing(root)

    def write(self, state: RunState, save: Callable[[Path], None]) -> Path:
        """Write a checkpoint; `save(directory)` puts everything but the state there.

        The directory gets its name only when everything is in it and on the disk.

        Raises:
            RunFailure: It could not be written; those before it are as they were.
        """
        number = f"{state.step:06d}"
        final, unfinished = self._root / f"step-{number}", self._root / f"{_WRITING}{number}"
        _remove(self._root, _WRITING)
        try:
            unfinished.mkdir()
            save(unfinished)
            text = json.dumps(asdict(state), indent=1, allow_nan=False)
            (unfinished / _STATE).write_text(text, encoding="utf-8")
            seal(unfinished, self._run)
            if final.exists():
                os.replace(final, self._root / f"{_REPLACED}{number}")
            os.replace(unfinished, final)
            sync_directory(self._root)
            self._mark_best(state.best)
        except (OSError, SafetensorError, MemoryError, ValueError) as error:
            finish_replacing(self._root)
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise RunFailure(
                f"cannot write {final}: {reason}; the checkpoints before it are whole: make room "
                "or repair the disk, then go on with --resume"
            ) from error
        finally:
            _remove_one(unfinished)
        self._rotate(state)
        return final

    def at(self, step: int) -> Path:
        """Return the checkpoint of a step.

        Raises:
            RunFailure: It is missing or not as it was written.
        """
        path = self._path(step)
        try:
            verify(path, self._run)
        except (OSError, RefusedCheckpoint) as error:
            raise RunFailure(
                f"{path}, to go back to: {error}; put it back, or begin again"
            ) from error
        return path

    def complete(self) -> list[Path]:
        """Return the checkpoints that got their name, oldest first."""
        found = {int(m[1]): p for p in self._root.iterdir() if (m := _NAME.fullmatch(p.name))}
        return [found[step] for step in sorted(found)]

    def newest(self, check: Check | None = None) -> Checkpoint | None:
        """Return the newest checkpoint that is whole and belongs to this run.

        Newer ones are renamed to `refused-NNNNNN`, so that they are not taken again.

        Args:
            check: raises `RefusedCheckpoint` for what cannot be resumed from.

        Returns:
            None where no checkpoint was ever written.

        Raises:
            UsageError: All are refused; the message says what is wrong with each.
        """
        refused: list[tuple[Path, str]] = []
        for path in reversed(self.complete()):
            try:
                state = self._read(path)
                if check is not None:
                    check(state)
            except RefusedCheckpoint as error:
                refused.append((path, str(error)))
                continue
            notes = [self._refuse(other, reason) for other, reason in refused]
            self._mark_best(state.best)
            self._rotate(state)
            return Checkpoint(path, state, tuple(notes))
        if not refused and not any(self._root.glob(f"{_REFUSED}*")):
            return None
        reasons = "".join(f"\n  {path.name}: {reason}" for path, reason in refused)
        raise UsageError(
            f"cannot resume {self._root.parent}: found no checkpoint to go on from{reasons}\n"
            "expected one that this run wrote; start a new run without --resume in another folder"
        )

    def _read(self, path: Path) -> RunState:
        step = int(path.name.removeprefix("step-"))
        verify(path, self._run)
        try:
            state = TypeAdapter(RunState).validate_json((path / _STATE).read_bytes())
        except (OSError, ValidationError) as error:
            raise RefusedCheckpoint(f"its {_STATE} cannot be read: {error}") from error
        if state.step != step:
            raise RefusedCheckpoint(f"its {_STATE} is of step {state.step}")
        return state

    def _refuse(self, path: Path, reason: str) -> str:
        number = path.name.removeprefix("step-")
        other = self._root / f"{_REFUSED}{number}"
        _remove_one(other)
        os.replace(path, other)
        return f"{path.name} is not used: {reason}; it is now called {other.name}"

    def _mark_best(self, best: Best | None) -> None:
        mark = self._root / _BEST
        if best is None:
            mark.unlink(missing_ok=True)
            return
        named = {"checkpoint": self._path(best.step).name} | asdict(best)
        write_whole(mark, (json.dumps(named, indent=1) + "\n").encode())

    def _rotate(self, state: RunState) -> None:
        steps = [step for step, _ in state.starts.values()]
        kept = [self._path(step) for step in (*steps, *([state.best.step] if state.best else []))]
        for old in self.complete()[: -self._keep_last]:
            if old not in kept:  # Renamed first: what is half removed has no checkpoint's name.
                os.replace(old, self._root / old.name.replace("step-", _REMOVED))
        _remove(self._root, _REMOVED)
        _remove(self._root, _REPLACED)

    def _path(self, step: int) -> Path:
        return self._root / f"step-{step:06d}"


def finish_replacing(root: Path) -> None:
    """Undo a replacement that was stopped between its two renames; remove what is left over."""
    for old in root.glob(f"{_REPLACED}*"):
        final = root / f"step-{old.name.removeprefix(_REPLACED)}"
        if not final.exists():
            os.replace(old, final)
    for prefix in (_REPLACED, _REMOVED, _WRITING):
        _remove(root, prefix)


def _remove(root: Path, prefix: str) -> None:
    for left in root.glob(f"{prefix}*"):
        _remove_one(left)


def _remove_one(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():  # A link is removed, not what it leads to.
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
