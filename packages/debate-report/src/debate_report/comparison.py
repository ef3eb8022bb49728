"""Several runs, or seeds of one recipe, side by side on one page."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev

from markupsafe import Markup

from debate_report.charts import Chart, Marks, Series, line_chart
from debate_report.curves import placed
from debate_report.run_files import RunFiles, Stage, finite, recipe_of, stages
from debate_report.timeline import PANELS, Along, meaning, phases, render, write_value

Interval = tuple[float, float, float]
MAX_ROWS, MAX_SHOWN = 500, 500
_ENDS = ("low", "high")


def results(found: Mapping[str, object] | None) -> Markup:
    """Return the table of `results.json`, then its other values folded below."""
    if found is None:
        return render("results.html", found=False, others=[])
    rows = list(_read(found.get("table")))
    values = [value for _, _, before, after, _ in rows for value in (*before, *after)]
    share = not values or (min(values) >= 0 and max(values) <= 1)
    others = {
        key: value
        for key, value in found.items()
        if key not in ("table", "sha256", "summary", "headline")
    }
    return render(
        "results.html",
        found=True,
        share=share,
        summary=str(found.get("summary") or "")[:MAX_SHOWN],
        rows=[
            {
                "measure": measure,
                "why": meaning(name),
                "cells": [_share_cell(before, share), _share_cell(after, share)],
                "change": _change(difference(change, after[0] - before[0]), share),
                "beside": _paired(change, share),
            }
            for measure, name, before, after, change in rows
        ],
        others=_listed(others),
    )


def _read(rows: object) -> Iterator[tuple[str, str, Interval, Interval, object]]:
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, Mapping):
            continue
        before, after = _interval_of_ends(row.get("before")), _interval_of_ends(row.get("after"))
        if before and after:
            label, name = (str(row.get(key, ""))[:MAX_SHOWN] for key in ("measure", "name"))
            yield label, name, before, after, row.get("change")


def _interval_of_ends(value: object) -> Interval | None:
    """Return (mean, low, high); a bare number or missing ends give an interval of no width."""
    mean = finite(value.get("mean") if isinstance(value, Mapping) else value)
    if mean is None:
        return None
    if not isinstance(value, Mapping):
        return mean, mean, mean
    low, high = (mean if end is None else end for end in map(finite, map(value.get, _ENDS)))
    return mean, low, high


def _share_cell(value: Interval, share: bool) -> tuple[str, str]:
    """Return a mean and its interval as text, empty when it has no width."""
    mean, low, high = value
    if share:
        interval = f"[{100 * low:.1f}, {100 * high:.1f}]"
    else:
        interval = f"[{write_value(low, 'number')}, {write_value(high, 'number')}]"
    return write_value(mean, "share" if share else "number"), interval if low < high else ""


def difference(change: object, otherwise: float) -> float:
    """Return a change on the same questions; `otherwise` where that is not known."""
    found = finite(change.get("difference")) if isinstance(change, Mapping) else None
    return otherwise if found is None else found


def _paired(change: object, share: bool) -> tuple[str, str]:
    """Return the interval of a change on the same questions, and how many of them changed."""
    if not isinstance(change, Mapping):
        return "", ""
    low, high, won, lost, of = (
        finite(change.get(key)) for key in ("low", "high", "won", "lost", "questions")
    )
    if low is None or high is None:
        return "", ""
    moved = "" if won is None or lost is None else f"{won:,.0f} up, {lost:,.0f} down"
    moved += f" of {of:,.0f}" if moved and of is not None else ""
    return f"[{_change(low, share)}, {_change(high, share)}]", moved


def _change(change: float, share: bool) -> str:
    text = f"{round(100 * change, 1) + 0.0:+.1f}" if share else f"{round(change, 3) + 0.0:+.3f}"
    return text.replace("-", "−")


def _listed(values: Mapping[str, object]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            rows += [(f"{key}: {name}", _shown(item)) for name, item in value.items()]
        else:
            rows.append((key, _shown(value)))
    return [(key[:MAX_SHOWN], shown[:MAX_SHOWN]) for key, shown in rows[:MAX_ROWS]]


def _shown(value: object) -> str:
    if isinstance(value, Mapping) and (interval := _interval_of_ends(value)):
        mean, low, high = interval
        return f"{mean:.4g} [{low:.4g}, {high:.4g}]"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_shown(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_shown(item) for item in value) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


MAX_RUNS = 6
"""Runs that are drawn; tables have all."""
MAX_PHASES = 20
MAX_KEYS = 24
FIRST_GROUPS = 2
"""Groups of curves that are open; the others are folded."""
_SAID = ("model", "data", "reward", "loss")


def setting_of(run: RunFiles) -> dict[str, str]:
    """Return what a run trained: type or name of its parts, and its seed."""
    recipe = recipe_of(run)
    found: dict[str, str] = {}
    for key in _SAID:
        part = recipe.get(key)
        if isinstance(part, Mapping) and (said := part.get("name") or part.get("type")):
            found[key] = str(said)[:100]
    if "seed" in recipe:
        found["seed"] = str(recipe["seed"])[:20]
    return found


def shared_setting(runs: Sequence[RunFiles]) -> list[tuple[str, str]]:
    """Return what all runs have in common, and how many they are."""
    settings = [setting_of(run) for run in runs]
    common = [(key, said) for key, said in settings[0].items()
              if all(found.get(key) == said for found in settings)]  # fmt: skip
    return [("runs", str(len(runs))), *common]


def comparison(runs: Sequence[RunFiles]) -> Markup:
    """Return a table of the runs, their results drawn together, and curves with a line for each."""
    labels = [run.name for run in runs]
    about, more = _differences(runs)
    groups = list(_groups(runs, labels))
    # Runs that differ in nothing but the seed can be averaged.
    one = not [row for row in _differences(runs)[0] if row[0] not in ("seed", "name")]
    return render(
        "comparison.html",
        head=["key of the recipe", *labels],
        about=about,
        more=more,
        summaries=[(run.name, said) for run in runs if (said := _summary(run))],
        labels=labels[:MAX_RUNS],
        columns=["measure", *labels, *(["mean ± deviation"] if one else ())],
        results=list(_results(runs, with_mean=one)),
        open_groups=groups[:FIRST_GROUPS],
        folded_groups=groups[FIRST_GROUPS:],
        left_out=max(0, len(runs) - MAX_RUNS),
    )


def _leaves(value: object, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted keys of a recipe with what stands there."""
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _leaves(part, f"{where}.{key}" if where else str(key))
    else:
        yield where, str(value)


