"""Tables and a plot of a study: means over seeds with intervals, and differences paired by seed.

Intervals are Student's t, 95 %, over the seeds that ran; p is the two-sided t test of a mean
difference of 0. `debate-study FILE --tables` prints them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from debate_report.charts import MAX_SERIES, Bound, Chart, Series, image
from debate_report.timeline import PhaseAxis, phase_axis, plain_axis
from debate_studies.lines import FinishedRun, Runs, holm, interval, seeds_of, table, with_interval
from debate_studies.study_file import BEFORE, Compared, Study
from debate_train.checkpoints.whole_files import write_whole
from debate_train.recipe.files import opening

LEVEL = 0.05
"""A difference is marked up to this p, adjusted."""


def tables(study: Study, lines: Sequence[FinishedRun], plot: Path) -> list[str]:
    """Return the study's tables as Markdown, and write its plot where there is one.

    Args:
        study: What was run.
        lines: The finished runs, at least one.
        plot: Where the plot goes.
    """
    runs: Runs = {(run.arm, run.seed): run for run in lines if run.arm in study.arms_of(run.seed)}
    arms = [name for name in study.arms if any(arm == name for arm, _ in runs)]
    found = [
        *_levels(study, runs, arms),
        "",
        *([*_totals(study, runs, arms), ""] if study.totals else []),
        *_compared(study, runs),
    ]
    if any(run.warnings for run in lines):
        found += ["", *_warnings(runs, arms)]
    if study.plot:
        plot.parent.mkdir(parents=True, exist_ok=True)
        write_whole(plot, _plot(study, runs, arms).encode())
    return found


def page(study: Study, file: Path, image: Path, found: Sequence[str]) -> str:
    """Return the page of a study: what it is about, the head of its file, its plot and its tables.

    Args:
        study: What was run.
        file: Where it was read from.
        image: The plot's, beside the page.
        found: The tables.
    """
    head = opening(file)
    about = [study.about, ""] if study.about else []
    said = ["The head of its file:", "", "```text", *head, "```", ""] if head else []
    drawn = [f"![Plot of {study.name}]({image.name})", ""] if study.plot else []
    source = f" from `{Path(study.results).name}`" if study.results else ""
    made = f"Written by `debate-study {file.name}`{source}."
    return "\n".join([f"# Study {study.name}", "", *about, made, "", *said, *drawn, *found, ""])


def _levels(study: Study, runs: Runs, arms: Sequence[str]) -> list[str]:
    """Each measure at the end of each arm: its mean over seeds, with how it was before."""
    columns = [_met(runs, arm) for arm in arms]
    missed = [_met(runs, arm, is_met=False) for arm in arms]
    rows: list[list[object]] = [["seeds", *map(_seeds, columns)]]
    if any(missed):
        rows.append(["start missed its criterion", *map(_seeds, missed)])
    rows += [[name, *(_level(own, name) for own in columns)] for name in study.measures]
    said = "Means over seeds at an arm's end (in parentheses: of how many, if some lack it). Where "
    said += "all measured its beginning, that comes first, and ± is half the gain's 95 % interval."
    head: list[object] = ["", *arms]
    if len(arms) > len(rows):  # Few of what there is more of stand side by side.
        head, *rows = ([*column] for column in zip(head, *rows, strict=True))
    return [said, "", *table(head, rows)]


def _met(runs: Runs, arm: str, is_met: bool = True) -> list[FinishedRun]:
    own = [runs[arm, seed] for seed in seeds_of(runs, [arm])]
    return [run for run in own if run.start_met == is_met]


def _seeds(own: Sequence[FinishedRun]) -> str:
    return ", ".join(str(run.seed) for run in own) or "–"


def _level(own: Sequence[FinishedRun], name: str) -> str:
    before = [run.before[name] for run in own if name in run.before]
    after = [run.after[name] for run in own if name in run.after]
    if not after:
        return "–"
    if not len(before) == len(after) == len(own):
        return f"{fmean(after):.3f}" + (f" ({len(after)})" if len(after) < len(own) else "")
    half = interval([last - first for first, last in zip(before, after, strict=True)])[2]
    return f"{fmean(before):.3f} → {fmean(after):.3f}" + ("" if half is None else f" ± {half:.3f}")


def _totals(study: Study, runs: Runs, arms: Sequence[str]) -> list[str]:
    """What an arm took: means over its seeds."""
    rows = list[list[object]]()
    for arm in arms:
        own = _met(runs, arm)
        means = [
            fmean(values) if (values := [run.totals[n] for run in own if n in run.totals]) else None
            for n in study.totals
        ]
        seconds = [run.seconds for run in own if run.seconds is not None]
        spent = [fmean(seconds) if seconds else None, *means]
        rows.append([arm, *("–" if one is None else f"{one:,.0f}" for one in spent)])
    return table(["arm", "seconds", *study.totals], rows)


def differences(runs: Runs, one: Compared, measure: str) -> dict[int, float]:
    """Return the difference of each seed that ran on both sides."""
    by_seed = {}
    for seed in seeds_of(runs, [one.arm]):
        run, other = runs[one.arm, seed], runs.get((one.over, seed))
        before_or_other = run.before if one.over == BEFORE else other.after if other else {}
        if _start_failed(run, other):
            continue
        if measure in run.after and measure in before_or_other:
            by_seed[seed] = run.after[measure] - before_or_other[measure]
            if one.gains and other is not None:
                by_seed[seed] -= run.before[measure] - other.before[measure]
    return by_seed


def failed_starts(runs: Runs, one: Compared) -> list[int]:
    """Return the seeds in which a side was not trained, as its start missed its criterion."""
    failed = []
    for seed in seeds_of(runs, [one.arm]):
        run, other = runs[one.arm, seed], runs.get((one.over, seed))
        has_both = one.over == BEFORE or other is not None
        if has_both and _start_failed(run, other):
            failed.append(seed)
    return failed


def _start_failed(run: FinishedRun, other: FinishedRun | None) -> bool:
    return not run.start_met or (other is not None and not other.start_met)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A comparison by one measure."""

    compared: str
    measure: str
    values: Mapping[int, float]
    """By seed that ran."""
    failed_seeds: Sequence[int]

    @property
    def p(self) -> float | None:
        return interval([*self.values.values()])[3] if self.values else None


