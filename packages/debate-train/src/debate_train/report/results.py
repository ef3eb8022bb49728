"""The before → after table of a run."""

from collections.abc import Iterator, Mapping, Sequence

from debate_train.report.charts import interval_chart, write_value
from debate_train.report.html import Html, fold, join, table, tag
from debate_train.report.run_files import finite

Interval = tuple[float, float, float]
MAX_ROWS, MAX_SHOWN = 500, 500
_ENDS = ("low", "high")


def results(found: Mapping[str, object] | None) -> Html:
    """Return the table of `results.json`, then its other values folded below."""
    if found is None:
        return tag("p", "No results yet: the run has not reached its last measurement.")
    rows = list(_read(found.get("table")))
    others = {key: value for key, value in found.items() if key not in ("table", "sha256")}
    return join(
        [
            _comparison(rows) if rows else tag("p", "The run compared nothing."),
            fold("More results", _listed(others)) if others else None,
        ]
    )


def _comparison(rows: Sequence[tuple[str, Interval, Interval]]) -> Html:
    values = [value for _, before, after in rows for value in (*before, *after)]
    share = min(values) >= 0 and max(values) <= 1
    low, high = (0.0, 1.0) if share else (min(values), max(values))
    cells = [
        [
            measure,
            _cell(before, share),
            _cell(after, share),
            _change(after[0] - before[0], share),
            interval_chart(before, after, low, high),
        ]
        for measure, before, after in rows
    ]
    scale = tag("span", _scale(low, high, share), class_="scale picture")
    head = ["measure", "before", "after", "change, points" if share else "change", scale]
    key = tag(
        "span",
        tag("span", "○", class_="key before"),
        " before, ",
        tag("span", "●", class_="key after"),
        " after. ",
        class_="picture",
    )
    note = tag("p", key, "Brackets hold the interval of each mean.", class_="note")
    return join([table(head, cells), note])


def _read(rows: object) -> Iterator[tuple[str, Interval, Interval]]:
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, Mapping):
            continue
        before, after = _interval(row.get("before")), _interval(row.get("after"))
        if before and after:
            yield str(row.get("measure", ""))[:MAX_SHOWN], before, after


def _interval(value: object) -> Interval | None:
    """Return (mean, low, high); a bare number or missing ends give an interval of no width."""
    mean = finite(value.get("mean") if isinstance(value, Mapping) else value)
    if mean is None:
        return None
    if not isinstance(value, Mapping):
        return mean, mean, mean
    low, high = (mean if end is None else end for end in map(finite, map(value.get, _ENDS)))
    return mean, low, high


def _cell(value: Interval, share: bool) -> Html:
    mean, low, high = value
    if share:
        interval = f"[{100 * low:.1f}, {100 * high:.1f}]"
    else:
        interval = f"[{write_value(low, 'number')}, {write_value(high, 'number')}]"
    number = tag("b", write_value(mean, "share" if share else "number"))
    return join([number, " ", tag("span", interval, class_="interval") if low < high else None])


def _change(change: float, share: bool) -> Html:
    text = f"{100 * change:+.1f}" if share else f"{change:+.3f}"
    return tag("span", text.replace("-", "−"), class_="change")


def _scale(low: float, high: float, share: bool) -> Html:
    ends = ("0 %", "100 %") if share else (write_value(low, "number"), write_value(high, "number"))
    return join(tag("span", end) for end in ends)


def _listed(values: Mapping[str, object]) -> Html:
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            rows += [(f"{key}: {name}", _shown(item)) for name, item in value.items()]
        else:
            rows.append((key, _shown(value)))
    short = [(key[:MAX_SHOWN], shown[:MAX_SHOWN]) for key, shown in rows[:MAX_ROWS]]
    return table(["value", "found"], short)


def _shown(value: object) -> str:
    if isinstance(value, Mapping) and (interval := _interval(value)):
        mean, low, high = interval
        return f"{mean:.4g} [{low:.4g}, {high:.4g}]"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_shown(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_shown(item) for item in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
