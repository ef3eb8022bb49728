"""Learning curves: charts of phases on a time line, imitation apart."""

import re
from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from debate_report.chart_order import ORDER_RULE, change_rank
from debate_report.charts import (
    MAX_SERIES,
    Bound,
    Chart,
    Marks,
    Plot,
    Series,
    image,
    line_chart,
    parts_of,
)
from debate_report.held_out import HeldOutMeasures, held_out_measures, held_out_name
from debate_report.json_values import finite
from debate_report.number_texts import Form, write_duration
from debate_report.page_templates import render
from debate_report.panels import PANELS, Panel
from debate_report.run_files import Row, RunFiles
from debate_report.stages import MAX_STEP, Stage, split_imitation, stages, step_of
from debate_report.timeline import PhaseAxis, Stretch, phase_axis, plain_axis

ROW_KEYS = ("phase", "step", "time_s")
MAX_PHASES = 20
MAX_CELL_CHARS = 500
PICTURE_CHARTS = 2
# Streams of measures that are not named after them.
STREAMS = {"reward/gen/mean": "generator"}
# Names of figures after `eval/`; any other name there is an evaluation mode of the recipe.
OWN_FIGURES = frozenset(
    {
        *("direct", "majority", "peer_vote", "judge", "last_round", "comparisons_made", "pass@k"),
        *("diversity", "format", "format_strict", "bradley_terry", "confidence", "cons@k", "maj"),
        *("flips", "tokens", "critic", "critique", "judged", "speech"),
        *("agreement", "accuracy", "drift", "improvement", "rho", "n_eff", "right", "wrong"),
    }
)
# Figures of a mode that would hide its main ones; tables of phases have them.
MINOR_FIGURES = re.compile(
    r"round_|tokens|flips|agreement|\b[pc]\w+@|_share|strict|owed|bradley_terry|confidence|_made"
)

Measures = Mapping[str, Mapping[float, float]]
"""Value by position of each measure."""


def curves(run: RunFiles) -> Markup:
    """Render charts, imitation folded, and the phases with their outcomes."""
    all_stages = stages(run)
    shown_stages = all_stages
    if len(all_stages) > MAX_PHASES:
        half = MAX_PHASES // 2
        shown_stages = [*all_stages[:half], *all_stages[-half:]]
    imitation, learning = split_imitation(shown_stages)
    head, rows = _phase_table(shown_stages)
    return render(
        "curves.html",
        order_rule=ORDER_RULE,
        groups=_groups_of(run, learning, first_number=len(imitation) + 1),
        imitation=", ".join(stage.name for stage in imitation),
        imitation_groups=_groups_of(run, imitation),
        head=head,
        stages=rows,
        left_out=len(all_stages) - len(shown_stages),
    )


def _groups_of(
    run: RunFiles, run_stages: Sequence[Stage], first_number: int = 1
) -> list[dict[str, object]]:
    """Draw the charts of phases on a common axis, under their headings."""
    if not run_stages:
        return []
    spans = {stage.name: stage.span for stage in run_stages}
    along = phase_axis(spans, first_number=first_number)
    measures = measures_by_position(run_stages, along)
    held_out = held_out_measures(run, run_stages, along.stretches)
    marks = _outcomes_and_alarms(run_stages, along)
    bounds = _exit_bounds(run_stages, along)
    shown_groups: list[dict[str, object]] = []
    for heading, charts, silent_titles in chart_groups(measures, held_out, bounds):
        drawings = [line_chart(chart, along, marks) for chart in charts]
        if drawings or silent_titles:
            shown_groups.append({"heading": heading, "charts": drawings, "silent": silent_titles})
    return shown_groups


def measures_by_position(
    run_stages: Sequence[Stage], along: PhaseAxis
) -> dict[str, dict[float, float]]:
    """Collect every drawable measure, by position; the last row of a step wins."""
    measures: dict[str, dict[float, float]] = {}
    for stage, stretch in zip(run_stages, along.stretches, strict=True):
        for row in stage.rows:
            position = stretch.at(step_of(row))
            for name, value in row.items():
                number = finite(value)
                if name in ROW_KEYS or number is None:
                    continue
                stream = STREAMS.get(name, "")
                if not stream and name.startswith("reward/") and name.endswith("/mean"):
                    stream = name.split("/")[1]
                # Rewards of a stream without weight train nothing.
                if stream not in stage.muted:
                    measures.setdefault(name, {})[position] = number
    return measures


