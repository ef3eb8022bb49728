"""Services for following a run besides the run directory, and the table of turns."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

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

# Names of metrics that trackers show in another group.
RENAMED = {"loss": "optim/loss", "tokens_per_s": "time/tokens_per_s"}
# Keys of a row of metrics.jsonl that are no metrics.
ROW_LABELS = ("phase", "step", "time_s")
# Most characters of a turn in the table.
MOST_TEXT = 8_000
# The first step has a table, too.
STEPS_PER_TABLE = 10

View = Callable[[str, Step], Sequence[Sequence[Cell]]]
"""Builds the table of turns of a step."""


class Tracker:
    """Hands rows to services; after a failure a service is left out, with a warning.

    Args:
        rows: Number of earlier rows of a resumed run.
        view: Builds the table of turns of a step.
    """

    def __init__(self, rows: int = 0, view: View = lambda phase, step: ()) -> None:
        self._services: list[Service] = []
        self._num_rows = rows
        self._view = view
        self._shows_turns = True

    def add(self, name: str, start: Callable[[], Service]) -> None:
        """Start a service and hand it all rows from here on, if it starts."""
        self._attempt(name, lambda: self._services.append(start()))

    @property
    def names(self) -> list[str]:
        """Names of the services in use."""
        return [service.name for service in self._services]

    def log(
        self, phase: str, step: int, metrics: Mapping[str, object], made: Step | None = None
    ) -> None:
        """Send a row, with the debates and the advantages of the step, if any."""
        # Counted even without services, because row k of a tracker is row k of metrics.jsonl.
        number = self._num_rows
        self._num_rows += 1
        if not self._services:
            return
        turns: Sequence[Sequence[Cell]] = []
        if made is not None and self._shows_turns:
            try:
                turns = self._view(phase, made)
            except Exception as error:  # Debates of other packages may raise anything.
                self._shows_turns = False
                _warn(f"no turns are tracked from here on ({_reason(error)})")
        row = Logged(number, phase, step, grouped_metrics(metrics), turns)
        self._call_all(lambda service: service.log(row))

    def summarise(self, values: Mapping[str, object]) -> None:
        """Set final values of the run."""
        self._call_all(lambda service: service.summarise(values))

    def keep(self, report: Path | None, checkpoint: Path | None) -> None:
        """Send the run's report, the recipe and, if the recipe says so, the last checkpoint."""
        self._call_all(lambda service: service.keep(report, checkpoint))

    def close(self, *, failed: bool = False) -> None:
        """End the run; a second call has no effect."""
        self._call_all(lambda service: service.close(failed))
        self._services.clear()

    def _call_all(self, act: Callable[[Service], object]) -> None:
        for service in list(self._services):
            if not self._attempt(service.name, partial(act, service)):
                self._services.remove(service)

    def _attempt(self, name: str, act: Callable[[], object]) -> bool:
        """Call a service; return False where it failed."""
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


def earlier_rows(rows: Sequence[Mapping[str, Any]]) -> list[Logged]:
    """Build what trackers get from rows of `metrics.jsonl`."""
    logged = []
    for number, row in enumerate(rows):
        metrics = {name: row[name] for name in row if name not in ROW_LABELS}
        logged.append(Logged(number, row["phase"], row["step"], grouped_metrics(metrics)))
    return logged


def grouped_metrics(metrics: Mapping[str, object]) -> dict[str, object]:
    """Rename metrics to their names in trackers; leave out those without a value."""
    return {grouped(name): value for name, value in metrics.items() if value is not None}


def grouped(name: str) -> str:
    """Build the name of a metric in trackers, with a group before the first `/`."""
    if name in RENAMED:
        return RENAMED[name]
    return name if "/" in name else f"train/{name}"


