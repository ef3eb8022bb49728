"""Line charts as inline SVG, without scripts: small multiples with axes, units and hover texts."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from markupsafe import Markup

from debate_report.timeline import Along, Axis, Form, plain, render, tick_text, ticks, write_value

WIDTH, HEIGHT = 360, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 26
NAMES = 18
"""Height of the names of phases."""
DIGIT, LETTER = 6.2, 5.9
"""Widths that are enough for a character of the axes, in pixels."""
MAX_DRAWN = 60
"""Points of a line; of more the means of neighbours are drawn."""
MAX_HOVER = 72
DOTS_BELOW = 40
MAX_SERIES = 6


@dataclass(frozen=True, slots=True)
class Series:
    """One line: its label and its (position, value) points in order of position."""

    label: str
    points: tuple[tuple[float, float], ...]
    joined: bool = True
    """Whether a line goes through its points."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What a measure had to reach in a stretch of the axis, and where it did."""

    start: float
    end: float
    value: float
    met: float | None
    """Position of the look that reached it."""


@dataclass(frozen=True, slots=True)
class Chart:
    """What a figure of lines shows."""

    title: str
    note: str
    series: Sequence[Series]
    form: Form
    why: str = ""
    """How it is read, folded beside the title."""
    bounds: Sequence[Bound] = ()


@dataclass(frozen=True, slots=True)
class Marks:
    """What happened on a time line."""

    outcomes: Sequence[tuple[str, str]] = ()
    """Of each stretch: `good`, `bad` or nothing, and the reason in words."""
    alarms: Sequence[tuple[float, str]] = ()
    """Position and words of each alarm."""


def line_chart(chart: Chart, along: Along | None = None, marks: Marks | None = None) -> Markup:
    """Return a figure of lines, with a legend.

    Args:
        chart: What it shows, in at most `MAX_SERIES` lines.
        along: The axis whose positions the points have; None is that of their numbers as steps.
        marks: What happened along it.
    """
    series, marks = chart.series, marks or Marks()
    along = along or plain([step for line in series for step, _ in line.points], "step")
    drawn = _drawn(chart, along, marks)
    return render(
        "chart.html",
        **drawn,
        note=chart.note,
        why=chart.why,
        bounded=bool(chart.bounds),
        columns=list(_columns(series, along, chart.form)),
    )


def image(charts: Sequence[tuple[Chart, Along]]) -> str:
    """Return charts one below the other as an SVG image that needs nothing else."""
    drawn = [_drawn(chart, along, Marks()) for chart, along in charts]
    panels = [(one, chart.note, render("lines.svg", **one))
              for one, (chart, _) in zip(drawn, charts, strict=True)]  # fmt: skip
    return render("image.svg", panels=panels, width=WIDTH, height=HEIGHT)


def parts_of(title: str, series: Sequence[Series]) -> Iterator[tuple[str, Sequence[Series]]]:
    """Yield as many charts as the lines need: a title, and at most `MAX_SERIES` lines."""
    starts = range(0, len(series), MAX_SERIES)
    for number, start in enumerate(starts, 1):
        mark = f" ({number} of {len(starts)})" if len(starts) > 1 else ""
        yield title + mark, series[start : start + MAX_SERIES]


def _drawn(chart: Chart, along: Along, marks: Marks) -> dict[str, object]:
    """Return what templates draw of lines."""
    series, form, named = chart.series, chart.form, len(along.stretches) > 1
    x = Axis(*along.ends, LEFT, WIDTH - RIGHT)
    y = _upright(series, chart.bounds, form, TOP + (NAMES if named else 0))
    rows = ticks(y.low, y.high, 4)
    return {
        "title": chart.title,
        "unit": along.unit,
        "spoken": "; ".join(_spoken(line, form, along) for line in series),
        "width": WIDTH,
        "height": HEIGHT,
        "x": x,
        "y": y,
        "across": [(y.at(at), tick_text(at, rows, form), "grid" if at else "zero") for at in rows],
        "along": _along(along, x),
        "phases": list(_names(along, x, marks)) if named else [],
        "bounds": [
            (x.at(one.start), x.at(one.end), y.at(one.value), one.met and x.at(one.met))
            for one in chart.bounds
        ],
        "alarms": [(x.at(position), said) for position, said in marks.alarms],
        "lines": [
            {
                "place": place,
                "label": line.label,
                **_line(line, along, (x, y, form)),
            }
            for place, line in enumerate(series, 1)
        ],
    }


