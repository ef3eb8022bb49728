"""Several runs, or seeds of one recipe, side by side on one page."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev

import yaml
from markupsafe import Markup

from debate_train.report.charts import Series, line_chart, write_value
from debate_train.report.curves import PANELS, series_of
from debate_train.report.render import render
from debate_train.report.run_files import RunFiles, finite

MAX_RUNS = 6
"""Runs that are drawn; tables have all."""
_SAID = ("model", "data", "reward", "loss")


def setting_of(run: RunFiles) -> dict[str, str]:
    """Return what a run trained: type or name of its parts, and its seed."""
    try:
        recipe = yaml.safe_load(run.recipe)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    found: dict[str, str] = {}
    for key in _SAID if isinstance(recipe, Mapping) else ():
        part = recipe.get(key)
        if isinstance(part, Mapping) and (said := part.get("name") or part.get("type")):
            found[key] = str(said)[:100]
    if isinstance(recipe, Mapping) and "seed" in recipe:
        found["seed"] = str(recipe["seed"])[:20]
    return found


def comparison(runs: Sequence[RunFiles]) -> Markup:
    """Return a table of the runs, one of their results, and curves with a line for each run."""
    labels = [run.name for run in runs]
    settings = [setting_of(run) for run in runs]
    keys = list(dict.fromkeys(key for found in settings for key in found))
    about = [
        [label, *(found.get(key, "–") for key in keys), _summary(run)]
        for label, found, run in zip(labels, settings, runs, strict=True)
    ]
    return render(
        "comparison.html",
        head=["run", *keys, "what happened"],
        about=about,
        columns=["measure", *labels, "mean ± deviation"],
        results=list(_results(runs)),
        charts=list(_charts(runs, labels)),
        left_out=max(0, len(runs) - MAX_RUNS),
    )


def _summary(run: RunFiles) -> str:
    return str((run.results or {}).get("summary") or "–")[:500]


def _rows(run: RunFiles) -> dict[str, Mapping[str, object]]:
    table = (run.results or {}).get("table")
    rows = [row for row in table if isinstance(row, Mapping)] if isinstance(table, list) else []
    return {str(row.get("measure", ""))[:100]: row for row in rows}


def _results(runs: Sequence[RunFiles]) -> Iterator[list[str]]:
    tables = [_rows(run) for run in runs]
    for measure in dict.fromkeys(name for table in tables for name in table):
        found = [table.get(measure, {}) for table in tables]
        changes = [change for row in found if (change := _change(row)) is not None]
        spread = "–"
        if changes:
            spread = f"{fmean(changes):+.3f}"
            spread += f" ± {stdev(changes):.3f}" if len(changes) > 1 else ""
        yield [measure, *map(_cell, found), spread]


def _mean(value: object) -> float | None:
    return finite(value.get("mean") if isinstance(value, Mapping) else value)


def _change(row: Mapping[str, object]) -> float | None:
    before, after = _mean(row.get("before")), _mean(row.get("after"))
    return None if before is None or after is None else after - before


def _cell(row: Mapping[str, object]) -> str:
    """Return the end of a run, its change, and the paired interval of that where it is known."""
    change, after = _change(row), _mean(row.get("after"))
    if change is None or after is None:
        return "–"
    paired = row.get("change")
    beside = ""
    if isinstance(paired, Mapping):
        low, high = finite(paired.get("low")), finite(paired.get("high"))
        beside = "" if low is None or high is None else f" [{low:+.3f}, {high:+.3f}]"
    return f"{write_value(after, 'number')} ({change:+.3f}{beside})"


def _charts(runs: Sequence[RunFiles], labels: Sequence[str]) -> Iterator[Markup]:
    known = [series_of(run.rows) for run in runs[:MAX_RUNS]]
    for panel in PANELS:
        for name, label in panel.lines:
            lines = [
                Series(run, tuple(sorted(series[name].items())))
                for run, series in zip(labels, known, strict=False)
                if len(series.get(name, {})) > 1
            ]
            if lines:
                several = f"{panel.title}: {label}" if len(panel.lines) > 1 else panel.title
                yield line_chart(several, panel.note, lines, panel.form)