def chart_groups(
    measures: Measures, held_out: HeldOutMeasures, bounds: Mapping[str, Sequence[Bound]]
) -> Iterator[tuple[str, list[Chart], list[str]]]:
    """Yield each heading, the charts, and the titles of charts at 0 throughout.

    The charts of a heading are in the order of `ORDER_RULE`.
    """
    for index, (heading, own_panels) in enumerate(PANELS):
        panels = list(own_panels)
        if index == 0:
            panels += _mode_panels(measures)
        if index == len(PANELS) - 1:
            panels += _time_panels(measures)
        charts = []
        silent_titles = []
        for panel in panels:
            lines, panel_bounds = _lines_and_bounds(panel, measures, held_out, bounds)
            values: list[float] = []
            for line in lines:
                values += [value for _, value in line.all_points]
            # A chart that is 0 throughout shows no more than its title in a list.
            if lines and not any(values):
                silent_titles.append(panel.title.lower())
                continue
            for title, chart_lines in parts_of(panel.title, lines):
                chart = Chart(
                    title=title,
                    note=panel.note,
                    series=chart_lines,
                    form=panel.form,
                    why=panel.why,
                    bounds=panel_bounds,
                )
                charts.append(chart)
        yield heading, sorted(charts, key=change_rank), silent_titles


def _lines_and_bounds(
    panel: Panel,
    measures: Measures,
    held_out: HeldOutMeasures,
    bounds: Mapping[str, Sequence[Bound]],
) -> tuple[list[Series], list[Bound]]:
    """Build the lines of a panel with enough points, and list the bounds of all lines."""
    names = dict(panel.names({*measures, *held_out.points}))
    lines = []
    panel_bounds: list[Bound] = []
    for name, label in names.items():
        panel_bounds += bounds.get(name, ())
        points = tuple(sorted(measures.get(name, {}).items()))
        test_name = held_out_name(name, names)
        test_points = held_out.points.get(test_name, ())
        # A single point is drawn where a criterion shows how far it is.
        if len(points) > 1 or test_points or bounds.get(name):
            line = Series(
                label=label,
                points=points,
                test_points=test_points,
                is_beyond_chance=test_name in held_out.beyond_chance,
            )
            lines.append(line)
    return lines, panel_bounds


def curve_plots(run: RunFiles) -> Iterator[Plot]:
    """Yield all charts of a run over the steps, to scale."""
    run_stages = stages(run)
    if not run_stages:
        return
    stretches = []
    for stage in run_stages:
        first, last = stage.span
        stretches.append(Stretch(stage.name[:60], first, last, start=first, end=last))
    along = PhaseAxis(tuple(stretches))
    measures = measures_by_position(run_stages, along)
    held_out = held_out_measures(run, run_stages, stretches)
    # Bounds belong to phases, which runs laid over each other do not share.
    for _, charts, _ in chart_groups(measures, held_out, {}):
        for chart in charts:
            steps = [step for line in chart.series for step, _ in line.all_points]
            yield chart, plain_axis(steps, along.unit)


def picture(run: RunFiles) -> str:
    """Draw the first two charts of the run as an SVG image; empty without any."""
    last_stages = stages(run)[-MAX_PHASES:]
    if not last_stages:
        return ""
    along = phase_axis({stage.name: stage.span for stage in last_stages})
    measures = measures_by_position(last_stages, along)
    held_out = held_out_measures(run, last_stages, along.stretches)
    plots: list[Plot] = []
    for _, charts, _ in chart_groups(measures, held_out, {}):
        plots += [(chart, along) for chart in charts]
    return image(plots[:PICTURE_CHARTS]) if plots else ""