def _upright(
    series: Sequence[Series], bounds: Sequence[Bound], form: Form, top_pixel: float
) -> Axis:
    values = [value for line in series for _, value in line.points]
    values += [bound.value for bound in bounds]
    low, high = min(values), max(values)
    least = 0.05 if form == "share" else max(abs(high), abs(low)) * 0.02 or 1.0
    half = 0.56 * max(high - low, least)
    bottom, top = (low + high) / 2 - half, (low + high) / 2 + half
    # No room is wasted on values that cannot be.
    if low >= 0:
        bottom, top = max(bottom, 0.0), max(top, least)
    if form == "share" and high <= 1:
        bottom, top = min(bottom, 1.0 - least), min(top, 1.0)
    return Axis(bottom, top, HEIGHT - BOTTOM, top_pixel)


def _along(along: Along, x: Axis) -> list[tuple[float, float, str]]:
    """Return ticks: pixels of the line and of its label, none of which touches another."""
    found: list[tuple[float, float, str]] = []
    free = x.start - 3.5  # The unit stands left of the axis.
    for stretch in along.stretches:
        width = x.at(stretch.end) - x.at(stretch.start)
        about = max(1, min(5, int(width / 50)))
        for step in ticks(
            stretch.first, max(stretch.last, stretch.first + 1), about, whole=True
        ) or [stretch.last]:
            label, at = f"{step:,.0f}", x.at(stretch.at(step))
            half = len(label) * DIGIT / 2
            at_end = min(at, WIDTH - half)
            if step <= stretch.last and at_end - half >= free:
                found.append((at, round(at_end, 1), label))
                free = at_end + half + DIGIT
    return found


def _names(along: Along, x: Axis, marks: Marks) -> Iterator[dict[str, object]]:
    """Yield each stretch: its pixels, as much of its name as there is room for, its outcome."""
    for place, stretch in enumerate(along.stretches):
        start, end = x.at(stretch.start), x.at(stretch.end)
        outcome, said = marks.outcomes[place] if place < len(marks.outcomes) else ("", "")
        sign = {"good": " ✓", "bad": " ✗"}.get(outcome, "")
        labels = (f"{place + 1} {stretch.name}{sign}", f"{place + 1}{sign}", f"{place + 1}", "")
        label = next(text for text in labels if LETTER * len(text) <= end - start or not text)
        words = f"{place + 1} {stretch.name}" + (f": {said}" if said else "")
        yield {"start": start, "end": end, "label": label, "outcome": outcome, "said": words}


def _line(line: Series, along: Along, frame: tuple[Axis, Axis, Form]) -> dict[str, object]:
    """Return the paths of a line, its dots, and where it ends as it is drawn.

    Paths end where phases do.
    """
    x, y, form = frame
    paths: list[str] = []
    dots: list[tuple[float, float]] = []
    size = math.ceil(len(line.points) / MAX_DRAWN)
    for _, group in groupby(line.points, key=lambda point: along.place(point[0])):
        points = _thin(list(group), size)
        drawn = [(x.at(at), y.at(value)) for at, value in points]
        paths.append("M" + "L".join(f"{across},{height}" for across, height in drawn))
        dots += drawn if size == 1 and len(drawn) < DOTS_BELOW else []
    return {
        "paths": paths if line.joined else [],
        "dots": dots,
        "last": write_value(points[-1][1], form),
    }


def _thin(points: Sequence[tuple[float, float]], size: int) -> list[tuple[float, float]]:
    """Return the means of so many neighbours at a time."""
    if size == 1:
        return list(points)
    chunks = [points[start : start + size] for start in range(0, len(points), size)]
    return [(chunk[-1][0], sum(value for _, value in chunk) / len(chunk)) for chunk in chunks]


def _columns(
    series: Sequence[Series], along: Along, form: Form
) -> Iterator[tuple[float, float, float, str]]:
    """Yield the middle, left and right of columns over the chart, and the values there."""
    x = Axis(*along.ends, LEFT, WIDTH - RIGHT)
    known = [dict(line.points) for line in series]
    positions = sorted({position for line in known for position in line})
    shown = positions[:: math.ceil(len(positions) / MAX_HOVER)]
    middles = [x.at(position) for position in shown]
    edges = [x.start, *((left + right) / 2 for left, right in pairwise(middles)), x.end]
    for position, middle, (left, right) in zip(shown, middles, pairwise(edges), strict=True):
        values = [
            f"{line.label}: {write_value(points[position], form)}"
            for line, points in zip(series, known, strict=True)
            if position in points
        ]
        yield middle, left, right, "\n".join([along.said(position), *values])


def _spoken(line: Series, form: Form, along: Along) -> str:
    (first, start), (last, end) = line.points[0], line.points[-1]
    return (
        f"{line.label} from {write_value(start, form)} at {along.said(first)} "
        f"to {write_value(end, form)} at {along.said(last)}"
    )
