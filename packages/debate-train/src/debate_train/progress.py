"""How far a run is: a live display on a terminal, plain lines elsewhere."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

from debate_train.streams import steady

# The first of each tuple that a step reports is shown.
SHOWN = (
    ("loss", ("loss",), "{:.3f}"),
    ("reward", ("reward/total",), "{:+.3f}"),
    ("accuracy", ("train/correct", "eval/direct/accuracy"), "{:.1%}"),
    ("judge", ("judge/accuracy", "eval/judge/accuracy"), "{:.1%}"),
    ("tokens/s", ("tokens_per_s",), "{:,.0f}"),
)
_RECENT_STEPS = 20


class Progress:
    """Shows phase, step, reward, accuracy, speed and time left; close it, or use it in `with`.

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
        self._console = console or Console(file=steady(sys.stderr))
        self._live = (
            self._console.is_terminal and not os.environ.get("CI") if live is None else live
        )
        self._clock = clock
        self._bar: Bar | None = None
        self._task = TaskID(0)
        self._phase, self._total, self._started = "", 0, 0.0
        self._ends: deque[tuple[float, int]] = deque(maxlen=_RECENT_STEPS)

    def start(self, phase: str, total: int, unit: str = "steps") -> None:
        """Begin a phase of `total` steps, or of another unit; ends the one before."""
        self._end_phase()
        self._phase, self._total, self._started = phase, total, self._clock()
        self._ends.clear()
        self._ends.append((self._started, -1))
        if self._live:
            self._bar = Bar(
                TextColumn("{task.description}", markup=False, style="bold"),
                BarColumn(bar_width=24),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TextColumn("{task.fields[shown]}", markup=False),
                TextColumn("{task.fields[left]}", markup=False, style="dim"),
                console=self._console,
            )
            self._task = self._bar.add_task(phase, total=total, shown="", left="")
            self._bar.start()
        else:
            self._print(f"{phase}: {total} {unit}")

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Say that `step` of `total` steps are done (the first call of a phase has step 1)."""
        if self._ends[0][1] < 0:  # A resumed phase does not begin at 0.
            self._ends[0] = (self._ends[0][0], step - 1)
        self._ends.append((self._clock(), step))
        shown, left = _shown(metrics), self._time_left(step)
        if self._bar is not None:
            self._bar.update(self._task, completed=step, shown=shown, left=left)
        else:
            # A phase whose gate is still shut goes on beyond the steps it began with.
            done = f"{self._phase} {step}/{max(step, self._total)}"
            self._print("  ".join(filter(None, (done, shown, left))))

    def note(self, text: str) -> None:
        """Write a line of its own above the display."""
        self._print(text)

    def close(self) -> None:
        """End the display; a second call does nothing."""
        self._end_phase()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _end_phase(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _time_left(self, step: int) -> str:
        (first_s, first), (last_s, last) = self._ends[0], self._ends[-1]
        if step >= self._total:
            return f"took {_duration(last_s - self._started)}" if step == self._total else ""
        if last <= first:
            return ""
        return f"{_duration((last_s - first_s) / (last - first) * (self._total - step))} left"

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


def _shown(metrics: Mapping[str, Any]) -> str:
    parts = []
    for label, names, form in SHOWN:
        value = next((metrics[name] for name in names if metrics.get(name) is not None), None)
        if value is not None:
            parts.append(f"{label} {form.format(float(value))}")
    return "  ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes}:{rest:02d} min"