def _differences(runs: Sequence[RunFiles]) -> tuple[list[list[str]], int]:
    """Return the keys in which recipes differ, a cell for each run; how many are left out."""
    recipes = [dict(_leaves(recipe_of(run))) for run in runs]
    keys = [key for key in dict.fromkeys(key for found in recipes for key in found)
            if len({found.get(key) for found in recipes}) > 1]  # fmt: skip
    keys.sort(key=lambda key: key.count("."))  # What stands at the top says most.
    rows = [[key[:80], *(found.get(key, "–")[:60] for found in recipes)] for key in keys]
    return rows[:MAX_KEYS], max(0, len(rows) - MAX_KEYS)


def _summary(run: RunFiles) -> str:
    return str((run.results or {}).get("summary") or "")[:500]


def _rows(run: RunFiles) -> dict[str, Mapping[str, object]]:
    table = (run.results or {}).get("table")
    rows = [row for row in table if isinstance(row, Mapping)] if isinstance(table, list) else []
    return {str(row.get("measure", ""))[:100]: row for row in rows}


def _results(runs: Sequence[RunFiles], *, with_mean: bool) -> Iterator[list[str]]:
    tables = [_rows(run) for run in runs]
    for measure in dict.fromkeys(name for table in tables for name in table):
        found = [table.get(measure, {}) for table in tables]
        changes = [one[0] for row in found if (one := _interval(row)) is not None]
        yield [measure, *map(_cell, found), *([_spread(changes)] if with_mean else ())]


