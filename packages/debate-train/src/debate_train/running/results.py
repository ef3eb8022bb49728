"""The results of a run: measures on the test split before and after it, as table and in words."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from debate_rewards.estimates import bootstrap_interval, paired, range_of
from debate_train.monitoring.health import alarms_of

if TYPE_CHECKING:
    from debate_train.checkpoints import RunState
    from debate_train.checkpoints.run_directory import RunDirectory
    from debate_train.evaluation.settings import Setup

NUM_PRINTED = 3
"""Rows that a run prints at its end."""
_VALUES = TypeAdapter(dict[str, dict[str, float]])


def changes_of(
    directory: "RunDirectory", figures: Sequence[str]
) -> dict[str, dict[str, Any] | None]:
    """Compare each figure before and after a run on the questions with a value at both ends.

    A judge without a right and a wrong answer together gives a question no value. Where such
    questions exist, `before` and `after` of the compared questions accompany `change`. A figure
    without compared questions is `None`. Ratios of sums have no value per question and are absent.
    """
    before = _last_values(directory, "before")
    after = _last_values(directory, "after")
    changes: dict[str, dict[str, Any] | None] = {}
    for figure in before.keys() & after.keys() & set(figures):
        limits = range_of(figure)
        # Pairs cancel the difficulty of questions, which is most of the spread.
        compared_questions = before[figure].keys() & after[figure].keys()
        if not compared_questions:
            changes[figure] = None
            continue
        change = paired(before[figure], after[figure], within=limits)
        changed: dict[str, Any] = {"change": asdict(change)}
        for when, values in (("before", before[figure]), ("after", after[figure])):
            if len(values) == len(compared_questions):
                continue
            compared_values = [values[q] for q in values if q in compared_questions]
            mean, low, high = bootstrap_interval(compared_values, within=limits)
            changed[when] = {
                "mean": mean,
                "low": low,
                "high": high,
                "questions": len(compared_questions),
            }
        changes[figure] = changed
    return changes


def _last_values(directory: "RunDirectory", name: str) -> dict[str, dict[str, float]]:
    """Read the values of the last evaluation of a name, by figure and question."""
    path = max(directory.evaluations_path.glob(f"{name}-??????.json"), default=None)
    if path is None:
        return {}
    try:
        return _VALUES.validate_python(json.loads(path.read_bytes())["values"])
    except (OSError, ValueError, KeyError, TypeError):
        # The results do without changes rather than fail at the end of a run.
        return {}


def results_table(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    setup: "Setup",
    changes: Mapping[str, Mapping[str, Any] | None],
) -> list[dict[str, Any]]:
    """Build the rows of the table, over the same questions at both ends where these are recorded.

    A figure without a question with a value at both ends has no row.
    """
    rows = []
    for name, measure in setup.listed().items():
        if name not in before or name not in after:
            continue
        change = changes.get(name, {})
        if change is None:
            continue
        row = {"measure": measure, "name": name, "before": before[name], "after": after[name]}
        rows.append(row | dict(change))
    return rows


def in_words(rows: Sequence[Mapping[str, Any]], headline: Sequence[str]) -> str:
    """Describe the results in a few sentences; "" where no row has a change.

    Args:
        rows: Of the table of results, each with `measure`, `name` and sometimes `change`.
        headline: Names of the measures to describe in full; by default the first row.
    """
    # Only shares can be written as points; lengths and effective numbers have no range.
    changed_rows = [row for row in rows if row.get("change") and range_of(row["name"])]
    main_rows = [row for row in changed_rows if row["name"] in headline] or changed_rows[:1]
    sentences = [_describe_change(row["measure"], row["change"]) for row in main_rows]
    # Further figures are named only if they changed: a list of all would hide the main ones.
    others = []
    for row in changed_rows:
        change = row["change"]
        is_beyond_chance = change["low"] > 0 or change["high"] < 0
        if is_beyond_chance and row not in main_rows:
            others.append(f"{row['measure']} ({100 * change['difference']:+.1f} points)")
    if others:
        sentences.append(f"Also beyond chance: {', '.join(others)}.")
    return " ".join(sentences)


def _describe_change(measure: str, change: Mapping[str, Any]) -> str:
    low = change["low"]
    high = change["high"]
    if low > 0:
        outcome = "rose"
    elif high < 0:
        outcome = "fell"
    else:
        outcome = "did not change beyond chance"
    return (
        f"{measure[:1].upper()}{measure[1:]} {outcome}: "
        f"{100 * change['before']:.1f} % to {100 * change['after']:.1f} %, "
        f"{100 * change['difference']:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}], on the "
        f"same {change['questions']} questions ({change['won']} up, {change['lost']} down)."
    )


def write_results(
    directory: "RunDirectory",
    rows: Sequence[Mapping[str, Any]],
    after: Mapping[str, Any],
    state: "RunState",
    setup: "Setup",
) -> dict[str, float | str]:
    """Write results.json, and build the summary for trackers.

    Args:
        directory: Of the run.
        rows: Of the table, see `results_table`.
        after: Measures on the test split at the end.
        state: Of the run.
        setup: Of the evaluation.
    """
    summary = in_words(rows, setup.headline)
    directory.write_results(
        {
            "summary": summary,
            "headline": list(setup.headline),
            "table": rows,
            "measured": setup.described(),
            "before": state.before,
            "after": after,
            "exit_criteria": state.exit_criteria,
            "kept": state.kept,
            "held_out": state.held_out,
            "health": alarms_of(directory.metrics.rows()),
            "steps": state.step,
            "seconds": state.seconds,
        }
    )
    return {"results/summary": summary} | _flatten(rows)


def _flatten(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Name each measure before and after and the change, with the ends of the intervals."""
    values = {}
    for row in rows:
        prefix = f"results/{row['name'].removeprefix('eval/')}"
        for when in ("before", "after"):
            values[f"{prefix}/{when}"] = row[when]["mean"]
            values[f"{prefix}/{when}_low"] = row[when]["low"]
            values[f"{prefix}/{when}_high"] = row[when]["high"]
        change = row.get("change")
        if change is None:
            values[f"{prefix}/change"] = row["after"]["mean"] - row["before"]["mean"]
        else:  # The interval is over paired questions, so the difference is, too.
            values[f"{prefix}/change"] = change["difference"]
            values[f"{prefix}/change_low"] = change["low"]
            values[f"{prefix}/change_high"] = change["high"]
    return values


