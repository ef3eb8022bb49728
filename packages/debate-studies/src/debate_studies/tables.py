"""Tables and a plot of a study: means over seeds with intervals, and differences paired by seed.

Intervals are Student's t, 95 %, over the seeds that ran; p is the two-sided t test of a mean
difference of 0. `debate-study FILE --tables` prints them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from debate_report.charts import MAX_SERIES, Bound, Chart, Series, image
from debate_report.timeline import PhaseAxis, phase_axis, plain_axis
from debate_rewards.what_if import seeds_needed
from debate_studies.lines import FinishedRun, Runs, holm, interval, seeds_of, table, with_interval
from debate_studies.study_file import BEFORE, Compared, Study
from debate_train.checkpoints.whole_files import write_whole
from debate_train.recipe_names import opening

LEVEL = 0.05
"""Differences up to this adjusted p are marked."""
MIN_SEEDS = 3
"""Fewer seeds have no spread to plan further seeds by."""


def tables(
    study: Study,
    lines: Sequence[FinishedRun],
    plot: Path,
) -> list[str]:
    """Format the study's tables as Markdown, and write the study's plot, if any.

    Args:
        study: The study of the runs.
        lines: The finished runs, at least one.
        plot: File of the plot.
    """
    runs = _runs_by_arm(study, lines)
    arms_with_runs = {arm for arm, _ in runs}
    # In the order of the study's file, not of the runs.
    arms = [name for name in study.arms if name in arms_with_runs]
    markdown = [*_levels(study, runs, arms), ""]
    if study.totals:
        markdown += [*_totals(study, runs, arms), ""]
    markdown += _compared(study, runs)
    if any(run.warnings for run in lines):
        markdown += ["", *_warnings(runs, arms)]
    if study.plot:
        plot.parent.mkdir(parents=True, exist_ok=True)
        write_whole(plot, _plot(study, runs, arms).encode())
    return markdown


def page(
    study: Study,
    file: Path,
    image: Path,
    markdown: Sequence[str],
) -> str:
    """Write the page of a study: subject, head of the file, plot and tables.

    Args:
        study: The study of the runs.
        file: The study's file.
        image: The plot's file, beside the page.
        markdown: The tables.
    """
    lines = [f"# Study {study.name}", ""]
    if study.about:
        lines += [study.about, ""]
    source = ""
    if study.results:
        source = f" from `{Path(study.results).name}`"
    lines += [f"Written by `debate-study {file.name}`{source}.", ""]
    file_head = opening(file)
    if file_head:
        lines += ["The head of its file:", "", "```text", *file_head, "```", ""]
    if study.plot:
        lines += [f"![Plot of {study.name}]({image.name})", ""]
    return "\n".join([*lines, *markdown, ""])


def _runs_by_arm(study: Study, lines: Sequence[FinishedRun]) -> Runs:
    """Select the runs of the study's arms; its file may have runs of other arms."""
    runs = {}
    for run in lines:
        if run.arm in study.arms_of(run.seed):
            runs[run.arm, run.seed] = run
    return runs


def _levels(
    study: Study,
    runs: Runs,
    arms: Sequence[str],
) -> list[str]:
    """Format each measure at each arm's end: the mean over seeds, with the mean before."""
    # A start that misses its criterion is not trained from: its arm has no end to measure.
    trained_runs = [_runs_of_arm(runs, arm, start_met=True) for arm in arms]
    failed_starts_of_arms = [_runs_of_arm(runs, arm, start_met=False) for arm in arms]
    rows: list[list[object]] = [["seeds", *map(_seeds, trained_runs)]]
    if any(failed_starts_of_arms):
        rows.append(["start missed its criterion", *map(_seeds, failed_starts_of_arms)])
    for measure in study.measures:
        levels = [_level(arm_runs, measure) for arm_runs in trained_runs]
        rows.append([measure, *levels])
    head: list[object] = ["", *arms]
    # A page is narrow: the shorter of arms and measures goes across.
    if len(arms) > len(rows):
        columns = zip(head, *rows, strict=True)
        head, *rows = map(list, columns)
    explanation = (
        "Means over seeds at an arm's end (in parentheses: of how many, if some lack it). Where "
        "all measured its beginning, that comes first, and ± is half the gain's 95 % interval."
    )
    return [explanation, "", *table(head, rows)]


def _runs_of_arm(
    runs: Runs,
    arm: str,
    *,
    start_met: bool,
) -> list[FinishedRun]:
    arm_runs = []
    for seed in seeds_of(runs, [arm]):
        run = runs[arm, seed]
        if run.start_met == start_met:
            arm_runs.append(run)
    return arm_runs


def _seeds(arm_runs: Sequence[FinishedRun]) -> str:
    return ", ".join(str(run.seed) for run in arm_runs) or "–"


