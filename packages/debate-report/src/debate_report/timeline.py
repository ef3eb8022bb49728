"""What charts share: axes, phases side by side, panels, and the page's templates."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Literal

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined, Undefined
from markupsafe import Markup

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


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart.

    Attributes:
        title: Its title.
        note: What its vertical axis is, with its unit.
        form: How values are written.
        lines: Patterns of measures, each with the label of its line; `{round}` counts from 1.
        why: What the chart says and how to read it.
    """

    title: str
    note: str
    form: Form
    lines: tuple[tuple[str, str], ...]
    why: str = ""

    @classmethod
    def of(cls, title: str, note: str, form: Form, named: Iterable[tuple[str, str]]) -> "Panel":
        """Return a panel of measures by their exact names; labels are taken as they are."""
        lines = tuple((re.escape(name), label.replace("{", "{{").replace("}", "}}"))
                      for name, label in named)  # fmt: skip
        return cls(title, note, form, lines)

    def names(self, known: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield the measures that it draws with the labels of their lines.

        Of measures with one label the first is drawn.
        """
        in_order = sorted(known, key=lambda name: (len(name), name))
        found = [
            (name, label.format(**_said(match)))
            for pattern, label in self.lines
            for name in in_order
            if (match := re.fullmatch(pattern, name))
        ]
        by_label = {label: name for name, label in reversed(found)}
        yield from ((by_label[label], label) for label in dict.fromkeys(x for _, x in found))


def _said(match: re.Match[str]) -> Mapping[str, str]:
    found = {key: value or "" for key, value in match.groupdict().items()}
    return found | ({"round": str(int(found["round"]) + 1)} if "round" in found else {})


MAJORITY = (
    "A majority may stand below a single answer: where most agents are wrong more often than "
    "right, or agree because they copy each other, a vote makes it worse."
)


def _panels() -> tuple[tuple[str, tuple[Panel, ...]], ...]:
    text = Path(__file__).with_name("panels.yaml").read_text(encoding="utf-8")
    return tuple(
        (
            group["heading"],
            tuple(
                Panel(
                    title=one["title"],
                    note=one["note"],
                    form=one["form"],
                    lines=tuple(one["lines"].items()),
                    why=one["why"].replace("{majority}", MAJORITY),
                )
                for one in group["panels"]
            ),
        )
        for group in yaml.safe_load(text)
    )


PANELS = _panels()
"""Groups of charts: a heading and its panels."""


def meaning(name: str) -> str:
    """Return what charts say of a measure, such as `eval/majority/accuracy`; else nothing."""
    panels = (panel for _, group in PANELS for panel in group)
    found = (one.why for one in panels if any(re.fullmatch(line, name) for line, _ in one.lines))
    return next(found, "")


# Characters that HTML forbids or that would let a text reorder its surroundings.
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")


def render(template: str, **values: object) -> Markup:
    """Return a filled template of this package; what is `Markup` already is not escaped again.

    Raises:
        jinja2.UndefinedError: The template names a value that it was not given.
        TypeError: A value to be written is neither text nor a number.
    """
    return Markup(_environment().get_template(template).render(values))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("debate_report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["count"] = "{:,}".format
    return environment


def _clean(value: object) -> str | int:
    """Return a value as a template may write it, before it is escaped.

    Jinja2 calls this with every value that a template writes. `{{ a if b }}` is an undefined value
    that is written as nothing; any other that is undefined raises here.
    """
    if isinstance(value, Markup):
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    if not isinstance(value, str | int | Undefined):
        raise TypeError(f"a report shows text and numbers, found {value}")
    text = str(value).replace("\r\n", "\n")
    text = _BIDI.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)
    return _FORBIDDEN.sub("\ufffd", text)
