"""The plot of a study: changes of each arm as dots with intervals, and curves by step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
        drawn = [_text(10, top + 20, self.title, weight="bold")]
        marks = ticks(up.low, up.high, _MARKS)
        for mark in marks:
            drawn.append(f'<path d="M{LEFT} {up.at(mark)}H{RIGHT}" stroke="#dddddd"/>')
            label = tick_text(mark, marks, "number")
            drawn.append(_text(LEFT - 8, up.at(mark) + 4, label, anchor="end"))
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


def plot(panels: Sequence[Dots | Curves]) -> str:
    """Return an SVG image of panels, one below the other."""
    drawn, top = list[str](), 0
    for panel in panels:
        drawn += panel.draw(top)
        top += panel.height
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}">'
    paper = f'<rect width="{WIDTH}" height="{top}" fill="white"/>'
    return "\n".join([head, paper, *drawn, "</svg>"]) + "\n"


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
    return f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}" {style}>{text}</text>'
