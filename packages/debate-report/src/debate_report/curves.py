"""Learning curves on one time line of all phases."""

import re
from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from debate_report.charts import (
    MAX_SERIES,
    Bound,
    Chart,
    Marks,
    Series,
    image,
    line_chart,
    parts_of,
)
from debate_report.run_files import MAX_STEP, Row, RunFiles, Stage, finite, stages, step_of
from debate_report.timeline import PANELS, Along, Form, Panel, phases, render, write_duration

ROW_KEYS = ("phase", "step", "time_s")
MAX_PHASES = 20
MAX_WORDS = 500
STREAMS = {"reward/gen/mean": "generator"}
"""Measures of a stream that are not called as it is."""
Known = Mapping[str, Mapping[float, float]]
"""Value by position of each measure."""

OWN_FIGURES = frozenset(
    {
        *("direct", "majority", "peer_vote", "judge", "last_round", "comparisons_made", "pass@k"),
        *(
            "diversity",
            "format",
            "format_strict",
            "bradley_terry",
            "confidence",
            "cons@k",
            "maj",
            "flips",
            "tokens",
            "critic",
            "critique",
            "judged",
            "speech",
        ),
        *("agreement", "accuracy", "drift", "improvement", "rho", "n_eff", "right", "wrong"),
    }
)
"""What follows `eval/` in names of figures; of a mode that a recipe names, its name does."""


_DETAIL = re.compile(
    r"round_|tokens|flips|agreement|\b[pc]\w+@|_share|strict|owed|bradley_terry|confidence|_made"
)
"""Figures of a mode that would hide the few that say how good it is; tables of phases have them."""


def curves(run: RunFiles) -> Markup:
    """Return the phases and what became of them, and charts over all of them."""
    found = stages(run)
    if len(found) > MAX_PHASES:
        half = MAX_PHASES // 2
        shown = [*found[:half], *found[-half:]]
    else:
        shown = found
    along = phases({one.name: one.steps for one in shown})
    known = placed(shown, along)
    marks = _marks(shown, along) if shown else Marks()
    head, rows = _about(shown)
    return render(
        "curves.html",
        left_out=len(found) - len(shown),
        head=head,
        stages=rows,
        groups=list(groups(known, along, marks, _bounds(shown, along))) if shown else [],
    )


def placed(shown: Sequence[Stage], along: Along) -> dict[str, dict[float, float]]:
    """Return value by position of every measure that can be drawn; the last row of a step wins."""
    known: dict[str, dict[float, float]] = {}
    for stage, stretch in zip(shown, along.stretches, strict=True):
        for row in stage.rows:
            for name, value in row.items():
                number = None if name in ROW_KEYS else finite(value)
                is_reward = name.startswith("reward/") and name.endswith("/mean")
                stream = STREAMS.get(name) or (name.split("/")[1] if is_reward else "")
                if number is not None and stream not in stage.muted:
                    known.setdefault(name, {})[stretch.at(step_of(row))] = number
    return known


def groups(
    known: Known, along: Along, marks: Marks, bounds: Mapping[str, Sequence[Bound]]
) -> Iterator[dict[str, object]]:
    """Yield each heading with its charts, and the titles of those that are 0 throughout."""
    last = len(PANELS) - 1
    for place, (heading, panels) in enumerate(PANELS):
        every = list(panels)
        every += _mode_panels(known) if place == 0 else ()
        every += _time_panels(known) if place == last else ()
        charts, silent = list[Markup](), list[str]()
        for panel in every:
            asked = list(panel.names(known))
            wanted = [bound for name, _ in asked for bound in bounds.get(name, ())]
            drawn = [
                Series(label, tuple(sorted(known[name].items())))
                for name, label in asked
                if len(known[name]) > 1 or bounds.get(name)
            ]
            if drawn and not any(value for line in drawn for _, value in line.points):
                silent.append(panel.title.lower())
                continue
            for title, part in parts_of(panel.title, drawn):
                chart = Chart(title, panel.note, part, panel.form, panel.why, wanted)
                charts.append(line_chart(chart, along, marks))
        if charts or silent:
            yield {"heading": heading, "charts": charts, "silent": silent}


