"""The before → after table of a run."""

from collections.abc import Iterator, Mapping

from markupsafe import Markup

from debate_train.report.render import render
from debate_train.report.run_files import finite
from debate_train.report.timeline.axes import Axis, write_value
from debate_train.report.timeline.explained import meaning

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
    low, high = (0.0, 1.0) if share else (min(values), max(values))
    axis = Axis(low, high if high > low else low + 1, 6, 174)
    others = {
        key: value
        for key, value in found.items()
        if key not in ("table", "sha256", "summary", "headline")
    }
    return render(
        "results.html",
        found=True,
        share=share,
        scale=("0 %", "100 %") if share else [write_value(end, "number") for end in (low, high)],
        summary=str(found.get("summary") or "")[:MAX_SHOWN],
        rows=[
            {
                "measure": measure,
                "why": meaning(name),
                "cells": [_cell(before, share), _cell(after, share)],
                "change": _change(difference(change, after[0] - before[0]), share),
                "beside": _paired(change, share),
                "drawn": [
                    (name, y, *map(axis.at, interval))
                    for name, y, interval in (("before", 9, before), ("after", 19, after))
                ],
            }
            for measure, name, before, after, change in rows
        ],
        others=_listed(others),
    )


def _read(rows: object) -> Iterator[tuple[str, str, Interval, Interval, object]]:
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, Mapping):
            continue
        before, after = _interval(row.get("before")), _interval(row.get("after"))
        if before and after:
            label, name = (str(row.get(key, ""))[:MAX_SHOWN] for key in ("measure", "name"))
            yield label, name, before, after, row.get("change")


def _interval(value: object) -> Interval | None:
    """Return (mean, low, high); a bare number or missing ends give an interval of no width."""
    mean = finite(value.get("mean") if isinstance(value, Mapping) else value)
    if mean is None:
        return None
    if not isinstance(value, Mapping):
        return mean, mean, mean
    low, high = (mean if end is None else end for end in map(finite, map(value.get, _ENDS)))
    return mean, low, high


def _cell(value: Interval, share: bool) -> tuple[str, str]:
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
    if isinstance(value, Mapping) and (interval := _interval(value)):
        mean, low, high = interval
        return f"{mean:.4g} [{low:.4g}, {high:.4g}]"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_shown(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_shown(item) for item in value) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
