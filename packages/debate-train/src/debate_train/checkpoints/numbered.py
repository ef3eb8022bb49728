"""The numbered checkpoints of a run: written, verified, resumed from, and rotated."""

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError

from debate_train.checkpoints.manifest import RefusedCheckpoint, seal, verify
from debate_train.checkpoints.run_state import Best, RunState
from debate_train.checkpoints.whole_files import sync_directory, write_whole
from debate_train.errors import RunFailure, UsageError

STATE_FILE = "state.json"
BEST_FILE = "best.json"
NUMBERED_NAME = re.compile(r"step-(\d{6,})")
STEP = "step-"
# Prefixes of what is on the way to a checkpoint's name, or from it; a stop may leave any of them.
WRITING = ".writing-"
REPLACED = ".replaced-"
REMOVED = ".removed-"
REFUSED = "refused-"

Check = Callable[[RunState], None]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint for a resume."""

    path: Path
    state: RunState
    notes: tuple[str, ...]
    """Reasons why newer checkpoints are not used."""


class Checkpoints:
    """The numbered checkpoints of a run, `step-NNNNNN`: the last, and the best.

    Args:
        root: their folder.
        run: hash of their run, see `run_hash`.
        keep_last: how many are kept besides the best.
    """

    def __init__(self, root: Path, run: str, keep_last: int) -> None:
        self._root = root
        self._run = run
        self._keep_last = keep_last
        root.mkdir(parents=True, exist_ok=True)
        finish_replacing(root)

    def write(self, state: RunState, save: Callable[[Path], None]) -> Path:
        """Write a checkpoint; `save(directory)` writes all files but the state.

        The directory gets the final name only when everything is in it and on the disk.

        Raises:
            RunFailure: It could not be written; earlier checkpoints are as they were.
        """
        number = f"{state.step:06d}"
        final = self._path(state.step)
        unfinished = self._root / f"{WRITING}{number}"
        # A stopped earlier attempt would stand in the way of this folder.
        _remove_all(self._root, WRITING)
        try:
            unfinished.mkdir()
            save(unfinished)
            text = json.dumps(asdict(state), indent=1, allow_nan=False)
            (unfinished / STATE_FILE).write_text(text, encoding="utf-8")
            seal(unfinished, self._run)
            # A folder cannot replace another in one rename: `finish_replacing` undoes the first
            # of these two if the process stops before the second.
            if final.exists():
                os.replace(final, self._root / f"{REPLACED}{number}")
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
            _remove(unfinished)
        # Old checkpoints go only now that a newer one is whole.
        self._rotate(state)
        return final

    def at(self, step: int) -> Path:
        """Verify the checkpoint of a step; return the path.

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
        """List the complete checkpoints, oldest first."""
        numbered = [path for path in self._root.iterdir() if NUMBERED_NAME.fullmatch(path.name)]
        return sorted(numbered, key=_step_of)

    def newest(self, check: Check | None = None) -> Checkpoint | None:
        """Find the newest whole checkpoint of this run.

        Refused checkpoints are renamed to `refused-NNNNNN`: no later resume tries them again.

        Args:
            check: raises `RefusedCheckpoint` for a state without the files for a resume.

        Returns:
            `None` where no checkpoint was ever written.

        Raises:
            UsageError: All are refused; the message gives the reason for each.
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
            # Renamed only once an older one is good: with none, a person decides what to do.
            notes = [self._rename_refused(newer, reason) for newer, reason in refused]
            self._mark_best(state.best)
            self._rotate(state)
            return Checkpoint(path=path, state=state, notes=tuple(notes))
        # All are refused, now or by an earlier resume, or there never was one.
        if not refused and not any(self._root.glob(f"{REFUSED}*")):
            return None
        reasons = "".join(f"\n  {path.name}: {reason}" for path, reason in refused)
        raise UsageError(
            f"cannot resume {self._root.parent}: found no checkpoint to go on from{reasons}\n"
            "expected one that this run wrote; start a new run without --resume in another folder"
        )

    def _read(self, path: Path) -> RunState:
        verify(path, self._run)
        try:
            state = TypeAdapter(RunState).validate_json((path / STATE_FILE).read_bytes())
        except (OSError, ValidationError) as error:
            raise RefusedCheckpoint(f"its {STATE_FILE} cannot be read: {error}") from error
        # A folder that was copied under another number would repeat or skip steps.
        if state.step != _step_of(path):
            raise RefusedCheckpoint(f"its {STATE_FILE} is of step {state.step}")
        return state

    def _rename_refused(self, path: Path, reason: str) -> str:
        refused = self._root / path.name.replace(STEP, REFUSED)
        _remove(refused)
        os.replace(path, refused)
        return f"{path.name} is not used: {reason}; it is now called {refused.name}"

    def _mark_best(self, best: Best | None) -> None:
        # For evaluations and people; the run itself reads the best from its state.
        mark = self._root / BEST_FILE
        if best is None:
            mark.unlink(missing_ok=True)
            return
        content = {"checkpoint": self._path(best.step).name} | asdict(best)
        write_whole(mark, (json.dumps(content, indent=1) + "\n").encode())

    def _rotate(self, state: RunState) -> None:
        """Remove all but the last checkpoints, the best, and those for phases to go back to."""
        needed = [self._path(step) for step, _ in state.starts.values()]
        if state.best is not None:
            needed.append(self._path(state.best.step))
        for old in self.complete()[: -self._keep_last]:
            if old not in needed:
                # Renamed first: a half-removed folder must not have a checkpoint's name.
                os.replace(old, self._root / old.name.replace(STEP, REMOVED))
        _remove_all(self._root, REMOVED)
        _remove_all(self._root, REPLACED)

    def _path(self, step: int) -> Path:
        return self._root / f"{STEP}{step:06d}"


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix(STEP))


def finish_replacing(root: Path) -> None:
    """Undo a replacement stopped between the two renames; remove all leftovers."""
    for old in root.glob(f"{REPLACED}*"):
        final = root / old.name.replace(REPLACED, STEP)
        if not final.exists():
            os.replace(old, final)
    for prefix in (REPLACED, REMOVED, WRITING):
        _remove_all(root, prefix)


def _remove_all(root: Path, prefix: str) -> None:
    for path in root.glob(f"{prefix}*"):
        _remove(path)


def _remove(path: Path) -> None:
    # A link is removed, not the folder that it leads to.
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