def _compared(study: Study, runs: Runs) -> list[str]:
    """What was to be compared, with interval and test."""
    rows = _rows_compared(study, runs)
    p_values = [row.p for row in rows if row.p is not None]
    adjusted = iter(holm(p_values))
    any_failed = any(row.failed_seeds for row in rows)
    cells = list[list[object]]()
    for row in rows:
        p_holm = None if row.p is None else next(adjusted)
        cells.append(_cells(row, p_holm) + (_failed_cells(row) if any_failed else []))
    head = ["compared", "measure", "seeds", "mean [95 %]", "standard error", "range"]
    head += ["p", "p, Holm"]
    head += ["failed starts", "with those as 0 [95 %]"] if any_failed else []
    return [*_how_to_read(len(p_values), any_failed), *table(head, cells)]


def _rows_compared(study: Study, runs: Runs) -> list[_Row]:
    rows = []
    for one in study.compared:
        for measure in one.measures:
            row = _Row(
                compared=f"{one.arm} − {one.over}{', gains' if one.gains else ''}",
                measure=measure,
                values=differences(runs, one, measure),
                failed_seeds=failed_starts(runs, one),
            )
            rows += [row] if row.values else []
    return rows


def _how_to_read(num_tests: int, any_failed: bool) -> list[str]:
    """Say what the columns after the interval are; nothing where nothing was tested."""
    if not num_tests:
        return []
    text = f"p is of one row alone; *p, Holm* is adjusted for all {num_tests} tests of this table, "
    text += f"and bold up to {LEVEL:.2f}."
    if any_failed:
        text += " Seeds whose start missed its criterion are in no interval; the last column "
        text += "counts each as a difference of 0."
    return [text, ""]