def _level(arm_runs: Sequence[FinishedRun], measure: str) -> str:
    before = [run.before[measure] for run in arm_runs if measure in run.before]
    after = [run.after[measure] for run in arm_runs if measure in run.after]
    if not after:
        return "–"
    # A mean before and one after of different runs would not be comparable.
    num_runs = len(arm_runs)
    if len(after) < num_runs:
        return f"{fmean(after):.3f} ({len(after)})"
    if len(before) < num_runs:
        return f"{fmean(after):.3f}"
    gains = [last - first for first, last in zip(before, after, strict=True)]
    level = f"{fmean(before):.3f} → {fmean(after):.3f}"
    half_width = interval(gains)[2]
    if half_width is not None:
        level += f" ± {half_width:.3f}"
    return level


def _totals(
    study: Study,
    runs: Runs,
    arms: Sequence[str],
) -> list[str]:
    """Format the cost of each arm as means over seeds."""
    rows: list[list[object]] = []
    for arm in arms:
        arm_runs = _runs_of_arm(runs, arm, start_met=True)
        columns = [[run.seconds for run in arm_runs if run.seconds is not None]]
        for name in study.totals:
            totals = [run.totals[name] for run in arm_runs if name in run.totals]
            columns.append(totals)
        means = [f"{fmean(values):,.0f}" if values else "–" for values in columns]
        rows.append([arm, *means])
    return table(["arm", "seconds", *study.totals], rows)


def differences(
    runs: Runs,
    comparison: Compared,
    measure: str,
) -> dict[int, float]:
    """Compute the difference of each seed with runs on both sides."""
    by_seed = {}
    for seed in seeds_of(runs, [comparison.arm]):
        run = runs[comparison.arm, seed]
        other = runs.get((comparison.over, seed))
        if _start_failed(run, other):
            continue
        subtracted: Mapping[str, float] = {}
        if comparison.over == BEFORE:
            subtracted = run.before
        elif other is not None:
            subtracted = other.after
        if measure not in run.after or measure not in subtracted:
            continue
        by_seed[seed] = run.after[measure] - subtracted[measure]
        # Arms that begin with other weights are compared by their gains.
        if comparison.gains and other is not None:
            by_seed[seed] -= run.before[measure] - other.before[measure]
    return by_seed


def failed_starts(runs: Runs, comparison: Compared) -> list[int]:
    """List the seeds with a side that was not trained, as its start missed its criterion."""
    failed_seeds = []
    for seed in seeds_of(runs, [comparison.arm]):
        run = runs[comparison.arm, seed]
        other = runs.get((comparison.over, seed))
        has_both_sides = comparison.over == BEFORE or other is not None
        if has_both_sides and _start_failed(run, other):
            failed_seeds.append(seed)
    return failed_seeds


def _start_failed(run: FinishedRun, other: FinishedRun | None) -> bool:
    return not run.start_met or (other is not None and not other.start_met)


@dataclass(slots=True, kw_only=True)
class _Row:
    """A comparison by one measure.

    Attributes:
        compared: Names of the sides.
        measure: The measure.
        values: The difference of each seed that ran, at least one.
        num_failed: Seeds that were not trained, as their start missed its criterion.
        expected: The difference that the study is made to show.
        needed_seeds: Seeds that show the expected difference four times in five.
        has_power: Whether that many ran; without an expected difference any number will do.
        p: Of a mean difference of 0; `None` for too few or too equal seeds.
        p_holm: p adjusted for all tests of the study.
    """

    compared: str
    measure: str
    values: Sequence[float]
    num_failed: int
    expected: float | None
    needed_seeds: int | None
    has_power: bool
    p: float | None
    p_holm: float | None = None

    @property
    def mark(self) -> str:
        """Markdown before and after what is significant."""
        is_significant = self.p_holm is not None and self.p_holm <= LEVEL
        return "**" if is_significant and self.has_power else ""


def _rows(study: Study, runs: Runs) -> list[_Row]:
    """Compare the sides of each comparison that has seeds, by each of its measures."""
    rows = []
    for comparison in study.compared:
        gains = ", gains" if comparison.gains else ""
        num_failed = len(failed_starts(runs, comparison))
        for measure in comparison.measures:
            values = [*differences(runs, comparison, measure).values()]
            if not values:
                continue
            needed_seeds = None
            if comparison.expected is not None:
                # Fewer seeds have no spread to plan by.
                needed_seeds = MIN_SEEDS
                if len(values) >= MIN_SEEDS:
                    needed_seeds = seeds_needed(comparison.expected, stdev(values))
            row = _Row(
                compared=f"{comparison.arm} − {comparison.over}{gains}",
                measure=measure,
                values=values,
                num_failed=num_failed,
                expected=comparison.expected,
                needed_seeds=needed_seeds,
                has_power=needed_seeds is None or len(values) >= needed_seeds,
                p=interval(values)[3],
            )
            rows.append(row)

    # All tests are one family, also those that a table leaves out: a test counts that was made.
    tested_rows = [row for row in rows if row.p is not None]
    p_values = [row.p for row in tested_rows if row.p is not None]
    for row, p_holm in zip(tested_rows, holm(p_values), strict=True):
        row.p_holm = p_holm
    return rows


