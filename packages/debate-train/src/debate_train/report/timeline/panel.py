"""A chart: what it draws, and what it says."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from debate_train.report.timeline.axes import Form


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
