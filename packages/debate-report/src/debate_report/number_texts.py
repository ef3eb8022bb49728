"""Numbers as a person reads them: values of measures, times and labels of ticks."""

from collections.abc import Sequence
from typing import Literal

Form = Literal["share", "number", "small", "count", "seconds"]

# From here on no form has room for all digits.
FIRST_IN_SCIENTIFIC_NOTATION = 1e12


def write_value(value: float, form: Form) -> str:
    """Write a value with the digits and the unit of its form."""
    if abs(value) >= FIRST_IN_SCIENTIFIC_NOTATION:
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
    """Write a time in hours and minutes, minutes and seconds, or seconds."""
    minutes, rest_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    if minutes:
        return f"{minutes} min {rest_seconds:02d} s"
    return f"{rest_seconds} s"


def tick_text(value: float, marks: Sequence[float], form: Form) -> str:
    """Write the label of one of an axis's marks."""
    largest = max(abs(mark) for mark in marks)
    if form == "share":
        step = marks[1] - marks[0] if len(marks) > 1 else 1.0
        # Steps of less than a percent need a decimal to differ. The bound is a little below 0.01,
        # which floats of such steps miss.
        decimals = 0 if step >= 0.00999 else 1
        text = f"{100 * value:.{decimals}f} %"
    elif value == 0:
        text = "0"
    elif largest < 1e-3:
        text = f"{value:.2g}".replace("e-0", "e-")
    elif largest >= 10_000:
        text = f"{value / 1000:,.4g}k"
    else:
        text = f"{value:.4g}"
    return text.replace("-", "−")
