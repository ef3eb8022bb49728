"""Several runs, or seeds of one recipe, side by side on one page."""

import json
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev

from markupsafe import Markup

from debate_report.run_files import RunFiles, finite, recipe_of
from debate_report.timeline import meaning, render, write_value

Interval = tuple[float, float, float]
MAX_SHOWN, MAX_TEXT = 500, 100_000
_ENDS = ("low", "high")


def results(found: Mapping[str, object] | None) -> Markup:
    """Return the table of `results.json`, then its other values folded below."""
    if found is None:
        return render("results.html", found=False, others="")
    rows = list(_read(found.get("table")))
    values = [value for _, _, before, after, _ in rows for value in (*before, *after)]
    share = not values or (min(values) >= 0 and max(values) <= 1)
    others = {
        key: value
        for key, value in found.items()
        if key not in ("table", "sha256", "summary", "headline", "evaluation_files")
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
        others=as_text(others) if others else "",
    )


def as_text(values: Mapping[str, object]) -> str:
    """Return values of a file as they may stand on a page."""
    return json.dumps(values, indent=1, ensure_ascii=False)[:MAX_TEXT]


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


MAX_KEYS = 24
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
    """Return the keys in which runs differ, and their results; of seeds of one recipe the mean."""
    labels = [run.name for run in runs]
    about = _differences(runs)
    with_mean = all(row[0] in ("seed", "name") for row in about)
    return render(
        "comparison.html",
        head=["key of the recipe", *labels],
        about=about[:MAX_KEYS],
        more=max(0, len(about) - MAX_KEYS),
        columns=["measure", *labels, *(["mean ± deviation"] if with_mean else ())],
        results=list(_results(runs, with_mean=with_mean)),
    )


def _leaves(value: object, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted keys of a recipe with what stands there."""
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _leaves(part, f"{where}.{key}" if where else str(key))
    else:
        yield where, str(value)


def _differences(runs: Sequence[RunFiles]) -> list[list[str]]:
    """Return the keys in which recipes differ, with a cell for each run."""
    recipes = [dict(_leaves(recipe_of(run))) for run in runs]
    keys = [key for key in dict.fromkeys(key for found in recipes for key in found)
            if len({found.get(key) for found in recipes}) > 1]  # fmt: skip
    keys.sort(key=lambda key: key.count("."))  # What stands at the top says most.
    return [[key[:80], *(found.get(key, "–")[:60] for found in recipes)] for key in keys]


def _results(runs: Sequence[RunFiles], *, with_mean: bool) -> Iterator[list[str]]:
    """Yield each measure with what it was after each run, and its change."""
    tables = [
        {label: (after[0], difference(change, after[0] - before[0]))
         for label, _, before, after, change in _read((run.results or {}).get("table"))}
        for run in runs
    ]  # fmt: skip
    for measure in dict.fromkeys(name for table in tables for name in table):
        found = [table.get(measure) for table in tables]
        cells = [f"{write_value(one[0], 'number')} ({_change(one[1], False)})" if one else "–"
                 for one in found]  # fmt: skip
        yield [measure, *cells, *([_spread([one[1] for one in found if one])] if with_mean else ())]


def _spread(changes: Sequence[float]) -> str:
    spread = f" ± {stdev(changes):.3f}" if len(changes) > 1 else ""
    return f"{_change(fmean(changes), False)}{spread}"
