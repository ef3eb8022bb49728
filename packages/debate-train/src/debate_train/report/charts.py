"""Line charts as inline SVG, without scripts: small multiples with axes, units and hover texts."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from markupsafe import Markup

from debate_train.report.render import render

Form = Literal["share", "number", "small", "count", "seconds"]

WIDTH, HEIGHT = 360, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 26
MAX_DRAWN = 300
MAX_HOVER = 72
MAX_ROWS = 12
DOTS_BELOW = 40
MAX_SERIES = 6


@dataclass(frozen=True, slots=True)
class Series:
    """One line: its label and its (step, value) points in order of step."""

    label: str
    points: tuple[tuple[float, float], ...]


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


def line_chart(title: str, note: str, series: Sequence[Series], form: Form) -> Markup:
    """Return a figure of lines over steps, with a legend and its numbers folded below.

    Of many noisy points the bold line is a running mean and the pale one the values themselves.
    """
    series = series[:MAX_SERIES]
    x, _ = _axes(series, form)
    return render(
        "chart.html",
        **_drawn(title, series, form, "step"),
        note=note,
        columns=list(_columns(series, x, form)),
        head=["step", *(line.label for line in series)],
        numbers=_numbers(series, form),
    )


def line_drawing(title: str, series: Sequence[Series], form: Form, unit: str) -> Markup:
    """Return lines with their legend as an SVG file of its own; `unit` is that of the x axis."""
    return render("drawing.svg", **_drawn(title, series[:MAX_SERIES], form, unit))


def _drawn(title: str, series: Sequence[Series], form: Form, unit: str) -> dict[str, object]:
    """Return what templates draw of lines."""
    x, y = _axes(series, form)
    marks = ticks(y.low, y.high, 4)
    return {
        "title": title,
        "unit": unit,
        "spoken": "; ".join(_spoken(line, form, unit) for line in series),
        "width": WIDTH,
        "height": HEIGHT,
        "x": x,
        "y": y,
        "across": [(y.at(at), _tick(at, marks, form), "grid" if at else "zero") for at in marks],
        "along": [(x.at(at), f"{at:,.0f}") for at in ticks(x.low, x.high, 5, whole=True)],
        "lines": [
            {
                "place": place,
                "label": line.label,
                "last": write_value(line.points[-1][1], form),
                **_line(line, x, y),
            }
            for place, line in enumerate(series, 1)
        ],
    }


def _axes(series: Sequence[Series], form: Form) -> tuple[Axis, Axis]:
    steps = [step for line in series for step, _ in line.points]
    values = [value for line in series for _, value in line.points]
    low, high = min(values), max(values)
    least = 0.05 if form == "share" else max(abs(high), abs(low)) * 0.02 or 1.0
    half = 0.56 * max(high - low, least)
    bottom, top = (low + high) / 2 - half, (low + high) / 2 + half
    # No room is wasted on values that cannot be.
    if low >= 0:
        bottom, top = max(bottom, 0.0), max(top, least)
    if form == "share" and high <= 1:
        bottom, top = min(bottom, 1.0 - least), min(top, 1.0)
    first, last = min(steps), max(steps)
    x = Axis(first, last if last > first else first + 1, LEFT, WIDTH - RIGHT)
    return x, Axis(bottom, top, HEIGHT - BOTTOM, TOP)


def ticks(low: float, high: float, about: int, *, whole: bool = False) -> list[float]:
    """Return round values inside [low, high], about as many as asked."""
    raw = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw * 0.999)
    if whole:
        step = max(1.0, round(step))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]


def _tick(value: float, marks: Sequence[float], form: Form) -> str:
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


def _line(line: Series, x: Axis, y: Axis) -> dict[str, object]:
    """Return the paths of a line, each with its kind, and its dots."""
    points = _thin(line.points, MAX_DRAWN)
    path = _path(points, x, y)
    if len(line.points) < DOTS_BELOW:
        return {"paths": [("", path)], "dots": [(x.at(at), y.at(value)) for at, value in points]}
    if not _noisy(points):
        return {"paths": [("", path)], "dots": []}
    smooth = _running_mean(points, max(3, len(points) // 15))
    return {"paths": [(" raw", path), ("", _path(smooth, x, y))], "dots": []}


def _path(points: Sequence[tuple[float, float]], x: Axis, y: Axis) -> str:
    return "M" + "L".join(f"{x.at(step)},{y.at(value)}" for step, value in points)


def _thin(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Return at most `most` points: means of neighbours when there are more."""
    size = math.ceil(len(points) / most)
    if size == 1:
        return list(points)
    chunks = [points[start : start + size] for start in range(0, len(points), size)]
    return [(chunk[-1][0], sum(value for _, value in chunk) / len(chunk)) for chunk in chunks]


def _noisy(points: Sequence[tuple[float, float]]) -> bool:
    """Say whether a line goes up and down so much that its course is hard to see."""
    values = [value for _, value in points]
    way = sum(abs(after - before) for before, after in pairwise(values))
    return way > 3 * (max(values) - min(values))


def _running_mean(points: Sequence[tuple[float, float]], window: int) -> list[tuple[float, float]]:
    """Return each point's mean with its neighbours, fewer of them near the ends."""
    half, means = window // 2, []
    for place, (step, _) in enumerate(points):
        reach = min(half, place, len(points) - 1 - place)
        near = points[place - reach : place + reach + 1]
        means.append((step, sum(value for _, value in near) / len(near)))
    return means


def _columns(
    series: Sequence[Series], x: Axis, form: Form
) -> Iterator[tuple[float, float, float, str]]:
    """Yield the middle, left and right of columns over the chart, and the values at their step."""
    known = [dict(line.points) for line in series]
    steps = sorted({step for line in known for step in line})
    shown = steps[:: math.ceil(len(steps) / MAX_HOVER)]
    middles = [x.at(step) for step in shown]
    edges = [x.start, *((left + right) / 2 for left, right in pairwise(middles)), x.end]
    for step, middle, (left, right) in zip(shown, middles, pairwise(edges), strict=True):
        values = [
            f"{line.label}: {write_value(points[step], form)}"
            for line, points in zip(series, known, strict=True)
            if step in points
        ]
        yield middle, left, right, "\n".join([f"step {step:,.0f}", *values])


def _spoken(line: Series, form: Form, unit: str) -> str:
    (first, start), (last, end) = line.points[0], line.points[-1]
    return (
        f"{line.label} from {write_value(start, form)} at {unit} {first:,.0f} "
        f"to {write_value(end, form)} at {unit} {last:,.0f}"
    )


def _numbers(series: Sequence[Series], form: Form) -> list[list[str]]:
    known = [dict(line.points) for line in series]
    steps = sorted({step for line in known for step in line})
    if len(steps) > MAX_ROWS:
        places = {round(k * (len(steps) - 1) / (MAX_ROWS - 1)) for k in range(MAX_ROWS)}
        steps = [steps[place] for place in sorted(places)]
    return [
        [
            f"{step:,.0f}",
            *(write_value(points[step], form) if step in points else "" for points in known),
        ]
        for step in steps
    ]
