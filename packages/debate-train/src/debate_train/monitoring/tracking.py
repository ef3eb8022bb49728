"""Where a run is followed besides its directory, and which turns are shown there."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import Field

from debate_protocol.plugins import Config, install_command
from debate_protocol.types import role_of
from debate_train.batches.rows import Step, earned
from debate_train.checkpoints.run_directory import RunDirectory
from debate_train.monitoring.services import (
    Cell,
    Logged,
    Service,
    Start,
    TensorBoardRun,
    WandbRun,
    shareable,
)

_GROUPED = {"loss": "optim/loss", "tokens_per_s": "time/tokens_per_s"}

View = Callable[[str, Step], Sequence[Sequence[Cell]]]
"""Makes the table of turns of a step."""


class Tracker:
    """Hands rows to services; one that fails is left out from there on, with one warning."""

    def __init__(self, rows: int = 0, view: View = lambda phase, step: ()) -> None:
        """`rows` is how many there are already."""
        self._services: list[Service] = []
        self._rows, self._view, self._sees = rows, view, True

    def add(self, name: str, start: Callable[[], Service]) -> None:
        """Start a service and hand it all from here on, if it starts."""
        self._attempt(name, lambda: self._services.append(start()))

    @property
    def names(self) -> list[str]:
        """The services that have not failed."""
        return [service.name for service in self._services]

    def log(
        self, phase: str, step: int, metrics: Mapping[str, object], made: Step | None = None
    ) -> None:
        """Send one row, with the debates and the advantages of the step that it is of, if any."""
        number, self._rows = self._rows, self._rows + 1
        if not self._services:
            return
        sent = {grouped(name): value for name, value in metrics.items() if value is not None}
        row = Logged(number, phase, step, sent, self._seen(phase, made))
        self._all(lambda service: service.log(row))

    def _seen(self, phase: str, made: Step | None) -> Sequence[Sequence[Cell]]:
        if made is not None and self._sees:
            try:
                return self._view(phase, made)
            except Exception as error:  # Of any kind, as debates of other packages are read, too.
                self._sees = False
                _warn(f"no turns are tracked from here on ({_reason(error)})")
        return []

    def summarise(self, values: Mapping[str, object]) -> None:
        """Set final values of the run."""
        self._all(lambda service: service.summarise(values))

    def keep(self, report: Path | None, checkpoint: Path | None) -> None:
        """Send the run's report, its recipe and its last checkpoint, where that is wanted."""
        self._all(lambda service: service.keep(report, checkpoint))

    def close(self, *, failed: bool = False) -> None:
        """End the run; a second call does nothing."""
        self._all(lambda service: service.close(failed))
        self._services.clear()

    def _all(self, act: Callable[[Service], object]) -> None:
        for service in list(self._services):
            if not self._attempt(service.name, lambda service=service: act(service)):  # type: ignore[misc]
                self._services.remove(service)

    def _attempt(self, name: str, act: Callable[[], object]) -> bool:
        try:
            act()
        except Exception as error:  # Of any kind: a run of days is worth more than its curves.
            _warn(f"{name} is off from here on ({_reason(error)}); metrics.jsonl has all rows")
            return False
        return True


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def grouped(name: str) -> str:
    """Return what trackers call a metric: each has a group before its first `/`."""
    return _GROUPED.get(name, name if "/" in name else f"train/{name}")


class Tracking(Config):
    """Whether and where a run is tracked."""

    wandb: bool = True
    """Whether there is a Weights & Biases run, offline where no key is set."""
    tensorboard: bool = False
    """Whether the run directory gets event files for TensorBoard, in `tensorboard/`."""
    project: str = "debate"
    """Project of the W&B run."""
    entity: str | None = None
    """User or team of the W&B run; null is the account's own."""
    group: str | None = None
    """Group of the W&B run; null is none."""
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
    """Peak of one training device in 10^12 FLOP/s, the base of `time/mfu`; null looks it up."""

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
        shown: dict[str, Any] = {"name": self.name or name}
        for key in ("project", "group", "entity", "tags", "notes"):
            shown[key] = getattr(self, key)
        parts: Any = shareable({"shown": shown, "recipe": dict(resolved)}, os.environ)
        start = Start(run_directory.path, resolved, checkpoints=self.checkpoints, **parts)
        rows = run_directory.metrics.rows()
        started = Tracker(len(rows), self._view)
        last: Any = rows[-1]["step"] if rows else None
        if self.wandb and os.environ.get("WANDB_MODE", "").strip().lower() != "disabled":
            started.add("W&B", lambda: WandbRun(start))
        if self.tensorboard:
            started.add("TensorBoard", lambda: TensorBoardRun(start, last))
        return started

    def missing_libraries(self) -> Iterator[str]:
        """Yield what is wanted and not installed here."""
        if self.tensorboard and find_spec("tensorboard") is None:
            yield (
                "tracking.tensorboard: found true, which needs tensorboard; install it with "
                f"{install_command('debate-train[tensorboard]')}, or leave it out"
            )

    def _view(self, phase: str, step: Step) -> list[list[Cell]]:
        number = step.number + 1
        is_due = self.turns > 0 and (number == 1 or number % self.turns_every == 0)
        return turn_table(phase, step, self.turns) if is_due else []


_MOST_TEXT = 8_000
"""Characters of a turn that are shown."""


def turn_table(phase: str, step: Step, most: int) -> list[list[Cell]]:
    """Return the first turns of a step, a row each, as `COLUMNS` says.

    `credit` is what the reward gave the whole turn in each stream; `advantage` is the mean over its
    tokens, None where it is not trained on.
    """
    made: list[list[Cell]] = []
    for place, (debate, score) in enumerate(zip(step.transcripts, step.scores, strict=False)):
        rows = [row for row in step.batch.rows if row.debate == place]
        for turn in debate.turns:
            values, runs = earned(turn, score, rows)
            credit = ", ".join(f"{name} {value:.3g}" for name, value in values.items())
            tokens = sum(count for count, _, _ in runs)
            mean = sum(count * worth for count, worth, _ in runs) / tokens if tokens else None
            role = role_of(debate.protocol, turn.agent).name
            row: list[Cell] = [phase, step.number + 1, _plain(debate.id)]
            row += [_plain(debate.question.text), turn.agent, role, turn.round]
            made.append([*row, _plain(turn.text), credit, mean])
            if len(made) == most:
                return made
    return made


def _plain(text: str) -> str:
    """Return a text that every service can encode, without what is beyond the most characters."""
    return text[:_MOST_TEXT].encode("utf-8", "replace").decode()