def _phase_table(run_stages: Sequence[Stage]) -> tuple[list[str], list[list[str]]]:
    """Build the head and the rows of the table of phases, without empty columns."""
    rows = []
    for number, stage in enumerate(run_stages, 1):
        first, last = stage.steps
        steps = f"{first:,.0f}"
        if last > first:
            steps += f"–{last:,.0f}"
        alarms = ", ".join(f"{name} (step {step:,.0f})" for step, name in stage.alarms)
        duration = ""
        times = seconds_of(stage.rows)
        if len(times) > 1:
            duration = write_duration(times[-1] - times[0])
        rows.append(
            {
                "phase": f"{number} {stage.name[:200]}",
                "steps": steps,
                # Times do not break at their spaces.
                "time": duration.replace(" ", "\xa0"),
                "exit criterion": stage.criterion[:MAX_CELL_CHARS],
                "weights": stage.keeping,
                "health alarms": alarms[:MAX_CELL_CHARS],
            }
        )
    if not rows:
        return [], []
    head = [column for column in rows[0] if any(row[column] for row in rows)]
    cells = []
    for row in rows:
        cells.append([row[column] or "–" for column in head])
    return head, cells


def _outcomes_and_alarms(run_stages: Sequence[Stage], along: PhaseAxis) -> Marks:
    outcomes = []
    alarms = []
    for stage, stretch in zip(run_stages, along.stretches, strict=True):
        reasons = filter(None, (stage.criterion, stage.keeping))
        outcomes.append((stage.outcome, "; ".join(reasons)))
        for step, name in stage.alarms:
            alarms.append((stretch.at(step), f"health alarm at step {step:,.0f}: {name}"))
    return Marks(outcomes=outcomes, alarms=alarms)


def _exit_bounds(run_stages: Sequence[Stage], along: PhaseAxis) -> dict[str, list[Bound]]:
    """List the bounds of exit criteria by measure, phase by phase."""
    bounds: dict[str, list[Bound]] = {}
    for stage, stretch in zip(run_stages, along.stretches, strict=True):
        met = None if stage.met is None else stretch.at(stage.met)
        for name, minimum in stage.minimums.items():
            bound = Bound(start=stretch.start, end=stretch.end, value=minimum, met=met)
            bounds.setdefault(name, []).append(bound)
    return bounds


def _mode_panels(measures: Measures) -> Iterator[Panel]:
    """Yield a panel for each evaluation mode of a recipe."""
    lines_by_mode: dict[str, list[tuple[str, str]]] = {}
    for name in measures:
        kind, _, rest = name.partition("/")
        mode, _, figure = rest.partition("/")
        if kind != "eval" or not figure or mode in OWN_FIGURES:
            continue
        if not MINOR_FIGURES.search(figure):
            lines_by_mode.setdefault(mode, []).append((name, figure))
    for mode, lines in lines_by_mode.items():
        values: list[float] = []
        for name, _ in lines:
            values += measures[name].values()
        # A mode is named by the recipe: only values distinguish a share from a count.
        form: Form = "number"
        if min(values) >= 0 and max(values) <= 1:
            form = "share"
        yield Panel.of(f"Held out: {mode[:40]}", "", form, lines)


def _time_panels(measures: Measures) -> Iterator[Panel]:
    """Yield a panel of the longest parts of a step."""
    lines_by_time = []
    for name, values in measures.items():
        # Rates such as time/tokens_per_s are no seconds.
        if name.startswith("time/") and name.endswith("_s") and "tokens" not in name:
            label = name.removeprefix("time/").removesuffix("_s")
            lines_by_time.append((sum(values.values()), name, label))
    lines_by_time.sort(key=lambda line: -line[0])
    lines = [(name, label) for _, name, label in lines_by_time[:MAX_SERIES]]
    if lines:
        yield Panel.of("Time a step", "seconds, the longest parts", "seconds", lines)


def seconds_of(rows: Sequence[Row]) -> list[float]:
    """List the seconds since the start of the run, of rows with a plausible `time_s`."""
    times = [finite(row.get("time_s")) for row in rows]
    return [time for time in times if time is not None and 0 <= time <= MAX_STEP]
