"""The end of a run: the table from before to after, kept and printed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from debate_train.evaluation.measuring import Measures
from debate_train.evaluation.settings import Setup
from debate_train.health.watch import alarms_of
from debate_train.playing.phase_start import MODE
from debate_train.recorded.evaluations import in_words
from debate_train.run_files.run_directory import RunDirectory


def measures_json(measures: Measures) -> dict[str, dict[str, float]]:
    """Return measures as JSON holds them."""
    return {
        name: {key: value for key, value in asdict(measure).items() if value is not None}
        for name, measure in measures.found.items()
    }


def write_results(
    directory: RunDirectory,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    state: Mapping[str, Any],
    setup: Setup,
    changes: Mapping[str, Mapping[str, Any] | None] | None = None,
) -> dict[str, float | str]:
    """Write results.json; return what a tracked run is summarised by.

    Args:
        directory: Of the run.
        before: Measures on the test split.
        after: The same at the end.
        state: Of the run.
        setup: What they were measured with.
        changes: Of figures on the same questions, as far as they are known (`changes_of`).
    """
    rows = _rows(before, after, setup, changes or {})
    directory.write_results(
        {
            "summary": in_words(rows, setup.headline),
            "headline": list(setup.headline),
            "table": rows,
            "measured": setup.described(),
            "before": before,
            "after": after,
            "exit_criteria": state["exit_criteria"],
            "kept": state["kept"],
            "held_out": state["held_out"],
            "health": alarms_of(directory.metrics()),
            "steps": state["step"],
            "seconds": state["seconds"],
        }
    )
    return {"results/summary": in_words(rows, setup.headline)} | _flat(rows)


def _flat(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return each measure before and after, and its change, each with the ends of its interval."""
    found = {}
    for row in rows:
        where = f"results/{row['name'].removeprefix('eval/')}"
        for when in ("before", "after"):
            found[f"{where}/{when}"] = row[when]["mean"]
            found |= {f"{where}/{when}_{end}": row[when][end] for end in ("low", "high")}
        paired = row.get("change")
        if paired is None:
            found[f"{where}/change"] = row["after"]["mean"] - row["before"]["mean"]
        else:  # Of the same questions, as its interval.
            found[f"{where}/change"] = paired["difference"]
            found |= {f"{where}/change_{end}": paired[end] for end in ("low", "high")}
    return found


def _rows(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    setup: Setup,
    changes: Mapping[str, Mapping[str, Any] | None],
) -> list[dict[str, Any]]:
    """Return the rows of the table; both ends are of the same questions where these are known.

    A figure without a question that has it at both ends has no row.
    """
    return [
        {"measure": shown, "name": name, "before": before[name], "after": after[name]}
        | dict(changes.get(name) or {})
        for name, shown in setup.listed().items()
        if name in before and name in after and changes.get(name, {}) is not None
    ]


def print_results(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    seconds: Mapping[str, float],
    setup: Setup,
    changes: Mapping[str, Mapping[str, Any] | None] | None = None,
) -> None:
    """Print the table from before to after, how it was measured, and how long each part took."""
    table = Table(title="test split, the same questions before and after", box=SIMPLE_HEAD)
    table.add_column("measure")
    for column in ("questions", "before", "after", "change [95 %]"):
        table.add_column(column, justify="right", no_wrap=True)
    rows = _rows(before, after, setup, changes or {})
    for row in rows:
        change = _signed(row["after"]["mean"] - row["before"]["mean"])
        if paired := row.get("change"):
            values = [_signed(paired[key]) for key in ("difference", "low", "high")]
            change = f"{values[0]} [{values[1]}, {values[2]}]"
        ends = [f"{row[when]['mean']:.3f}" for when in ("before", "after")]
        table.add_row(row["measure"], f"{row['after']['questions']}", *ends, change)
    console = Console()
    console.print(table)
    if said := in_words(rows, setup.headline):
        console.print(said, highlight=False)
    if line := _beside_start(after):
        console.print(line, highlight=False)
    console.print(f"measured: {setup.described()}", highlight=False)
    parts = ", ".join(f"{name} {taken:.0f} s" for name, taken in seconds.items())
    console.print(f"time: {parts}", highlight=False)


def _beside_start(after: Mapping[str, Any]) -> str:
    """Return how the policy does among opponents with the weights that its phase began with."""
    own, opponents, votes = (
        after.get(f"eval/{MODE}/{figure}")
        for figure in ("learned/accuracy", "opponent/accuracy", "learned/vote_win_rate")
    )
    if own is None or opponents is None:
        return ""
    said = f"among its start: accuracy {_shown(own)}, of the start {_shown(opponents)}"
    return said + (f", votes won {_shown(votes)}" if votes else "")


def _signed(change: float) -> str:
    return f"{round(change, 3) + 0.0:+.3f}"  # No -0.000.


def _shown(measure: Mapping[str, float]) -> str:
    return f"{measure['mean']:.3f} [{measure['low']:.3f}, {measure['high']:.3f}]"