def summary(study: Study, lines: Sequence[FinishedRun]) -> list[str]:
    """Format the study's comparisons by its plotted measures as one Markdown table.

    Args:
        study: The study of the runs.
        lines: The finished runs, at least one.
    """
    rows = _rows(study, _runs_by_arm(study, lines))
    compared_measures = list(dict.fromkeys(row.measure for row in rows))
    # The measures that a study plots are those that decide it.
    plotted_measures = [name for name in study.plot if name in compared_measures]
    measures = plotted_measures or compared_measures
    cells_by_comparison: dict[str, dict[str, str]] = {}
    seeds_by_comparison: dict[str, int] = {}
    for row in rows:
        if row.measure in measures:
            cells_of_measures = cells_by_comparison.setdefault(row.compared, {})
            cells_of_measures[row.measure] = f"{row.mark}{with_interval(row.values)}{row.mark}"
            seeds_by_comparison[row.compared] = len(row.values)

    most_seeds = max(seeds_by_comparison.values(), default=0)
    cells: list[list[object]] = []
    for compared, cells_of_measures in cells_by_comparison.items():
        num_seeds = seeds_by_comparison[compared]
        fewer = f" ({num_seeds})" if num_seeds < most_seeds else ""
        row_cells = [cells_of_measures.get(name, "") for name in measures]
        cells.append([f"{compared}{fewer}", *row_cells])
    return table([f"{most_seeds} seeds", *measures], cells)


def _compared(study: Study, runs: Runs) -> list[str]:
    """Format the study's comparisons, each with its interval and test."""
    rows = _rows(study, runs)
    head = ["compared", "measure", "seeds", "mean [95 %]", "standard error", "range"]
    head += ["p", "p, Holm"]
    any_expected = any(row.expected is not None for row in rows)
    if any_expected:
        head += ["expected", "seeds to show it"]
    any_failed = any(row.num_failed for row in rows)
    if any_failed:
        head += ["failed starts", "with those as 0 [95 %]"]

    num_tests = sum(row.p is not None for row in rows)
    explanation = []
    # A table without tests needs no explanation.
    if num_tests:
        explanation = [_how_to_read(num_tests, any_expected, any_failed), ""]
    cells = [_cells(row, any_expected, any_failed) for row in rows]
    return [*explanation, *table(head, cells)]


def _how_to_read(
    num_tests: int,
    any_expected: bool,
    any_failed: bool,
) -> str:
    """Explain the columns after the interval."""
    text = f"p is of one row alone; *p, Holm* is adjusted for all {num_tests} tests of this table, "
    text += f"and bold up to {LEVEL:.2f}."
    if any_expected:
        text += " *Seeds to show it* is how many show the expected difference four times in five "
        text += "at 5 %, by the spread of the seeds so far; with fewer, nothing is decided, and "
        text += "no p is bold."
    if any_failed:
        text += " Seeds whose start missed its criterion are in no interval; the last column "
        text += "counts each as a difference of 0."
    return text


def _cells(
    row: _Row,
    any_expected: bool,
    any_failed: bool,
) -> list[object]:
    """Format a comparison, with the columns that any row of the table needs."""
    standard_error = p = p_holm = "–"
    if row.p is not None and row.p_holm is not None:
        standard_error = f"{interval(row.values)[1]:.3f}"
        p = f"{row.p:.2g}"
        p_holm = f"{row.mark}{row.p_holm:.2g}{row.mark}"
    cells: list[object] = [
        row.compared,
        row.measure,
        len(row.values),
        with_interval(row.values),
        standard_error,
        f"{min(row.values):+.3f} to {max(row.values):+.3f}",
        p,
        p_holm,
    ]
    if any_expected:
        expected = needed_seeds = "–"
        if row.expected is not None:
            expected = f"{row.expected:+.3f}"
            at_least = "at least " if len(row.values) < MIN_SEEDS else ""
            undecided = "" if row.has_power else ", not decided"
            needed_seeds = f"{at_least}{row.needed_seeds}{undecided}"
        cells += [expected, needed_seeds]
    if any_failed:
        interval_with_zeros = "–"
        if row.num_failed:
            # As if failed starts had shown no difference.
            zeros = [0.0] * row.num_failed
            interval_with_zeros = with_interval([*row.values, *zeros])
        cells += [row.num_failed or "–", interval_with_zeros]
    return cells


