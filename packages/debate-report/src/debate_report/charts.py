"""Line charts as inline SVG, without scripts: small multiples with axes, units and hover texts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from markupsafe import Markup

from debate_report.number_texts import Form, tick_text, write_value
from debate_report.page_templates import render
from debate_report.timeline import Axis, PhaseAxis, plain_axis, ticks

# Sizes in pixels.
WIDTH = 360
HEIGHT = 190
LEFT = 46
RIGHT = 10
TOP = 10
BOTTOM = 26
PHASE_NAMES_HEIGHT = 18
TICK_WIDTH = 50
# Widths of a character of the ticks and of the names of phases; wide enough for all of them.
DIGIT = 6.2
LETTER = 5.9
# Longer lines are drawn by the means of neighbors.
MAX_DRAWN = 60
MAX_HOVER = 72
# Dots on more points than this would hide their line.
DOTS_BELOW = 40
MAX_SERIES = 6
OUTCOME_SIGNS = {"good": " ✓", "bad": " ✗"}

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """A line: a label, and (position, value) points in order of position."""

    label: str
    points: tuple[Point, ...]
    joined: bool = True
    """Whether a line goes through the points."""
    test_points: tuple[Point, ...] = ()
    """The same measure on test questions before and after the run."""
    is_beyond_chance: bool = False
    """Whether the change on the same test questions is."""

    @property
    def all_points(self) -> tuple[Point, ...]:
        """The points of the line, then the points of test questions."""
        return self.points + self.test_points


@dataclass(frozen=True, slots=True)
class Bound:
    """The least value required of a measure in a stretch of the axis."""

    start: float
    end: float
    value: float
    met: float | None
    """Position of the evaluation that reached it."""


@dataclass(frozen=True, slots=True)
class Chart:
    """The contents of a chart."""

    title: str
    note: str
    series: Sequence[Series]
    form: Form
    why: str = ""
    """How it is read, folded after the title."""
    bounds: Sequence[Bound] = ()


@dataclass(frozen=True, slots=True)
class Marks:
    """Outcomes of phases and alarms on a time line."""

    outcomes: Sequence[tuple[str, str]] = ()
    """Of each stretch: `good`, `bad` or nothing, and the reason in words."""
    alarms: Sequence[tuple[float, str]] = ()
    """Position and words of each alarm."""


Plot = tuple[Chart, PhaseAxis]
"""A chart with a horizontal axis."""


def line_chart(chart: Chart, along: PhaseAxis | None = None, marks: Marks | None = None) -> Markup:
    """Draw a chart with a legend and hover texts.

    Args:
        chart: The contents, with at most `MAX_SERIES` lines.
        along: The axis of the points' positions; `None` takes their numbers as steps.
        marks: Outcomes and alarms on the axis.
    """
    if along is None:
        positions = [position for line in chart.series for position, _ in line.all_points]
        along = plain_axis(positions, "step")
    return render(
        "chart.html",
        **_template_values(chart, along, marks or Marks()),
        note=chart.note,
        why=chart.why,
        bounded=bool(chart.bounds),
        is_tested=any(line.test_points for line in chart.series),
        columns=list(_hover_columns(chart.series, along, chart.form)),
    )


def image(charts: Sequence[Plot]) -> str:
    """Draw charts in a column as an SVG image without other files."""
    panels = []
    for chart, along in charts:
        values = _template_values(chart, along, Marks())
        lines = render("lines.svg", **values)
        panels.append((values, chart.note, lines))
    return render("image.svg", panels=panels, width=WIDTH, height=HEIGHT)


def parts_of(title: str, series: Sequence[Series]) -> Iterator[tuple[str, Sequence[Series]]]:
    """Divide lines into charts of at most `MAX_SERIES`, each with a title."""
    starts = range(0, len(series), MAX_SERIES)
    for number, start in enumerate(starts, 1):
        count = f" ({number} of {len(starts)})" if len(starts) > 1 else ""
        yield title + count, series[start : start + MAX_SERIES]


def _template_values(chart: Chart, along: PhaseAxis, marks: Marks) -> dict[str, object]:
    """Compute the values of `lines.svg`."""
    has_phase_names = len(along.stretches) > 1
    x = Axis(*along.ends, LEFT, WIDTH - RIGHT)
    top_pixel = TOP + PHASE_NAMES_HEIGHT if has_phase_names else TOP
    y = _value_axis(chart, top_pixel)
    tick_values = ticks(y.low, y.high, 4)
    grid_lines = []
    for value in tick_values:
        kind = "grid" if value else "zero"
        grid_lines.append((y.at(value), tick_text(value, tick_values, chart.form), kind))
    bounds = []
    for bound in chart.bounds:
        met_pixel = None if bound.met is None else x.at(bound.met)
        bounds.append((x.at(bound.start), x.at(bound.end), y.at(bound.value), met_pixel))
    lines = []
    for number, line in enumerate(chart.series, 1):
        paths, dots, last_value = _draw_line(line, along, x, y)
        lines.append(
            {
                "place": number,
                "label": line.label,
                "paths": paths,
                "dots": dots,
                "last": "" if last_value is None else write_value(last_value, chart.form),
                "rings": [(x.at(position), y.at(value)) for position, value in line.test_points],
                "test_values": [write_value(value, chart.form) for _, value in line.test_points],
            }
        )
    summaries = [_summary(line, chart.form, along) for line in chart.series]
    return {
        "title": chart.title,
        "unit": along.unit,
        "spoken": "; ".join(summaries),
        "width": WIDTH,
        "height": HEIGHT,
        "x": x,
        "y": y,
        "across": grid_lines,
        "along": _step_ticks(along, x),
        "phases": list(_phase_labels(along, x, marks)) if has_phase_names else [],
        "bounds": bounds,
        "alarms": [(x.at(position), words) for position, words in marks.alarms],
        "lines": lines,
    }


def _value_axis(chart: Chart, top_pixel: float) -> Axis:
    """Build the vertical axis, a little longer than the range of the values."""
    values = [value for line in chart.series for _, value in line.all_points]
    values += [bound.value for bound in chart.bounds]
    low = min(values)
    high = max(values)
    # Values that hardly differ must not look like large changes.
    relative_range = max(abs(high), abs(low)) * 0.02 or 1.0
    shortest_range = 0.05 if chart.form == "share" else relative_range
    middle = (low + high) / 2
    half_range = 0.56 * max(high - low, shortest_range)
    bottom = middle - half_range
    top = middle + half_range
    # Values below 0, and shares above 1, which cannot be, get no room.
    if low >= 0:
        bottom = max(bottom, 0.0)
        top = max(top, shortest_range)
    if chart.form == "share" and high <= 1:
        bottom = min(bottom, 1.0 - shortest_range)
        top = min(top, 1.0)
    return Axis(low=bottom, high=top, start=HEIGHT - BOTTOM, end=top_pixel)


def _step_ticks(along: PhaseAxis, x: Axis) -> list[tuple[float, float, str]]:
    """List the ticks of steps without overlap: pixels of the line and of the label, and the label.

    From left to right a tick is left out where two labels would touch.
    """
    step_ticks: list[tuple[float, float, str]] = []
    free_from = x.start - 3.5  # the unit is written left of the axis
    for stretch in along.stretches:
        width = x.at(stretch.end) - x.at(stretch.start)
        num_ticks = max(1, min(5, int(width / TICK_WIDTH)))
        last_step = max(stretch.last, stretch.first + 1)
        # Between two whole numbers there may be no round one.
        steps = ticks(stretch.first, last_step, num_ticks, whole=True) or [stretch.last]
        for step in steps:
            label = f"{step:,.0f}"
            pixel = x.at(stretch.at(step))
            half_width = len(label) * DIGIT / 2
            label_pixel = min(pixel, WIDTH - half_width)
            if step <= stretch.last and label_pixel - half_width >= free_from:
                step_ticks.append((pixel, round(label_pixel, 1), label))
                free_from = label_pixel + half_width + DIGIT
    return step_ticks


def _phase_labels(along: PhaseAxis, x: Axis, marks: Marks) -> Iterator[dict[str, object]]:
    """Yield each phase: pixels, as much of the name as has room, the outcome."""
    for index, stretch in enumerate(along.stretches):
        number = along.first_number + index
        start = x.at(stretch.start)
        end = x.at(stretch.end)
        outcome = reason = ""
        if index < len(marks.outcomes):
            outcome, reason = marks.outcomes[index]
        sign = OUTCOME_SIGNS.get(outcome, "")
        # The longest that fits; the last fits always.
        candidates = (f"{number} {stretch.name}{sign}", f"{number}{sign}", f"{number}", "")
        label = next(text for text in candidates if LETTER * len(text) <= end - start or not text)
        hover_text = f"{number} {stretch.name}"
        if reason:
            hover_text += f": {reason}"
        yield {"start": start, "end": end, "label": label, "outcome": outcome, "said": hover_text}


def _draw_line(
    line: Series, along: PhaseAxis, x: Axis, y: Axis
) -> tuple[list[str], list[Point], float | None]:
    """Compute a line's paths (each for a phase), the dots, and the last value drawn.

    Without other points the test points are joined, and no value is the last.
    """
    if not line.points:
        ends = [f"{x.at(position)},{y.at(value)}" for position, value in line.test_points]
        return [f"M{'L'.join(ends)}"], [], None
    paths = []
    dots: list[Point] = []
    points: Sequence[Point] = line.points
    chunk_size = math.ceil(len(line.points) / MAX_DRAWN)
    for _, group in groupby(line.points, key=lambda point: along.stretch_index(point[0])):
        points = _mean_points(list(group), chunk_size)
        pixels = [(x.at(position), y.at(value)) for position, value in points]
        path = "L".join(f"{across},{height}" for across, height in pixels)
        paths.append(f"M{path}")
        if chunk_size == 1 and len(pixels) < DOTS_BELOW:
            dots += pixels
    return paths if line.joined else [], dots, points[-1][1]


def _mean_points(points: Sequence[Point], chunk_size: int) -> list[Point]:
    """Average `chunk_size` neighbors at a time, each mean at the last averaged point."""
    if chunk_size == 1:
        return list(points)
    means = []
    for start in range(0, len(points), chunk_size):
        chunk = points[start : start + chunk_size]
        last_position = chunk[-1][0]
        mean = sum(value for _, value in chunk) / len(chunk)
        means.append((last_position, mean))
    return means


def _hover_columns(
    series: Sequence[Series], along: PhaseAxis, form: Form
) -> Iterator[tuple[float, float, float, str]]:
    """Yield the middle, left and right of columns over the chart, and the values there."""
    x = Axis(*along.ends, LEFT, WIDTH - RIGHT)
    values_of_lines: list[tuple[str, Mapping[float, float]]] = []
    for line in series:
        values_of_lines.append((line.label, dict(line.points)))
        values_of_lines.append((f"{line.label}, test questions", dict(line.test_points)))
    line_positions = sorted({position for line in series for position, _ in line.points})
    test_positions = {position for line in series for position, _ in line.test_points}
    shown_positions = line_positions[:: math.ceil(len(line_positions) / MAX_HOVER) or 1]
    positions = sorted(test_positions.union(shown_positions))
    middles = [x.at(position) for position in positions]
    edges = [x.start]
    edges += [(left + right) / 2 for left, right in pairwise(middles)]
    edges.append(x.end)
    for index, position in enumerate(positions):
        lines = [along.describe(position)]
        for label, values in values_of_lines:
            if position in values:
                lines.append(f"{label}: {write_value(values[position], form)}")
        yield middles[index], edges[index], edges[index + 1], "\n".join(lines)


def _summary(line: Series, form: Form, along: PhaseAxis) -> str:
    """Write the two ends of a line, and of the test points, for screen readers."""
    sentences = []
    for label, points in (
        (line.label, line.points),
        (f"{line.label}, test questions,", line.test_points),
    ):
        if points:
            ends = [
                f"{write_value(value, form)} at {along.describe(position)}"
                for position, value in (points[0], points[-1])
            ]
            sentences.append(f"{label} from {' to '.join(ends)}")
    return "; ".join(sentences)
