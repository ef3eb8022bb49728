"""Which measures are drawn together, and what charts say of them: `panels.yaml` as values."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from debate_report.number_texts import Form

MAJORITY_WARNING = (
    "A majority may stand below a single answer: where most agents are wrong more often than "
    "right, or agree because they copy each other, a vote makes it worse."
)


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart.

    Attributes:
        title: The title.
        note: The vertical axis with the unit.
        form: How values are written.
        lines: Patterns of measures, each with the label of a line; `{round}` counts from 1.
        why: What the chart says and how to read it.
    """

    title: str
    note: str
    form: Form
    lines: tuple[tuple[str, str], ...]
    why: str = ""

    @classmethod
    def of(
        cls, title: str, note: str, form: Form, labels_by_name: Iterable[tuple[str, str]]
    ) -> "Panel":
        """Build a panel of measures by their exact names; labels are taken literally."""
        lines = []
        for name, label in labels_by_name:
            literal_label = label.replace("{", "{{").replace("}", "}}")
            lines.append((re.escape(name), literal_label))
        return cls(title, note, form, tuple(lines))

    def names(self, measures: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield the measures to draw, each with the label of a line.

        Of measures with equal labels the first is drawn.
        """
        # By length first, so that round 10 comes after round 2.
        in_order = sorted(measures, key=lambda name: (len(name), name))
        name_of_label: dict[str, str] = {}
        for pattern, label_pattern in self.lines:
            for name in in_order:
                match = re.fullmatch(pattern, name)
                if match is not None:
                    label = label_pattern.format(**_label_values(match))
                    name_of_label.setdefault(label, name)
        for label, name in name_of_label.items():
            yield name, label


def _label_values(match: re.Match[str]) -> Mapping[str, str]:
    values = {key: value or "" for key, value in match.groupdict().items()}
    if "round" in values:
        values["round"] = str(int(values["round"]) + 1)
    return values


def _read_panels() -> tuple[tuple[str, tuple[Panel, ...]], ...]:
    text = Path(__file__).with_name("panels.yaml").read_text(encoding="utf-8")
    groups = []
    for group in yaml.safe_load(text):
        panels = []
        for settings in group["panels"]:
            panel = Panel(
                title=settings["title"],
                note=settings["note"],
                form=settings["form"],
                lines=tuple(settings["lines"].items()),
                why=settings["why"].replace("{majority}", MAJORITY_WARNING),
            )
            panels.append(panel)
        groups.append((group["heading"], tuple(panels)))
    return tuple(groups)


# Groups of charts: a heading and its panels. Below the definitions, which reading the file needs.
PANELS = _read_panels()
