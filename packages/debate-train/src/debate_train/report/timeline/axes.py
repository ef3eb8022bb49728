"""Axes of charts, their ticks, and numbers as a person reads them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Form = Literal["share", "number", "small", "count", "seconds"]


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values mapped to a range of pixels."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


def write_value(value: float, form: Form) -> str:
    """Return a value as a person reads it."""
    if abs(value) >= 1e12:
        text = f"{value:.3g}"
    elif form == "share":
        text = f"{100 * value:.1f} %"
    elif form == "count":
        text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    elif form == "seconds":
        text = f"{value:.3g} s"
    elif form == "small":
        text = f"{value:.2g}"
    else:
        text = f"{value:.3f}" if abs(value) < 1000 else f"{value:,.0f}"
    return text.replace("-", "−")


def write_duration(seconds: float) -> str:
    """Return a time as a person reads it."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def ticks(low: float, high: float, about: int, *, whole: bool = False) -> list[float]:
    """Return round values inside [low, high], about as many as asked."""
    raw = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw * 0.999)
    if whole:
        step = max(1.0, round(step))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]


def tick_text(value: float, marks: Sequence[float], form: Form) -> str:
    """Return the label of one of these marks."""
    largest = max(abs(mark) for mark in marks)
    if form == "share":
        step = marks[1] - marks[0] if len(marks) > 1 else 1.0
        text = f"{100 * value:.{0 if step >= 0.00999 else 1}f} %"
    elif value == 0:
        text = "0"
    elif largest < 1e-3:
        text = f"{value:.2g}".replace("e-0", "e-")
    elif largest >= 10_000:
        text = f"{value / 1000:,.4g}k"
    else:
        text = f"{value:.4g}"
    return text.replace("-", "−")