class Tracking(Config):
    """Whether and where a run is tracked."""

    removed_keys: ClassVar[Mapping[str, str]] = {
        "notes": "WANDB_NOTES in the environment",
        "turns_every": "no such key: each tenth step sends a table",
    }

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
    turns: int = Field(20, ge=0)
    """Most rows of the table of turns that each tenth step sends; 0 sends none."""
    checkpoints: bool = False
    """Whether W&B gets the last checkpoint as an artifact at the end of the run."""
    peak_tflops: float | None = Field(None, gt=0)
    """Peak of one training device in 10^12 FLOP/s, the base of `time/mfu`; null looks it up."""

    def open(
        self, run_directory: RunDirectory, name: str, resolved: Mapping[str, object]
    ) -> Tracker:
        """Start the tracked run, or go on with it when the run directory is resumed.

        W&B is offline without a key (`WANDB_API_KEY` or a login in `.netrc`); `WANDB_MODE` may
        name another mode. An online run that fails to start stays offline, and `wandb sync` sends
        it later. A service that does not start at all is left out with a warning.

        Args:
            run_directory: The services write into its folders `wandb` and `tensorboard`.
            name: Displayed name of the run, unless `tracking.name` has another.
            resolved: The recipe; secrets of the environment and places on the disk are left out.
        """
        labels = {
            "name": self.name or name,
            "project": self.project,
            "group": self.group,
            "entity": self.entity,
            "tags": self.tags,
        }
        shared: Any = shareable({"shown": labels, "recipe": dict(resolved)}, os.environ)
        rows: list[Any] = run_directory.metrics.rows()
        start = Start(
            folder=run_directory.path,
            resolved=resolved,
            rows=earlier_rows(rows),
            recipe=shared["recipe"],
            shown=shared["shown"],
            checkpoints=self.checkpoints,
        )

        def due_turns(phase: str, step: Step) -> list[list[Cell]]:
            number = step.number + 1
            is_due = self.turns > 0 and (number == 1 or number % STEPS_PER_TABLE == 0)
            return turn_table(phase, step, self.turns) if is_due else []

        tracker = Tracker(len(rows), due_turns)
        last_step: Any = rows[-1]["step"] if rows else None
        is_disabled = os.environ.get("WANDB_MODE", "").strip().lower() == "disabled"
        if self.wandb and not is_disabled:
            tracker.add("W&B", lambda: WandbRun(start))
        if self.tensorboard:
            tracker.add("TensorBoard", lambda: TensorBoardRun(start, last_step))
        return tracker

    def missing_libraries(self) -> Iterator[str]:
        """Yield a problem for each chosen service that is not installed."""
        if self.tensorboard and find_spec("tensorboard") is None:
            yield (
                "tracking.tensorboard: found true, which needs tensorboard; install it with "
                f"{install_command('debate-train[tensorboard]')}, or leave it out"
            )


def turn_table(phase: str, step: Step, most: int) -> list[list[Cell]]:
    """Build rows of `COLUMNS` for the first `most` turns of a step.

    `credit` is the reward of the whole turn in each stream; `advantage` is the mean over the
    turn's tokens; `None` for an untrained turn.
    """
    table: list[list[Cell]] = []
    debates = zip(step.transcripts, step.scores, strict=False)
    for debate_number, (debate, score) in enumerate(debates):
        rows = [row for row in step.batch.rows if row.debate == debate_number]
        for turn in debate.turns:
            credit_values, runs = earned(turn, score, rows)
            credit = ", ".join(f"{name} {value:.3g}" for name, value in credit_values.items())
            # A run is a number of successive tokens with one advantage.
            num_tokens = sum(length for length, _, _ in runs)
            mean_advantage = None
            if num_tokens:
                total = sum(length * advantage for length, advantage, _ in runs)
                mean_advantage = total / num_tokens
            table.append(
                [
                    phase,
                    step.number + 1,
                    _encodable(debate.id),
                    _encodable(debate.question.text),
                    turn.agent,
                    role_of(debate.protocol, turn.agent).name,
                    turn.round,
                    _encodable(turn.text),
                    credit,
                    mean_advantage,
                ]
            )
            if len(table) == most:
                return table
    return table


def _encodable(text: str) -> str:
    """Cut a text to `MOST_TEXT`, and replace characters without an encoding."""
    return text[:MOST_TEXT].encode("utf-8", "replace").decode()
