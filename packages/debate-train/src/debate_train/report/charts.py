"""Line charts as inline SVG, without scripts: small multiples with axes, units and hover texts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from debate_train.report.html import Html, fold, join, table, tag

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


def line_chart(title: str, note: str, series: Sequence[Series], form: Form) -> Html:
    """Return a figure of lines over steps, with a legend and its numbers folded below.

    Of many noisy points the bold line is a running mean and the pale one the values themselves.
    """
    series = series[:MAX_SERIES]
    x, y = _axes(series, form)
    drawing = tag(
        "svg",
        _grid(x, y, form),
        *(_line(line, place, x, y) for place, line in enumerate(series)),
        _hover(series, x, y, form),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{title}: " + "; ".join(_spoken(line, form) for line in series),
    )
    legend = (
        tag(
            "li",
            _swatch(place),
            line.label,
            " ",
            tag("b", write_value(line.points[-1][1], form), title="last value"),
        )
        for place, line in enumerate(series)
    )
    return tag(
        "figure",
        tag("figcaption", tag("strong", title), " ", tag("span", note)),
        drawing,
        tag("ul", *legend, class_="legend"),
        fold("Numbers", _numbers(series, form)),
        class_="panel",
    )


def interval_chart(
    before: tuple[float, float, float], after: tuple[float, float, float], low: float, high: float
) -> Html:
    """Return a small picture of two means with their intervals, one above the other."""
    axis = Axis(low, high if high > low else low + 1, 6, 174)
    parts = [tag("line", x1=x, x2=x, y1=0, y2=28, class_="grid") for x in (6, 90, 174)]
    for (mean, bottom, top), y, name in ((before, 9, "before"), (after, 19, "after")):
        start, end = axis.at(bottom), axis.at(top)
        parts.append(tag("line", x1=start, x2=end, y1=y, y2=y, class_=f"interval {name}"))
        parts.append(tag("circle", cx=axis.at(mean), cy=y, r=4, class_=f"mean {name}"))
    return tag("svg", *parts, viewBox="0 0 180 28", class_="dumbbell", aria_hidden="true")


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


def _grid(x: Axis, y: Axis, form: Form) -> Html:
    parts: list[Html] = []
    marks = ticks(y.low, y.high, 4)
    for value in marks:
        at = y.at(value)
        kind = "zero" if value == 0 else "grid"
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_=kind))
        parts.append(tag("text", _tick(value, marks, form), x=LEFT - 6, y=at + 3.5, class_="y"))
    for value in ticks(x.low, x.high, 5, whole=True):
        at = x.at(value)
        parts.append(tag("line", x1=at, x2=at, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM + 4))
        parts.append(tag("text", f"{value:,.0f}", x=at, y=HEIGHT - BOTTOM + 15, class_="x"))
    parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM))
    parts.append(tag("text", "step", x=LEFT - 6, y=HEIGHT - BOTTOM + 15, class_="y"))
    return tag("g", *parts, class_="axes")


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


def _line(line: Series, place: int, x: Axis, y: Axis) -> Html:
    points = _thin(line.points, MAX_DRAWN)
    kind = f"line s{place + 1}"
    if len(line.points) < DOTS_BELOW:
        dots = [
            tag("circle", cx=x.at(step), cy=y.at(value), r=2.2, class_=f"dot s{place + 1}")
            for step, value in points
        ]
        return join([tag("path", d=_path(points, x, y), class_=kind), *dots])
    if not _noisy(points):
        return tag("path", d=_path(points, x, y), class_=kind)
    smooth = _running_mean(points, max(3, len(points) // 15))
    return join(
        [
            tag("path", d=_path(points, x, y), class_=f"{kind} raw"),
            tag("path", d=_path(smooth, x, y), class_=kind),
        ]
    )


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


def _hover(series: Sequence[Series], x: Axis, y: Axis, form: Form) -> Html:
    """Return invisible columns that show the values of a step under the pointer."""
    known = [dict(line.points) for line in series]
    steps = sorted({step for line in known for step in line})
    shown = steps[:: math.ceil(len(steps) / MAX_HOVER)]
    columns = []
    for place, step in enumerate(shown):
        at = x.at(step)
        left = LEFT if place == 0 else (x.at(shown[place - 1]) + at) / 2
        right = WIDTH - RIGHT if place == len(shown) - 1 else (x.at(shown[place + 1]) + at) / 2
        values = [
            f"{line.label}: {write_value(points[step], form)}"
            for line, points in zip(series, known, strict=True)
            if step in points
        ]
        columns.append(
            tag(
                "g",
                tag("title", "\n".join([f"step {step:,.0f}", *values])),
                tag("line", x1=at, x2=at, y1=TOP, y2=HEIGHT - BOTTOM),
                tag("rect", x=left, y=TOP, width=right - left, height=HEIGHT - BOTTOM - TOP),
            )
        )
    return tag("g", *columns, class_="hover")


def _swatch(place: int) -> Html:
    line = tag("line", x1=0, x2=18, y1=4, y2=4, class_=f"line s{place + 1}")
    return tag("svg", line, viewBox="0 0 18 8", class_="swatch", aria_hidden="true")


def _spoken(line: Series, form: Form) -> str:
    (first, start), (last, end) = line.points[0], line.points[-1]
    return (
        f"{line.label} from {write_value(start, form)} at step {first:,.0f} "
        f"to {write_value(end, form)} at step {last:,.0f}"
    )


def _numbers(series: Sequence[Series], form: Form) -> Html:
    known = [dict(line.points) for line in series]
    steps = sorted({step for line in known for step in line})
    if len(steps) > MAX_ROWS:
        places = {round(k * (len(steps) - 1) / (MAX_ROWS - 1)) for k in range(MAX_ROWS)}
        steps = [steps[place] for place in sorted(places)]
    rows = (
        [
            f"{step:,.0f}",
            *(write_value(points[step], form) if step in points else "" for points in known),
        ]
        for step in steps
    )
    return table(["step", *(line.label for line in series)], rows)