def _warnings(runs: Runs, arms: Sequence[str]) -> list[str]:
    """Format the warnings of the health monitor: in how many runs, and from which steps on."""
    rows: list[list[object]] = []
    for arm in arms:
        arm_runs = [runs[arm, seed] for seed in seeds_of(runs, [arm])]
        # Runs that were not begun have no warnings to count, not even none.
        warnings_of_runs = [run.warnings for run in arm_runs if run.warnings is not None]
        num_runs = len(warnings_of_runs)
        if not num_runs:
            continue
        first_steps: dict[str, list[int]] = {}
        for warnings in warnings_of_runs:
            for detector, step in warnings.items():
                first_steps.setdefault(detector, []).append(step)
        for detector, steps in sorted(first_steps.items()):
            step_range = f"{min(steps)} to {max(steps)}"
            rows.append([arm, detector, f"{len(steps)} of {num_runs}", step_range])
        num_silent = sum(not warnings for warnings in warnings_of_runs)
        rows.append([arm, "nothing", f"{num_silent} of {num_runs}", ""])
    return table(["arm", "the monitor warned of", "runs", "first at step"], rows)


def _plot(
    study: Study,
    runs: Runs,
    arms: Sequence[str],
) -> str:
    """Draw each measure (change by arm, a dot for each seed) or curve (a line for each arm)."""
    charts: list[tuple[Chart, PhaseAxis]] = []
    for name in study.plot:
        for first in range(0, len(arms), MAX_SERIES):
            # A chart has colors for so many lines; further arms go on in the next chart.
            chart_arms = arms[first : first + MAX_SERIES]
            is_curve = name in study.curves
            draw = _curves if is_curve else _dots
            chart = draw(name, runs, chart_arms)
            if chart is not None:
                charts.append(chart)
    return image(charts)


def _dots(
    measure: str,
    runs: Runs,
    arms: Sequence[str],
) -> tuple[Chart, PhaseAxis] | None:
    runs_of_arms = {arm: _runs_of_arm(runs, arm, start_met=True) for arm in arms}
    # One scale a chart: where any arm measured its beginning, all arms show gains.
    is_gain = False
    for arm_runs in runs_of_arms.values():
        for run in arm_runs:
            is_gain = is_gain or measure in run.before
    values_of_arms = {}
    for arm, arm_runs in runs_of_arms.items():
        if is_gain:
            comparison = Compared(arm=arm, measures=(measure,))
            values = [*differences(runs, comparison, measure).values()]
        else:
            values = [run.after[measure] for run in arm_runs if measure in run.after]
        if values:
            values_of_arms[arm] = values
    if not values_of_arms:
        return None

    # Each arm has a stretch of the axis, with a place for each of its dots.
    num_dots = {arm: (1, len(values)) for arm, values in values_of_arms.items()}
    axis = phase_axis(num_dots, "run")
    series: list[Series] = []
    bounds: list[Bound] = []
    if is_gain:
        bounds.append(Bound(*axis.ends, 0.0, None))
    for (arm, values), stretch in zip(values_of_arms.items(), axis.stretches, strict=True):
        points = [(stretch.at(number), value) for number, value in enumerate(values, 1)]
        series.append(Series(arm, tuple(points), joined=False))
        mean, _, half_width, _ = interval(values)
        if half_width is not None:
            low = mean - half_width
            high = mean + half_width
            bounds.append(Bound(stretch.start, stretch.end, low, None))
            bounds.append(Bound(stretch.start, stretch.end, high, None))
    note = "after minus before" if is_gain else "at the end"
    note += ", a dot for each seed, between the ends of the 95 % interval"
    return Chart(measure, note, series, "number", bounds=bounds), axis


def _curves(
    curve: str,
    runs: Runs,
    arms: Sequence[str],
) -> tuple[Chart, PhaseAxis] | None:
    series: list[Series] = []
    steps: list[int] = []
    for arm in arms:
        values_by_step: dict[int, list[float]] = {}
        for seed in seeds_of(runs, [arm]):
            curve_points = runs[arm, seed].curves.get(curve, ())
            for step, value in curve_points:
                values_by_step.setdefault(step, []).append(value)
        if values_by_step:
            means = {step: fmean(values) for step, values in values_by_step.items()}
            points = tuple(sorted(means.items()))
            series.append(Series(arm, points))
            steps += means
    if not steps:
        return None
    chart = Chart(curve, "by step, a line for each arm: the mean over seeds", series, "number")
    return chart, plain_axis(steps, "step")
