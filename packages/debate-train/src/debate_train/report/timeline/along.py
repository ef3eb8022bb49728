"""The horizontal axis of charts: steps of one or more phases, side by side."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

LARGEST_GAP = 0.012
"""Between two phases, of the whole width, so that their lines do not look joined."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A phase: its steps from `first` to `last` lie between the positions `start` and `end`."""

    name: str
    first: float
    last: float
    start: float
    end: float

    def at(self, step: float) -> float:
        """Return the position of a step."""
        if self.last <= self.first:
            return (self.start + self.end) / 2
        return self.start + (self.end - self.start) * (step - self.first) / (self.last - self.first)

    def step(self, position: float) -> float:
        """Return the step at a position."""
        if self.end <= self.start:
            return self.first
        share = (position - self.start) / (self.end - self.start)
        return self.first + share * (self.last - self.first)


@dataclass(frozen=True, slots=True)
class Along:
    """All stretches of an axis, from left to right, and what their steps are called."""

    stretches: tuple[Stretch, ...]
    unit: str = "step"

    @property
    def ends(self) -> tuple[float, float]:
        """The first and the last position."""
        return self.stretches[0].start, self.stretches[-1].end

    @property
    def boundaries(self) -> list[float]:
        """Positions between two stretches."""
        return [(left.end + right.start) / 2 for left, right in pairwise(self.stretches)]

    def place(self, position: float) -> int:
        """Return the place of the stretch that a position lies in."""
        return sum(position > boundary for boundary in self.boundaries)

    def said(self, position: float) -> str:
        """Return a position in words."""
        stretch = self.stretches[self.place(position)]
        where = f"{stretch.name}, " if len(self.stretches) > 1 else ""
        return f"{where}{self.unit} {stretch.step(position):,.0f}"


def plain(positions: Sequence[float], unit: str) -> Along:
    """Return an axis of one stretch, whose positions are its steps."""
    first, last = min(positions), max(positions)
    last = last if last > first else first + 1
    return Along((Stretch("", first, last, first, last),), unit)


def phases(steps: Mapping[str, tuple[float, float]], unit: str = "step") -> Along:
    """Return an axis of phases, each with its first and last step.

    Widths go by the square root of the steps, so that a short phase after a long one can be read,
    and none is less than three quarters of an equal share.
    """
    gap = min(LARGEST_GAP, 0.2 / max(1, len(steps)))
    roots = [math.sqrt(max(1.0, last - first)) for first, last in steps.values()]
    least = 0.75 * sum(roots) / max(1, len(roots))
    widths = [max(root, least) for root in roots]
    whole, start, found = sum(widths), 0.0, list[Stretch]()
    for (name, (first, last)), width in zip(steps.items(), widths, strict=True):
        end = start + width / whole
        inner = gap / 2 if len(steps) > 1 else 0.0
        found.append(Stretch(name[:60], first, last, start + inner, end - inner))
        start = end
    return Along(tuple(found), unit)
