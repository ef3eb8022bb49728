"""Where a run is followed besides its directory: W&B, TensorBoard, trackio.

What may leave the machine is decided here: `shareable` and `shareable_page`.
"""

import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from debate_protocol.plugins import Config
from debate_protocol.types import role_of
from debate_rewards.answer_rewards import turn_verdicts
from debate_rewards.reward import read_debate
from debate_train.checkpoints.run_directory import RunDirectory

if TYPE_CHECKING:
    from debate_train.batches.row_types import Batch, Floats
    from debate_train.batches.rows import Step


_SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)
_SHORTEST_SECRET = 8
_PATH = re.compile(r"(?:\bfile://|(?<![\w:/.~-]))(?:/[^\s/:\"']+)+/(?P<name>[^\s/:\"']+)")
"""A path from the root with at least two parts; of addresses those of files alone."""


def shareable(value: object, environment: Mapping[str, str]) -> object:
    """Return `value` with secrets as `[secret]`, and of absolute paths the last part alone.

    A secret is the value of a variable whose name speaks of a key, token, password or the like.
    """
    if isinstance(value, Mapping):
        return {key: shareable(item, environment) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shareable(item, environment) for item in value]
    if isinstance(value, str):
        return _PATH.sub(r"…/\g<name>", _without_secrets(value, environment))
    return value


def _without_secrets(text: str, environment: Mapping[str, str]) -> str:
    found = [
        secret
        for name, secret in environment.items()
        if _SECRET_NAME.search(name) and len(secret) >= _SHORTEST_SECRET
    ]
    for secret in sorted(found, key=len, reverse=True):
        text = text.replace(secret, "[secret]")
    return text


def shareable_page(text: str, resolved: Mapping[str, object], folder: Path) -> str:
    """Return a page of a run without secrets, paths that its recipe names, its own, the user's."""
    home, text = os.path.expanduser("~"), _without_secrets(text, os.environ)
    named = {path: "…/" + path.rsplit("/", 1)[1] for path in _paths(resolved)}
    named |= {str(folder.resolve()): "…"} | ({home: "~"} if home.count("/") > 1 else {})
    for path in sorted(named, key=len, reverse=True):
        text = text.replace(path, named[path])
    return text


