"""How far a run is: a live display on a terminal, plain lines elsewhere."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO, cast

from debate_protocol.command_line import is_quiet
from debate_protocol.types import DebateRun
from debate_train.playing import counted

# rich is imported where a run draws: commands that only check or refuse write plain lines.
if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

# Label, metrics and format of each shown measure; of several metrics the first reported one counts.
# The first are means over the last steps: those of one step are mostly noise of its few questions.
SMOOTHED = (
    ("accuracy", ("train/correct", "eval/direct/accuracy"), "{:.1%}"),
    ("judge", ("judge/accuracy", "eval/judge/accuracy"), "{:.1%}"),
)
SHOWN = (
    ("loss", ("loss",), "{:.3f}"),
    ("reward", ("reward/total",), "{:+.3f}"),
    ("tokens/s", ("tokens_per_s", "tokens_per_s/trained"), "{:,.0f}"),
)
# The time left and the smoothed measures are computed from these.
RECENT_STEPS = 20
BAR_WIDTH = 16
# Away from a terminal, each of the first steps has a line; after them a phase has about
# LINES_PER_PHASE lines, at most SECONDS_PER_LINE apart.
FIRST_STEPS = 3
LINES_PER_PHASE = 20
SECONDS_PER_LINE = 60.0


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the wall time of the block to `seconds`, as `time/{name}_s`, also if the block fails."""
    key = f"time/{name}_s"
    started = time.perf_counter()
    try:
        yield
    finally:
        seconds[key] = seconds.get(key, 0.0) + time.perf_counter() - started


class SteadyStream:
    """A text stream with writes that never fail: a closed pipe or a full disk loses only text.

    Args:
        stream: The target; `None`, Python's value for a closed descriptor, drops all text.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write as far as possible; return the length of the text."""
        with suppress(OSError, ValueError, AttributeError):  # ValueError: it was closed.
            try:
                self._stream.write(text)  # type: ignore[union-attr]
            except UnicodeEncodeError as error:
                plain = text.encode(error.encoding, "backslashreplace").decode(error.encoding)
                self._stream.write(plain)  # type: ignore[union-attr]
        return len(text)

    def flush(self) -> None:
        """Flush as far as possible."""
        with suppress(OSError, ValueError, AttributeError):
            self._stream.flush()  # type: ignore[union-attr]

    def isatty(self) -> bool:
        """Whether this is a terminal."""
        with suppress(ValueError):
            return self._stream is not None and self._stream.isatty()
        return False

    def settle(self) -> None:
        """Flush; after a failure send the rest to the null device, so Python can flush."""
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
    """Wrap a stream to never fail on writes."""
    return cast(TextIO, SteadyStream(stream))


@contextmanager
def steady_streams() -> Iterator[None]:
    """Let standard output and error be steady while this is open.

    Closed descriptors from 0 to 2 are opened onto the null device first: otherwise a file of the
    run could get such a descriptor and take the prints of libraries.
    """
    # A new descriptor is the lowest that is free. Those up to 2 stay open.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    stdout_before = sys.stdout
    stderr_before = sys.stderr
    steady_stdout = SteadyStream(sys.stdout)
    steady_stderr = SteadyStream(sys.stderr)
    sys.stdout = cast(TextIO, steady_stdout)
    sys.stderr = cast(TextIO, steady_stderr)
    try:
        yield
    finally:
        steady_stdout.settle()
        steady_stderr.settle()
        sys.stdout = stdout_before
        sys.stderr = stderr_before


