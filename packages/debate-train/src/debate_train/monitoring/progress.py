"""How far a run is: a live display on a terminal, plain lines elsewhere."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

from debate_protocol.command_line import is_quiet
from debate_protocol.types import DebateRun
from debate_train.playing import counted


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the wall time of what is within to `seconds`, as `time/{name}_s`, also if it fails."""
    key, began = f"time/{name}_s", time.perf_counter()
    try:
        yield
    finally:
        seconds[key] = seconds.get(key, 0.0) + time.perf_counter() - began


class SteadyStream:
    """A text stream whose writes never fail: a closed pipe or a full disk loses the text alone.

    Args:
        stream: Where to write; None, as Python has it for a descriptor that is closed, drops all.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what can be written; return the length of the text."""
        with suppress(OSError, ValueError, AttributeError):  # ValueError: it was closed.
            try:
                self._stream.write(text)  # type: ignore[union-attr]
            except UnicodeEncodeError as error:
                plain = text.encode(error.encoding, "backslashreplace").decode(error.encoding)
                self._stream.write(plain)  # type: ignore[union-attr]
        return len(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        with suppress(OSError, ValueError, AttributeError):
            self._stream.flush()  # type: ignore[union-attr]

    def isatty(self) -> bool:
        """Return whether this is a terminal."""
        with suppress(ValueError):
            return self._stream is not None and self._stream.isatty()
        return False

    def settle(self) -> None:
        """Flush; where that fails send the rest nowhere, so that Python's own flush succeeds."""
        try:
            if self._stream is not None:
                self._stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError, AttributeError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, cast(TextIO, self._stream).fileno())
                os.close(nowhere)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def steady(stream: TextIO | None) -> TextIO:
    """Return a stream that writes where this one does, and never fails."""
    return cast(TextIO, SteadyStream(stream))


@contextmanager
def steady_streams() -> Iterator[None]:
    """Let standard output and error be steady while this is open.

    Descriptors 0 to 2 that are closed are opened onto nothing first: a file of the run that got
    one of them would take what libraries print.
    """
    _occupy_standard_descriptors()
    before = sys.stdout, sys.stderr
    own = SteadyStream(sys.stdout), SteadyStream(sys.stderr)
    sys.stdout, sys.stderr = cast(tuple[TextIO, TextIO], own)
    try:
        yield
    finally:
        for stream in own:
            stream.settle()
        sys.stdout, sys.stderr = before


def _occupy_standard_descriptors() -> None:
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)


# The first of each tuple that a step reports is shown.
SHOWN = (
    ("loss", ("loss",), "{:.3f}"),
    ("reward", ("reward/total",), "{:+.3f}"),
    ("accuracy", ("train/correct", "eval/direct/accuracy"), "{:.1%}"),
    ("judge", ("judge/accuracy", "eval/judge/accuracy"), "{:.1%}"),
    ("tokens/s", ("tokens_per_s", "tokens_per_s/trained"), "{:,.0f}"),
)
_RECENT_STEPS = 20
_BAR_WIDTH = 24


class Progress:
    """Shows phase, step, reward, accuracy, speed and time left; close it, or use it in `with`.

    On a terminal there are also the turns of the debates that are being played. Where the line is
    too narrow, its end is cut off.

    Args:
        console: Where to write; standard error by default, so that standard output stays clean.
        live: Draw in place. By default only on a terminal that is not a CI log.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(file=steady(sys.stderr), quiet=is_quiet())
        is_seen = self._console.is_terminal and not os.environ.get("CI")
        self._live = is_seen if live is None else live
        self._clock = clock
        self._bar: Bar | None = None
        self._task = TaskID(0)
        self._phase, self._total, self._started = "", 0, 0.0
        self._done, self._turns = "", ""
        self._measures: Sequence[str] = ()
        self._ends: deque[tuple[float, int]] = deque(maxlen=_RECENT_STEPS)

    def start(self, phase: str, total: int = 0, unit: str = "steps") -> None:
        """Begin a phase of `total` steps, or of another unit; ends the one before.

        One of 0 has no steps to count, such as an evaluation.
        """
        self.close()
        self._phase, self._total, self._started = phase, total, self._clock()
        self._ends.clear()
        self._ends.append((self._started, -1))
        if self._live:
            said = TextColumn("{task.description}  {task.fields[said]}", markup=False)
            self._bar = Bar(BarColumn(_BAR_WIDTH), said, console=self._console)
            self._done, self._turns, self._measures = f"0/{total}" if total else "", "", ()
            self._task = self._bar.add_task(phase, total=max(1, total), said=self._done)
            self._bar.start()
        else:
            self.note(f"{phase}: {total} {unit}" if total else phase)

    def watch(self, runs: Sequence[DebateRun], turns: int, what: str) -> list[DebateRun]:
        """Return these debates; while they are played, the display shows how many turns are.

        Args:
            runs: Not started yet; they may be played in another thread.
            turns: Most turns of each.
            what: Name of what is played.
        """

        def changed(played: int, total: int) -> None:
            self._turns = f"{what} {played}/{total}"
            if self._total:
                self._draw()
            else:  # An evaluation is as far as its turns are.
                self._draw(total, played)

        return counted(runs, turns, changed) if self._live else list(runs)

    def step(self, step: int, metrics: Mapping[str, object]) -> None:
        """Say that `step` of `total` steps are done (the first call of a phase has step 1)."""
        if self._ends[0][1] < 0:  # A resumed phase does not begin at 0.
            self._ends[0] = (self._ends[0][0], step - 1)
        self._ends.append((self._clock(), step))
        shown, left = _shown(metrics), self._time_left(step)
        # A phase whose exit criterion is not met goes on beyond the steps it began with.
        total = max(step, self._total)
        if self._bar is not None:
            self._done, self._measures = f"{step}/{total}", (*shown, left)
            self._draw(total, step)
        else:
            self.note("  ".join(filter(None, (f"{self._phase} {step}/{total}", *shown, left))))

    def _draw(self, total: int | None = None, completed: int | None = None) -> None:
        if self._bar is not None:
            said = "  ".join(filter(None, (self._done, self._turns, *self._measures)))
            self._bar.update(self._task, total=total, completed=completed, said=said)

    def note(self, text: str) -> None:
        """Write a line of its own, on a terminal above the display."""
        self._console.print(Text(text), soft_wrap=True)

    def close(self) -> None:
        """End the display; a second call does nothing."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _time_left(self, step: int) -> str:
        (first_s, first), (last_s, last) = self._ends[0], self._ends[-1]
        if step >= self._total:
            return f"took {_duration(last_s - self._started)}" if step == self._total else ""
        if last <= first:
            return ""
        return f"{_duration((last_s - first_s) / (last - first) * (self._total - step))} left"


def _shown(metrics: Mapping[str, Any]) -> list[str]:
    parts = []
    for label, names, form in SHOWN:
        value = next((metrics[name] for name in names if metrics.get(name) is not None), None)
        if value is not None:
            parts.append(f"{label} {form.format(float(value))}")
    return parts


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes}:{rest:02d} min"