def _paths(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield from (match[0] for match in _PATH.finditer(value))
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _paths(item)


Cell = str | int | float | None
COLUMNS = (
    *("phase", "step", "debate", "question", "agent", "role", "round"),
    *("text", "right", "votes", "credit", "advantage"),
)
"""Of the table of turns."""
TURNS = "transcripts/turns"
"""What the table of turns is called."""
_BINS = 64
_GROUPED = {"loss": "optim/loss", "tokens_per_s": "time/tokens_per_s"}


@dataclass(frozen=True, slots=True)
class Logged:
    """One row as trackers take it.

    Attributes:
        number: Of the row in `metrics.jsonl`, from 0.
        phase: Of the run.
        step: Of the whole run, from 1.
        metrics: Each with a group before its first `/`.
        turns: Rows of the table of turns, as `COLUMNS` says; empty on most steps.
        histograms: Values by name.
    """

    number: int
    phase: str
    step: int
    metrics: Mapping[str, object]
    turns: Sequence[Sequence[Cell]] = ()
    histograms: Mapping[str, "Floats"] = field(default_factory=dict)

    def values(self, library: Any) -> dict[str, object]:
        """Return all of it by name, as wandb takes it, or trackio, which has the same types."""
        found: dict[str, object] = {**self.metrics, "phase": self.phase}
        for name, values in self.histograms.items():
            found[name] = library.Histogram(np_histogram=np.histogram(values, bins=_BINS))
        if self.turns:
            turns = [list(turn) for turn in self.turns]
            found[TURNS] = library.Table(columns=list(COLUMNS), data=turns)
        return found


@dataclass(frozen=True, slots=True)
class Start:
    """What a service begins with. All but `folder` and `resolved` may leave this machine.

    Attributes:
        folder: The run directory.
        resolved: The recipe as it is.
        recipe: The same without secrets and places on the disk.
        shown: Name, project, group, entity, tags and notes.
        checkpoints: Whether the last checkpoint is sent.
    """

    folder: Path
    resolved: Mapping[str, object] = field(default_factory=dict)
    recipe: Mapping[str, object] = field(default_factory=dict)
    shown: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: bool = False


class Service:
    """One place where a run is tracked; it may raise anything."""

    name = ""
    """As users know it."""

    def log(self, row: Logged) -> None:
        """Send one row."""

    def summarise(self, values: Mapping[str, object]) -> None:
        """Set final values."""

    def keep(self, report: Path | None, checkpoint: Path | None) -> None:
        """Send files; a service that takes none leaves them in the run directory."""

    def close(self, failed: bool) -> None:
        """End the run there."""


class Identity:
    """Which run of a service belongs to a run directory, and how many rows it has got."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        identity, self._count = folder / "run-id.txt", folder / "rows-sent.txt"
        self.is_new = not identity.exists()
        self.id = secrets.token_hex(4) if self.is_new else identity.read_text().strip()
        identity.write_text(self.id + "\n")
        self._sent = int(self._count.read_text()) if self._count.exists() else 0

    def is_sent(self, row: Logged) -> bool:
        """Return whether a row was sent before the run was resumed."""
        return row.number < self._sent

    def note(self, row: Logged) -> None:
        """Note that a row is sent."""
        self._sent = row.number + 1
        self._count.write_text(f"{self._sent}\n")


View = Callable[[str, "Step"], tuple[Sequence[Sequence[Cell]], Mapping[str, "Floats"]]]
"""Makes the table of turns and the histograms of a step."""


class Tracker:
    """Hands rows to services; one that fails is left out from there on, with one warning."""

    def __init__(self, rows: int = 0, view: View = lambda phase, step: ((), {})) -> None:
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
        self, phase: str, step: int, metrics: Mapping[str, object], made: "Step | None" = None
    ) -> None:
        """Send one row, with the debates and the advantages of the step that it is of, if any."""
        number, self._rows = self._rows, self._rows + 1
        if not self._services:
            return
        sent = {grouped(name): value for name, value in metrics.items() if value is not None}
        turns, histograms = self._seen(phase, made)
        row = Logged(number, phase, step, sent, turns, histograms)
        self._all(lambda service: service.log(row))

    def _seen(
        self, phase: str, made: "Step | None"
    ) -> tuple[Sequence[Sequence[Cell]], Mapping[str, "Floats"]]:
        if made is not None and self._sees:
            try:
                return self._view(phase, made)
            except Exception as error:  # Of any kind, as debates of other packages are read, too.
                self._sees = False
                _warn(f"no turns are tracked from here on ({_reason(error)})")
        return [], {}

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
        rows = run_directory.metrics()
        started = Tracker(len(rows), self._view)

        def wandb() -> Service:
            from debate_train.monitoring.wandb_run import WandbRun

            return WandbRun(start)

        def tensorboard() -> Service:
            from debate_train.monitoring.local_runs import TensorBoardRun

            return TensorBoardRun(start, rows[-1]["step"] if rows else None)

        def trackio() -> Service:
            from debate_train.monitoring.local_runs import TrackioRun

            return TrackioRun(start)

        if self.wandb and os.environ.get("WANDB_MODE", "").strip().lower() != "disabled":
            started.add("W&B", wandb)
        if self.tensorboard:
            started.add("TensorBoard", tensorboard)
        if self.trackio:
            started.add("trackio", trackio)
        return started

    def missing_libraries(self) -> Iterator[str]:
        """Yield what is wanted and not installed here."""
        for library in ("tensorboard", "trackio"):
            if getattr(self, library) and find_spec(library) is None:
                yield (
                    f"tracking.{library}: found true, which needs {library}; install it with "
                    f"pip install 'debate-train[{library}]', or leave it out"
                )

    def _view(self, phase: str, step: "Step") -> "tuple[list[list[Cell]], dict[str, Floats]]":
        number = step.number + 1
        is_due = self.turns > 0 and (number == 1 or number % self.turns_every == 0)
        turns = turn_table(phase, step, self.turns) if is_due else []
        return turns, histograms_of(step.batch)


_MOST_TEXT = 8_000
"""Characters of a turn that are shown."""


def turn_table(phase: str, step: "Step", most: int) -> list[list[Cell]]:
    """Return the first turns of a step, a row each, as `COLUMNS` says.

    `right` is right, wrong or unverifiable; `votes` are agents, as in `1>2, 2=3`; `credit` is what
    the reward gave the whole turn in each stream; `advantage` is the mean over its tokens, None
    where it is not trained on.
    """
    debates = [read_debate(transcript) for transcript in step.transcripts[:most]]
    means, rows = _mean_advantages(step.batch), list[list[Cell]]()
    scored = zip(debates, turn_verdicts(debates), step.scores, strict=False)
    for place, (debate, verdicts, score) in enumerate(scored):
        transcript = debate.transcript
        for turn in debate.judges.values():
            key, reply = turn.key, turn.turn.reply
            votes = ", ".join(f"{one.left}{one.op}{one.right}" for one in turn.parsed.comparisons)
            credits = [
                f"{'/'.join(filter(None, (one.stream, one.component)))} {one.value:.3g}"
                for one in score.credits
                if (one.agent, one.round) == key and one.span is None and one.value is not None
            ]
            tokens = () if reply is None else reply.token_ids
            row: list[Cell] = [phase, step.number + 1]
            row += [_plain(transcript.id), _plain(transcript.question.text), key.agent]
            row += [role_of(transcript.protocol, key.agent).name, key.round]
            row += [_plain(turn.turn.text), verdicts[key].verdict if key in verdicts else None]
            row += [votes, ", ".join(credits), means.get((place, key.agent, tuple(tokens)))]
            rows.append(row)
        if len(rows) >= most:
            break
    return rows[:most]


def _mean_advantages(batch: "Batch") -> dict[tuple[int, int, tuple[int, ...]], float]:
    """Return the mean advantage of each turn's tokens, by debate, agent and these tokens."""
    found = {}
    for row in batch.rows:
        for segment in range(1, int(row.segments.max(initial=0)) + 1):
            own = row.segments == segment
            key = row.debate, row.agent, tuple(row.tokens[own].tolist())
            found[key] = float(row.advantages[own].mean())
    return found


def _plain(text: str) -> str:
    """Return a text that every service can encode, without what is beyond the most characters."""
    return text[:_MOST_TEXT].encode("utf-8", "replace").decode()


def histograms_of(batch: "Batch") -> "dict[str, Floats]":
    """Return the advantages of all sampled tokens, and how many tokens each turn has."""
    if not batch.rows:
        return {}
    found = {"advantage": np.concatenate([row.advantages[row.mask > 0] for row in batch.rows])}
    lengths = [np.bincount(row.segments)[1:] for row in batch.rows if row.segments.any()]
    if lengths:
        found["turn_tokens"] = np.concatenate(lengths).astype(np.float32)
    finite = {name: values[np.isfinite(values)] for name, values in found.items()}
    return {f"histograms/{name}": values for name, values in finite.items() if len(values)}
