"""Which measures are drawn together, under which heading: read from `panels.yaml`."""

from pathlib import Path

import yaml

from debate_train.report.timeline.panel import Panel

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