def _cells(row: _Row, p_holm: float | None) -> list[object]:
    values = [*row.values.values()]
    ends = f"{min(values):+.3f} to {max(values):+.3f}"
    tested = ["–", ends, "–", "–"]
    if row.p is not None and p_holm is not None:
        error = interval(values)[1]
        mark = "**" if p_holm <= LEVEL else ""
        tested = [f"{error:.3f}", ends, f"{row.p:.2g}", f"{mark}{p_holm:.2g}{mark}"]
    return [row.compared, row.measure, len(values), with_interval(values), *tested]


def _failed_cells(row: _Row) -> list[object]:
    """How many starts failed, and the interval as if they had shown no difference."""
    if not row.failed_seeds:
        return ["–", "–"]
    zeros = [0.0] * len(row.failed_seeds)
    return [len(zeros), with_interval([*row.values.values(), *zeros])]


def _warnings(runs: Runs, arms: Sequence[str]) -> list[str]:
    """What the health watch warned of, in how many runs and from which steps on."""
    rows = list[list[object]]()
    for arm in arms:
        lines = [runs[arm, seed] for seed in seeds_of(runs, [arm])]
        own = [run.warnings for run in lines if run.warnings is not None]
        if not own:
            continue
        for name in sorted({name for warnings in own for name in warnings}):
            steps = [warnings[name] for warnings in own if name in warnings]
            where = f"{min(steps)} to {max(steps)}"
            rows.append([arm, name, f"{len(steps)} of {len(own)}", where])
        silent = sum(not warnings for warnings in own)
        rows.append([arm, "nothing", f"{silent} of {len(own)}", ""])
    return table(["arm", "the watch warned of", "runs", "first at step"], rows)


def _plot(study: Study, runs: Runs, arms: Sequence[str]) -> str:
    """Draw each measure (change by arm, a dot for each seed) or curve (a line for each arm)."""
    drawn: list[tuple[Chart, PhaseAxis]] = []
    for name in study.plot:
        for first in range(0, len(arms), MAX_SERIES):
            own = arms[first : first + MAX_SERIES]
            found = _curves(name, runs, own) if name in study.curves else _dots(name, runs, own)
            drawn += [] if found is None else [found]
    return image(drawn)


def _dots(name: str, runs: Runs, arms: Sequence[str]) -> tuple[Chart, PhaseAxis] | None:
    met = {arm: _met(runs, arm) for arm in arms}
    is_gain = any(name in run.before for own in met.values() for run in own)
    if is_gain:
        gained = {arm: [*differences(runs, Compared(arm=arm, measures=(name,)), name).values()]
                  for arm in arms}  # fmt: skip
    else:
        gained = {arm: [run.after[name] for run in own if name in run.after]
                  for arm, own in met.items()}  # fmt: skip
    gained = {arm: values for arm, values in gained.items() if values}
    if not gained:
        return None
    along = phase_axis({arm: (1, len(values)) for arm, values in gained.items()}, "run")
    lines, bounds = list[Series](), [Bound(*along.ends, 0.0, None)][:is_gain]
    for (arm, values), stretch in zip(gained.items(), along.stretches, strict=True):
        points = ((stretch.at(place), value) for place, value in enumerate(values, 1))
        lines.append(Series(arm, tuple(points), joined=False))
        mean, _, half, _ = interval(values)
        ends = () if half is None else (mean - half, mean + half)
        bounds += [Bound(stretch.start, stretch.end, end, None) for end in ends]
    note = "after minus before" if is_gain else "at the end"
    note += ", a dot for each seed, between the ends of the 95 % interval"
    return Chart(name, note, lines, "number", bounds=bounds), along


def _curves(name: str, runs: Runs, arms: Sequence[str]) -> tuple[Chart, PhaseAxis] | None:
    lines = list[Series]()
    for arm in arms:
        values: dict[int, list[float]] = {}
        for seed in seeds_of(runs, [arm]):
            for step, value in runs[arm, seed].curves.get(name, ()):
                values.setdefault(step, []).append(value)
        points = tuple((step, fmean(own)) for step, own in sorted(values.items()))
        lines += [Series(arm, points)] if points else []
    steps = [step for line in lines for step, _ in line.points]
    chart = Chart(name, "by step, a line for each arm: the mean over seeds", lines, "number")
    return (chart, plain_axis(steps, "step")) if steps else None