def print_results(
    rows: Sequence[Mapping[str, Any]], after: Mapping[str, Any], setup: "Setup"
) -> None:
    """Print the first figures before and after the run, and a sentence about all of them.

    The report and results.json have the others, and how they were measured.
    """
    console = Console()
    if rows:
        console.print(_rich_table(rows[:NUM_PRINTED]))
    else:
        measured = [(name, text) for name, text in setup.listed().items() if name in after]
        for name, measure in measured[:NUM_PRINTED]:
            console.print(f"{measure}: {_format_estimate(after[name])}", highlight=False)
    outcome = outcome_sentence(rows)
    if outcome:
        console.print(outcome, highlight=False)


def outcome_sentence(rows: Sequence[Mapping[str, Any]]) -> str:
    """Name the measures with a rise or fall beyond chance; "" where no row has a change."""
    risen = []
    fallen = []
    compared_rows = [row for row in rows if row.get("change") and range_of(row["name"])]
    for row in compared_rows:
        if row["change"]["low"] > 0:
            risen.append(row["measure"])
        elif row["change"]["high"] < 0:
            fallen.append(row["measure"])
    outcomes = []
    if risen:
        outcomes.append(f"{', '.join(risen)} rose")
    if fallen:
        outcomes.append(f"{', '.join(fallen)} fell")
    if outcomes:
        return f"Beyond chance: {'; '.join(outcomes)}."
    return "No measure changed beyond chance." if compared_rows else ""


def _rich_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="test split, the same questions before and after", box=SIMPLE_HEAD)
    table.add_column("measure")
    for column in ("questions", "before", "after", "change [95 %]"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        before = row["before"]["mean"]
        after = row["after"]["mean"]
        # "z": no "-0.000" in the table.
        change_text = f"{after - before:+z.3f}"
        change = row.get("change")
        if change:
            interval = f"[{change['low']:+z.3f}, {change['high']:+z.3f}]"
            change_text = f"{change['difference']:+z.3f} {interval}"
        num_questions = row["after"]["questions"]
        table.add_row(
            row["measure"], f"{num_questions}", f"{before:.3f}", f"{after:.3f}", change_text
        )
    return table


def _format_estimate(measure: Mapping[str, float]) -> str:
    return f"{measure['mean']:.3f} [{measure['low']:.3f}, {measure['high']:.3f}]"
