"""The plot of a study: changes of each arm as dots with intervals, curves by step and by level."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from debate_train.report.timeline.axes import Axis, tick_text, ticks

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")
WIDTH, LEFT, RIGHT = 760, 250, 740
ROW, HEAD, FOOT, CURVES = 26, 34, 34, 240
_MARKS = 5


@dataclass(frozen=True, slots=True)
class Dots:
    """How a measure changed: of each arm the change of every seed, and the interval of the mean."""

    title: str
    arms: Mapping[str, tuple[Sequence[float], tuple[float, float] | None]]

    @property
    def height(self) -> int:
        """Pixels of the panel."""
        return HEAD + ROW * len(self.arms) + FOOT

    def draw(self, top: int) -> list[str]:
        """Return what stands at `top`: a row for each arm, 0 as a line."""
        ends = [0.0]
        for values, interval in self.arms.values():
            ends += [*values, *(interval or ())]
        axis = Axis(*_roomy(ends), LEFT, RIGHT)
        bottom = top + self.height - FOOT
        drawn = [_text(10, top + 20, self.title, weight="bold")]
        marks = ticks(axis.low, axis.high, _MARKS)
        for mark in marks:
            x, colour = axis.at(mark), "#888888" if mark == 0 else "#dddddd"
            drawn.append(f'<path d="M{x} {top + HEAD}V{bottom}" stroke="{colour}"/>')
            drawn.append(_text(x, bottom + 16, tick_text(mark, marks, "number"), anchor="middle"))
        for place, (arm, (values, interval)) in enumerate(self.arms.items()):
            y, colour = top + HEAD + ROW * (place + 0.5), COLOURS[place % len(COLOURS)]
            drawn.append(_text(LEFT - 12, y + 4, arm, anchor="end"))
            if interval is not None:
                low, high = map(axis.at, interval)
                line = f'<path d="M{low} {y + 6}H{high}" stroke="{colour}" stroke-width="3"/>'
                drawn.append(line)
            for value in values:
                dot = f'<circle cx="{axis.at(value)}" cy="{y - 3}" r="4" fill="{colour}"'
                drawn.append(f'{dot} fill-opacity=".7"/>')
        return drawn


@dataclass(frozen=True, slots=True)
class Curves:
    """A measure by step: of each arm a line for every seed, each of points (step, value)."""

    title: str
    arms: Mapping[str, Sequence[Sequence[Sequence[float]]]]

    @property
    def height(self) -> int:
        """Pixels of the panel."""
        return HEAD + max(CURVES, 18 * len(self.arms)) + FOOT

    def draw(self, top: int) -> list[str]:
        """Return what stands at `top`: the names of the arms, and their lines."""
        points = [point for lines in self.arms.values() for line in lines for point in line]
        across = Axis(0.0, max([step for step, _ in points], default=1.0), LEFT, RIGHT)
        bottom = top + self.height - FOOT
        up = Axis(*_roomy([value for _, value in points] or [0.0]), bottom, top + HEAD)
        drawn = _heights(self.title, top, up)
        steps = ticks(0.0, across.high, _MARKS, whole=True)
        for step in steps:
            label = tick_text(step, steps, "count")
            drawn.append(_text(across.at(step), bottom + 16, label, anchor="middle"))
        for place, (arm, lines) in enumerate(self.arms.items()):
            colour = COLOURS[place % len(COLOURS)]
            drawn.append(_text(10, top + HEAD + 18 * place + 12, arm, colour=colour))
            for line in lines:
                path = " ".join(f"{across.at(step)},{up.at(value)}" for step, value in line)
                drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
        return drawn


@dataclass(frozen=True, slots=True)
class ByLevel:
    """Means with intervals by level, a line for each name.

    Each point is where it stands, its mean and the ends of its interval. With `names` of levels
    these are equally far from each other, and a point stands at the number of its level.
    """

    title: str
    across: str
    lines: Mapping[str, Sequence[tuple[float, float, tuple[float, float] | None]]]
    names: Sequence[str] = ()

    @property
    def height(self) -> int:
        """Pixels of the panel."""
        return HEAD + max(CURVES, 18 * len(self.lines)) + 2 * FOOT

    def draw(self, top: int) -> list[str]:
        """Return what stands at `top`: the names of the lines, 0 as a line, points and lines."""
        points = [point for line in self.lines.values() for point in line]
        across = Axis(*_roomy([place for place, *_ in points] or [0.0]), LEFT, RIGHT)
        ends = [end for _, mean, interval in points for end in (mean, *(interval or ()))]
        bottom = top + self.height - 2 * FOOT
        up = Axis(*_roomy([0.0, *ends]), bottom, top + HEAD)
        drawn = _heights(self.title, top, up)
        levels = [*range(len(self.names))] or ticks(across.low, across.high, _MARKS)
        for level in levels:
            label = self.names[int(level)] if self.names else tick_text(level, levels, "number")
            drawn.append(_text(across.at(level), bottom + 16, label, anchor="middle"))
        drawn.append(_text((LEFT + RIGHT) / 2, bottom + 38, self.across, anchor="middle"))
        for place, (name, line) in enumerate(self.lines.items()):
            colour = COLOURS[place % len(COLOURS)]
            drawn.append(_text(10, top + HEAD + 18 * place + 12, name, colour=colour))
            # Lines stand beside each other by a few pixels, or their intervals would hide.
            shifted = 4 * (place - (len(self.lines) - 1) / 2)
            spots = [(across.at(where) + shifted, up.at(mean)) for where, mean, _ in line]
            path = " ".join(f"{x},{y}" for x, y in spots)
            drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
            for (x, y), (_, _, interval) in zip(spots, line, strict=True):
                drawn.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>')
                if interval is not None:
                    low, high = map(up.at, interval)
                    drawn.append(f'<path d="M{x} {low}V{high}" stroke="{colour}"/>')
        return drawn


Panel = Dots | Curves | ByLevel


def plot(panels: Sequence[Panel]) -> str:
    """Return an SVG image of panels, one below the other."""
    drawn, top = list[str](), 0
    for panel in panels:
        drawn += panel.draw(top)
        top += panel.height
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}">'
    paper = f'<rect width="{WIDTH}" height="{top}" fill="white"/>'
    return "\n".join([head, paper, *drawn, "</svg>"]) + "\n"


def _heights(title: str, top: int, up: Axis) -> list[str]:
    """Return a title, and what stands at the left: numbers with lines, that of 0 a darker one."""
    drawn = [_text(10, top + 20, title, weight="bold")]
    marks = ticks(up.low, up.high, _MARKS)
    for mark in marks:
        y, colour = up.at(mark), "#888888" if mark == 0 else "#dddddd"
        drawn.append(f'<path d="M{LEFT} {y}H{RIGHT}" stroke="{colour}"/>')
        drawn.append(_text(LEFT - 8, y + 4, tick_text(mark, marks, "number"), anchor="end"))
    return drawn


def _roomy(values: Sequence[float]) -> tuple[float, float]:
    """Return ends that leave a little room around values."""
    low, high = min(values), max(values)
    room = 0.05 * ((high - low) or 1.0)
    return low - room, high + room


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    colour: str = "#222222",
    weight: str = "normal",
) -> str:
    style = f'font-size="13" font-family="sans-serif" font-weight="{weight}"'
    place = f'x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}"'
    return f"<text {place} {style}>{escape(text)}</text>"
