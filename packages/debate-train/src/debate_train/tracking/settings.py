"""The recipe's key `tracking`: where a run is followed."""

import os
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from debate_protocol.plugins import Config
from debate_train.checkpointing.run_directory import RunDirectory
from debate_train.tracking.tracker import Cell, NoTracking, Service, Start, Tracker, Trackers

if TYPE_CHECKING:
    from debate_train.batches.row_types import Floats
    from debate_train.batches.rows import Step


_SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)
_SHORTEST_SECRET = 8
_PATH = re.compile(r"(?:\bfile://|(?<![\w:/.~-]))(?:/[^\s/:\"']+)+/(?P<name>[^\s/:\"']+)")
"""A path from the root with at least two parts; of addresses those of files alone."""


def shareable(value: object, environment: Mapping[str, str]) -> object:
    """Return `value` with secrets as `[secret]`, and of absolute paths the last part alone.

    A secret is the value of a variable whose name speaks of a key, token, password or the like.
    """
    return _shared(value, _secrets(environment))


def _secrets(environment: Mapping[str, str]) -> list[str]:
    """Return them, the longest first."""
    found = [
        text
        for name, text in environment.items()
        if _SECRET_NAME.search(name) and len(text) >= _SHORTEST_SECRET
    ]
    return sorted(found, key=len, reverse=True)


def _shared(value: object, found: list[str]) -> object:
    if isinstance(value, Mapping):
        return {key: _shared(item, found) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shared(item, found) for item in value]
    if isinstance(value, str):
        for secret in found:
            value = value.replace(secret, "[secret]")
        return _PATH.sub(r"…/\g<name>", value)
    return value


def shareable_page(text: str, resolved: Mapping[str, object], folder: Path) -> str:
    """Return a page of a run without secrets, paths that its recipe names, its own, the user's."""
    home = os.path.expanduser("~")
    for secret in _secrets(os.environ):
        text = text.replace(secret, "[secret]")
    named = {path: "…/" + path.rsplit("/", 1)[1] for path in _paths(resolved)}
    named |= {str(folder.resolve()): "…"} | ({home: "~"} if home.count("/") > 1 else {})
    for path in sorted(named, key=len, reverse=True):
        text = text.replace(path, named[path])
    return text


def _paths(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _paths(item)
    elif isinstance(value, str):
        yield from (match[0] for match in _PATH.finditer(value))


class Tracking(Config):
    """Whether and where a run is tracked."""

    wandb: bool = True
    """Whether there is a Weights & Biases run, offline where no key is set."""
    tensorboard: bool = False
    """Whether the run directory gets event files for TensorBoard, in `tensorboard/`."""
    trackio: bool = False
    """Whether there is a trackio run, in its local database (`TRACKIO_DIR`)."""
    project: str = "debate"
    """Project of the run, in W&B and trackio."""
    entity: str | None = None
    """User or team of the W&B run; null is the account's own."""
    group: str | None = None
    """Group of the run, in W&B and trackio; null is none."""
    tags: tuple[str, ...] = ()
    """Tags of the W&B run."""
    name: str | None = None
    """Shown name of the run; the recipe's by default."""
    notes: str | None = None
    """What is said about the W&B run."""
    turns: int = Field(20, ge=0)
    """Most rows of the table of turns that a step sends; 0 sends none."""
    turns_every: int = Field(10, ge=1)
    """Steps between two such tables; the first step has one."""
    checkpoints: bool = False
    """Whether W&B gets the last checkpoint as an artifact at the end of the run."""
    peak_tflops: float | None = Field(None, gt=0)
    """Peak of one training device in 10^12 FLOP/s, of which `time/mfu` is a share; null takes that
    of GPUs whose datasheet is known, and measures no share on others."""

    def open(
        self, run_directory: RunDirectory, name: str, resolved: Mapping[str, object]
    ) -> Tracker:
        """Start the tracked run, or go on with it when the run directory is resumed.

        W&B is offline without a key (`WANDB_API_KEY` or a login in `.netrc`), and in the mode that
        `WANDB_MODE` names if that is set. An online run that cannot be started is kept offline;
        `wandb sync` sends it later. A service that cannot be started at all is left out with a
        warning.

        Args:
            run_directory: Its folders `wandb` and `tensorboard` take all files of these.
            name: Shown name of the run, unless `tracking.name` says another.
            resolved: The recipe; secrets of the environment and places on the disk are left out.
        """
        shown: dict[str, Any] = {
            "name": self.name or name,
            "project": self.project,
            "group": self.group,
        }
        shown |= {"entity": self.entity, "tags": self.tags, "notes": self.notes}
        parts: Any = shareable({"shown": shown, "recipe": dict(resolved)}, os.environ)
        start = Start(
            folder=run_directory.path,
            resolved=resolved,
            recipe=parts["recipe"],
            checkpoints=self.checkpoints,
            **parts["shown"],
        )
        rows = run_directory.metrics()
        started = Trackers(len(rows), self._view)

        def wandb() -> Service:
            from debate_train.tracking.wandb_run import WandbRun

            return WandbRun(start)

        def tensorboard() -> Service:
            from debate_train.tracking.runs import TensorBoardRun

            return TensorBoardRun(start, rows[-1]["step"] if rows else None)

        def trackio() -> Service:
            from debate_train.tracking.runs import TrackioRun

            return TrackioRun(start)

        if self.wandb and os.environ.get("WANDB_MODE", "").strip().lower() != "disabled":
            started.add("W&B", wandb)
        if self.tensorboard:
            started.add("TensorBoard", tensorboard)
        if self.trackio:
            started.add("trackio", trackio)
        return started if started.names else NoTracking()

    def missing_libraries(self) -> Iterator[str]:
        """Yield what is wanted and not installed here."""
        for library in ("tensorboard", "trackio"):
            if getattr(self, library) and find_spec(library) is None:
                yield (
                    f"tracking.{library}: found true, which needs {library}; install it with "
                    f"pip install 'debate-train[{library}]', or leave it out"
                )

    def _view(self, phase: str, step: "Step") -> "tuple[list[list[Cell]], dict[str, Floats]]":
        from debate_train.tracking.tracker import histograms_of, turn_table

        number = step.number + 1
        is_due = self.turns > 0 and (number == 1 or number % self.turns_every == 0)
        turns = turn_table(phase, step, self.turns) if is_due else []
        return turns, histograms_of(step.batch)