class Progress:
    """Shows phase, step, accuracy, time left, loss and speed; close it, or use it in `with`.

    A terminal also shows the turns of the debates under way. A narrow line loses the end. In a
    log a phase has a line every so often.

    Args:
        console: Standard error by default, to keep standard output clean.
        live: Draw in place. By default only on a terminal outside CI.
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self,
        console: "Console | None" = None,
        *,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from rich.console import Console

        self._console = console or Console(file=steady(sys.stderr), quiet=is_quiet())
        is_watched = self._console.is_terminal and not os.environ.get("CI")
        self._live = is_watched if live is None else live
        self._clock = clock
        self._bar: Bar | None = None
        self._task: TaskID
        self._phase = ""
        self._num_steps = 0
        self._started = 0.0
        self._step_text = ""
        self._turns_text = ""
        self._main_measures: Sequence[str] = ()
        self._other_measures: Sequence[str] = ()
        self._recent_values: dict[str, deque[float]] = {}
        self._first_step = 0
        self._last_line = (0.0, 0)  # Time and step.
        # Time and number of the last steps, before the first one that of the start.
        self._step_ends: deque[tuple[float, int]] = deque(maxlen=RECENT_STEPS)

    def start(self, phase: str, total: int = 0, unit: str = "steps") -> None:
        """Begin a phase of `total` steps, or of another unit; ends the phase before.

        A phase of 0 has no steps to count, such as an evaluation.
        """
        self.close()
        self._phase = phase
        self._num_steps = total
        self._started = self._clock()
        self._step_ends.clear()
        self._step_ends.append((self._started, -1))
        self._recent_values = {label: deque(maxlen=RECENT_STEPS) for label, _, _ in SMOOTHED}
        if not self._live:
            self.note(f"{phase}: {total} {unit}" if total else phase)
            return
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        column = TextColumn("{task.description}  {task.fields[said]}", markup=False)
        self._bar = Bar(BarColumn(BAR_WIDTH), column, console=self._console)
        self._step_text = f"0/{total}" if total else ""
        self._turns_text = ""
        self._main_measures = ()
        self._other_measures = ()
        self._task = self._bar.add_task(phase, total=max(1, total), said=self._step_text)
        self._bar.start()

    def watch(self, runs: Sequence[DebateRun], turns: int, what: str) -> list[DebateRun]:
        """Wrap debates to show their number of played turns on the display.

        Args:
            runs: Debates before their start; they may be played in another thread.
            turns: Most turns of each.
            what: Name of the debates on the display.
        """
        if not self._live:
            return list(runs)

        def show_turns(num_played: int, num_turns: int) -> None:
            self._turns_text = f"{what} {num_played}/{num_turns}"
            if self._num_steps:
                self._draw()
            else:  # An evaluation is as far as its turns are.
                self._draw(num_turns, num_played)

        return counted(runs, turns, show_turns)

    def step(self, step: int, metrics: Mapping[str, object]) -> None:
        """Show `step` of `total` steps as done (the first call of a phase has step 1)."""
        start_time, first_step = self._step_ends[0]
        if first_step < 0:  # A resumed phase does not begin at 0.
            first_step = step - 1
            self._step_ends[0] = (start_time, first_step)
            self._last_line = (start_time, first_step)
            self._first_step = first_step
        self._step_ends.append((self._clock(), step))
        if len(self._step_ends) == 3 and self._step_ends[0][1] == self._first_step:
            self._step_ends.popleft()  # The first step of a phase takes longer: libraries warm up.
        self._main_measures = [*self._smoothed_texts(metrics), self._time_left(step)]
        self._other_measures = _measure_texts(metrics)
        # A phase that has not met its exit criterion continues beyond the steps it began with.
        num_steps = max(step, self._num_steps)
        if self._bar is not None:
            self._step_text = f"{step}/{num_steps}"
            self._draw(num_steps, step)
        elif self._line_is_due(step):
            self._last_line = (self._clock(), step)
            place = f"{self._phase} {step}/{num_steps}"
            texts = [place, *self._main_measures, *self._other_measures]
            self.note("  ".join(filter(None, texts)))

    def _line_is_due(self, step: int) -> bool:
        line_time, line_step = self._last_line
        return (
            step - self._first_step <= FIRST_STEPS
            or step == self._num_steps
            or step - line_step >= self._num_steps / LINES_PER_PHASE
            or self._clock() - line_time >= SECONDS_PER_LINE
        )

    def _smoothed_texts(self, metrics: Mapping[str, Any]) -> list[str]:
        texts = []
        for label, names, number_format in SMOOTHED:
            recent_values = self._recent_values[label]
            value = _first_value(metrics, names)
            if value is not None:
                recent_values.append(value)
            if recent_values:
                mean = sum(recent_values) / len(recent_values)
                texts.append(f"{label} {number_format.format(mean)}")
        return texts

    def _draw(self, total: int | None = None, completed: int | None = None) -> None:
        if self._bar is not None:
            texts = [self._step_text, *self._main_measures, self._turns_text]
            texts += self._other_measures
            line = "  ".join(filter(None, texts))
            self._bar.update(self._task, total=total, completed=completed, said=line)

    def note(self, text: str) -> None:
        """Write a separate line, on a terminal above the display."""
        from rich.text import Text

        self._console.print(Text(text), soft_wrap=True)

    def close(self) -> None:
        """End the display; a second call has no effect."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _time_left(self, step: int) -> str:
        first_time, first_step = self._step_ends[0]
        last_time, last_step = self._step_ends[-1]
        if step > self._num_steps:
            return ""
        if step == self._num_steps:
            return f"took {duration_text(last_time - self._started)}"
        if last_step <= first_step:
            return ""
        seconds_per_step = (last_time - first_time) / (last_step - first_step)
        return f"{duration_text(seconds_per_step * (self._num_steps - step))} left"


def _measure_texts(metrics: Mapping[str, Any]) -> list[str]:
    texts = []
    for label, names, number_format in SHOWN:
        value = _first_value(metrics, names)
        if value is not None:
            texts.append(f"{label} {number_format.format(value)}")
    return texts


def _first_value(metrics: Mapping[str, Any], names: Sequence[str]) -> float | None:
    values = [metrics[name] for name in names if metrics.get(name) is not None]
    return float(values[0]) if values else None


def duration_text(seconds: float) -> str:
    """Write seconds as minutes and seconds, or hours and minutes."""
    minutes, rest_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes}:{rest_seconds:02d} min"
