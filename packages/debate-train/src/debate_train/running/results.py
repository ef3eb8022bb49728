"""The end of a run: the table from before to after, kept and printed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from debate_rewards.metrics.paired import Paired
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
    changes: Mapping[str, Paired] | None = None,
) -> dict[str, float | str]:
    """Write results.json; return what a tracked run is summarised by.

    Args:
        directory: Of the run.
        before: Measures on the test split.
        after: The same at the end.
        state: Of the run.
        setup: What they were measured with.
        changes: Of figures on the same questions, as far as they are known.
    """
    rows = _rows(before, after, setup, changes or {})
    directory.write_results(
        {
            "summary": in_words(rows),
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
    return {"results/summary": in_words(rows)} | _flat(rows)


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
    changes: Mapping[str, Paired],
) -> list[dict[str, Any]]:
    return [
        {"measure": shown, "name": name, "before": before[name], "after": after[name]}
        | ({"change": asdict(changes[name])} if name in changes else {})
        for name, shown in setup.figures().items()
        if shown and name in before and name in after
    ]


def print_results(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    seconds: Mapping[str, float],
    setup: Setup,
    changes: Mapping[str, Paired] | None = None,
) -> None:
    """Print the table from before to after, how it was measured, and how long each part took."""
    several = any("run_deviation" in measure for measure in after.values())
    beside = " ± deviation between runs" if several else ""
    table = Table(title=f"test split, mean [95 % interval over questions]{beside}")
    table.add_column("measure")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    table.add_column("change, paired", justify="right")
    rows = _rows(before, after, setup, changes or {})
    for row in rows:
        change = f"{row['after']['mean'] - row['before']['mean']:+.3f}"
        if paired := row.get("change"):
            change = f"{paired['difference']:+.3f} [{paired['low']:+.3f}, {paired['high']:+.3f}]"
        table.add_row(row["measure"], _shown(row["before"]), _shown(row["after"]), change)
    console = Console()
    console.print(table)
    if said := in_words(rows):
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


def _shown(measure: Mapping[str, float]) -> str:
    text = f"{measure['mean']:.3f} [{measure['low']:.3f}, {measure['high']:.3f}]"
    deviation = measure.get("run_deviation")
    return text if deviation is None else f"{text}\n± {deviation:.3f}"