def picture(run: RunFiles) -> str:
    """Return the first two charts of the run as an SVG image; empty without any."""
    found = stages(run)[-MAX_PHASES:]
    along = phases({one.name: one.steps for one in found}) if found else None
    known = placed(found, along) if along else {}
    drawn = [
        Chart(panel.title, panel.note, lines[:MAX_SERIES], panel.form)
        for _, panels in PANELS
        for panel in panels
        if (lines := _lines(panel, known)) and any(y for one in lines for _, y in one.points)
    ]
    return image([(chart, along) for chart in drawn[:2]]) if along and drawn else ""


def _lines(panel: Panel, known: Known) -> list[Series]:
    """Return the lines of a panel that have more than a point."""
    named = panel.names(known)
    return [
        Series(label, tuple(sorted(known[n].items()))) for n, label in named if len(known[n]) > 1
    ]


def _about(shown: Sequence[Stage]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the table of phases; what no phase has is no column."""
    columns: dict[str, list[str]] = {"phase": [], "steps": [], "time": []}
    columns |= {"exit criterion": [], "weights": [], "health alarms": []}
    for place, one in enumerate(shown, 1):
        first, last = one.steps
        steps = f"{first:,.0f}–{last:,.0f}" if last > first else f"{first:,.0f}"
        alarms = ", ".join(f"{name} (step {step:,.0f})" for step, name in one.alarms)
        # Times do not break at their spaces.
        cells = [f"{place} {one.name[:200]}", steps, _took(one.rows).replace(" ", "\xa0")]
        cells += [one.criterion[:MAX_WORDS], one.keeping, alarms[:MAX_WORDS]]
        for column, cell in zip(columns.values(), cells, strict=True):
            column.append(cell)
    kept = {name: cells for name, cells in columns.items() if any(cells)}
    rows = zip(*kept.values(), strict=True)
    return list(kept), [[cell or "–" for cell in row] for row in rows]


def _marks(shown: Sequence[Stage], along: Along) -> Marks:
    return Marks(
        outcomes=[
            (one.outcome, "; ".join(filter(None, (one.criterion, one.keeping)))) for one in shown
        ],
        alarms=[
            (stretch.at(step), f"health alarm at step {step:,.0f}: {name}")
            for one, stretch in zip(shown, along.stretches, strict=True)
            for step, name in one.alarms
        ],
    )


def _bounds(shown: Sequence[Stage], along: Along) -> dict[str, list[Bound]]:
    """Return of each measure of an exit criterion what was wanted of it, phase by phase."""
    found: dict[str, list[Bound]] = {}
    for one, stretch in zip(shown, along.stretches, strict=True):
        met = None if one.met is None else stretch.at(one.met)
        for name, least in one.wanted.items():
            found.setdefault(name, []).append(Bound(stretch.start, stretch.end, least, met))
    return found


def _mode_panels(known: Known) -> Iterator[Panel]:
    """Yield one panel for each evaluation mode that a recipe names."""
    modes: dict[str, list[tuple[str, str]]] = {}
    for name in known:
        kind, _, rest = name.partition("/")
        mode, _, figure = rest.partition("/")
        if kind == "eval" and figure and mode not in OWN_FIGURES and not _DETAIL.search(figure):
            modes.setdefault(mode, []).append((name, figure))
    for mode, lines in modes.items():
        values = [value for name, _ in lines for value in known[name].values()]
        form: Form = "share" if min(values) >= 0 and max(values) <= 1 else "number"
        yield Panel.of(f"Held out: {mode[:40]}", "", form, lines)


def _time_panels(known: Known) -> Iterator[Panel]:
    """Yield one panel of the parts of a step that take longest."""
    names = [name for name in known if name.startswith("time/") and name.endswith("_s")]
    names = [name for name in names if "tokens" not in name]
    names.sort(key=lambda name: -sum(known[name].values()))
    if names:
        lines = [(name, name[len("time/") : -len("_s")]) for name in names[:MAX_SERIES]]
        yield Panel.of("Time a step", "seconds, the longest parts", "seconds", lines)


def seconds_of(rows: Sequence[Row]) -> list[float]:
    """Return how long the run had taken, in seconds, at each row that says so."""
    times = (finite(row.get("time_s")) for row in rows)
    return [time for time in times if time is not None and 0 <= time <= MAX_STEP]


def _took(rows: Sequence[Row]) -> str:
    times = seconds_of(rows)
    return write_duration(times[-1] - times[0]) if len(times) > 1 else ""
