"""Runs as a report reads them, made of rows of metrics."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from debate_report.curves import curves
from debate_report.run_files import RunFiles


def run_of(
    rows: Sequence[Mapping[str, object]],
    recipe: Mapping[str, object] | None = None,
    results: Mapping[str, object] | None = None,
    name: str = "run",
) -> RunFiles:
    """Return a run that holds these rows, of this recipe, with these results."""
    return RunFiles(
        name=name,
        rows=tuple(dict(row) for row in rows),
        recipe=yaml.safe_dump(dict(recipe or {})),
        results=dict(results) if results is not None else None,
        environment={},
        transcripts=(),
        tokens=Path("tokens"),
    )


def drawn(rows: Sequence[Mapping[str, object]]) -> str:
    """Return the learning curves of rows."""
    return curves(run_of(rows))
