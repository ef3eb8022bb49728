"""Axes of charts: values to pixels, round ticks, and phases side by side on an axis."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

# Between two phases, of the whole width, so that their lines do not look joined.
LARGEST_GAP = 0.012
# All gaps together take no more of the width than this, however many phases there are.
ALL_GAPS = 0.2
# The narrowest phase, of an equal share of the width.
NARROWEST_PHASE = 0.75
ROUND_FACTORS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values mapped to a range of pixels."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Compute the pixel of a value."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


def ticks(low: float, high: float, about: int, *, whole: bool = False) -> list[float]:
    """List round values inside [low, high], `about` as many, or whole numbers alone."""
    exact_step = (high - low) / about
    power = 10.0 ** math.floor(math.log10(exact_step))
    # A thousandth less is accepted: a step that is round already may come out a little too large.
    step = next(power * factor for factor in ROUND_FACTORS if power * factor >= exact_step * 0.999)
    if whole:
        step = max(1.0, round(step))
    # Marks on the very ends must not be lost to rounding.
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A phase: the steps from `first` to `last` lie between the positions `start` and `end`."""

    name: str
    first: float
    last: float
    start: float
    end: float

    def at(self, step: float) -> float:
        """Compute the position of a step."""
        if self.last <= self.first:
            return (self.start + self.end) / 2
        return self.start + (self.end - self.start) * (step - self.first) / (self.last - self.first)

    def step(self, position: float) -> float:
        """Compute the step at a position."""
        if self.end <= self.start:
            return self.first
        share = (position - self.start) / (self.end - self.start)
        return self.first + share * (self.last - self.first)


@dataclass(frozen=True, slots=True)
class PhaseAxis:
    """All stretches of an axis, from left to right, and the name of their steps."""

    stretches: tuple[Stretch, ...]
    unit: str = "step"
    first_number: int = 1
    """The number of the first phase."""

    @property
    def ends(self) -> tuple[float, float]:
        """The first and the last position."""
        return self.stretches[0].start, self.stretches[-1].end

    def stretch_index(self, position: float) -> int:
        """Find the number of the stretch around a position, from 0."""
        boundaries = [(left.end + right.start) / 2 for left, right in pairwise(self.stretches)]
        return sum(position > boundary for boundary in boundaries)

    def describe(self, position: float) -> str:
        """Write a position as phase and step."""
        stretch = self.stretches[self.stretch_index(position)]
        phase = f"{stretch.name}, " if len(self.stretches) > 1 else ""
        return f"{phase}{self.unit} {stretch.step(position):,.0f}"


def plain_axis(positions: Sequence[float], unit: str) -> PhaseAxis:
    """Build an axis of a single stretch; positions are steps."""
    first = min(positions)
    last = max(positions)
    # A single step still needs a stretch of some width.
    if last <= first:
        last = first + 1
    stretch = Stretch(name="", first=first, last=last, start=first, end=last)
    return PhaseAxis((stretch,), unit)


def phase_axis(
    steps: Mapping[str, tuple[float, float]], unit: str = "step", first_number: int = 1
) -> PhaseAxis:
    """Build an axis of phases, each with a first and a last step.

    Widths go by the square root of the steps, so that a short phase after a long one can be read,
    and each is at least three quarters of an equal share.
    """
    num_phases = max(1, len(steps))
    roots = [math.sqrt(max(1.0, last - first)) for first, last in steps.values()]
    narrowest = NARROWEST_PHASE * sum(roots) / num_phases
    widths = [max(root, narrowest) for root in roots]
    total_width = sum(widths)
    gap = min(LARGEST_GAP, ALL_GAPS / num_phases)
    margin = gap / 2 if len(steps) > 1 else 0.0
    start = 0.0
    stretches = []
    for (name, (first, last)), width in zip(steps.items(), widths, strict=True):
        end = start + width / total_width
        stretches.append(
            Stretch(name=name[:60], first=first, last=last, start=start + margin, end=end - margin)
        )
        start = end
    return PhaseAxis(tuple(stretches), unit, first_number)