def _spread(changes: Sequence[float]) -> str:
    if not changes:
        return "–"
    spread = f" ± {stdev(changes):.3f}" if len(changes) > 1 else ""
    return f"{round(fmean(changes), 3) + 0.0:+.3f}{spread}".replace("-", "−")


def _mean(value: object) -> float | None:
    return finite(value.get("mean") if isinstance(value, Mapping) else value)


def _interval(row: Mapping[str, object]) -> tuple[float, float, float] | None:
    """Return the change of a run on the same questions and its interval.

    Where they are not known: after minus before, and no width.
    """
    before, after = _mean(row.get("before")), _mean(row.get("after"))
    if before is None or after is None:
        return None
    paired = row.get("change")
    known = paired if isinstance(paired, Mapping) else {}
    low, high = (finite(known.get(key)) for key in ("low", "high"))
    change = difference(paired, after - before)
    return change, change if low is None else low, change if high is None else high


def _cell(row: Mapping[str, object]) -> str:
    """Return the end of a run, its change, and the paired interval of that where it is known."""
    found, after = _interval(row), _mean(row.get("after"))
    if found is None or after is None:
        return "–"
    change, low, high = found
    beside = f" [{low:+.3f}, {high:+.3f}]" if low < high else ""
    return f"{write_value(after, 'number')} ({change:+.3f}{beside})".replace("-", "−")


def _groups(runs: Sequence[RunFiles], labels: Sequence[str]) -> Iterator[dict[str, object]]:
    """Yield each heading with its charts: one a measure, with a line for each run.

    Phases of the runs begin at the same place, and steps are counted from there.
    """
    found = [stages(run) for run in runs[:MAX_RUNS]]
    names = list(dict.fromkeys(one.name for own in found for one in own))[:MAX_PHASES]
    lengths = {name: (1.0, max(_length(own, name) for own in found)) for name in names}
    if not lengths:
        return
    along = phases(lengths, "step")
    known = [_placed(own, along, names) for own in found]
    marks = Marks(outcomes=[("", "steps are counted from the start of the phase")] * len(names))
    for heading, panels in PANELS:
        charts: list[Markup] = []
        for panel in panels:
            every = dict.fromkeys(name for series in known for name in series)
            measures = list(panel.names(every))
            for name, label in measures:
                lines = [
                    Series(run, tuple(sorted(series[name].items())), colour)
                    for colour, (run, series) in enumerate(zip(labels, known, strict=False), 1)
                    if len(series.get(name, {})) > 1
                ]
                if any(value for line in lines for _, value in line.points):
                    several = f"{panel.title}: {label}" if len(measures) > 1 else panel.title
                    chart = Chart(several, panel.note, lines, panel.form, panel.why)
                    charts.append(line_chart(chart, along, marks))
        if charts:
            yield {"heading": heading, "charts": charts}


def _length(own: Sequence[Stage], name: str) -> float:
    return max((one.steps[1] - one.steps[0] + 1 for one in own if one.name == name), default=1.0)


def _placed(
    own: Sequence[Stage], along: Along, names: Sequence[str]
) -> dict[str, dict[float, float]]:
    """Return value by position of each measure of a run."""
    by_name = {one.name: one for one in own}
    rows: list[list[Mapping[str, object]]] = []
    for name in names:
        stage = by_name.get(name)
        first = stage.steps[0] if stage else 0.0
        rows.append(
            [{**row, "step": _counted(row, first)} for row in (stage.rows if stage else ())]
        )
    muted = [by_name[name].muted if name in by_name else frozenset[str]() for name in names]
    return placed(rows, muted, along)


def _counted(row: Mapping[str, object], first: float) -> float:
    return (finite(row.get("step")) or 0.0) - first + 1
