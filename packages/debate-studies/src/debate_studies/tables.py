"""Tables and a plot of a study: means over seeds with intervals, and differences paired by seed.

Intervals are Student's t, 95 %, over seeds; p is the two-sided t test of a mean difference of 0, of
each figure alone. `debate-study FILE --tables` prints them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean

from debate_report.timeline import Axis, tick_text, ticks
from debate_studies.lines import (
    Finished,
    Runs,
    interval,
    seeds_of,
    with_interval,
)
from debate_studies.study_file import BEFORE, Compared, Study
from debate_train.checkpoints.whole_files import write_whole
from debate_train.recipe.files import opening

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")
WIDTH, LEFT, RIGHT = 760, 250, 740
ROW, HEAD, FOOT, CURVES = 26, 34, 34, 240
_MARKS = 5


@dataclass(frozen=True, slots=True)
class Dots:
    """How a measure changed: of each arm the change of every seed, and the band of the mean."""

    title: str
    arms: Mapping[str, tuple[Sequence[float], tuple[float, float] | None]]

    @property
    def height(self) -> int:
        """Pixels of the panel."""
        return HEAD + ROW * len(self.arms) + FOOT

    def draw(self, top: int) -> list[str]:
        """Return what stands at `top`: a row for each arm, 0 as a line."""
        ends = [0.0]
        for values, band in self.arms.values():
            ends += [*values, *(band or ())]
        axis = Axis(*_roomy(ends), LEFT, RIGHT)
        bottom = top + self.height - FOOT
        drawn = [_text(10, top + 20, self.title, weight="bold")]
        marks = ticks(axis.low, axis.high, _MARKS)
        for mark in marks:
            x, colour = axis.at(mark), "#888888" if mark == 0 else "#dddddd"
            drawn.append(f'<path d="M{x} {top + HEAD}V{bottom}" stroke="{colour}"/>')
            drawn.append(_text(x, bottom + 16, tick_text(mark, marks, "number"), anchor="middle"))
        for place, (arm, (values, band)) in enumerate(self.arms.items()):
            y, colour = top + HEAD + ROW * (place + 0.5), COLOURS[place % len(COLOURS)]
            drawn.append(_text(LEFT - 12, y + 4, arm, anchor="end"))
            if band is not None:
                low, high = map(axis.at, band)
                line = f'<path d="M{low} {y + 6}H{high}" stroke="{colour}" stroke-width="3"/>'
                drawn.append(line)
            for value in values:
                dot = f'<circle cx="{axis.at(value)}" cy="{y - 3}" r="4" fill="{colour}"'
                drawn.append(f'{dot} fill-opacity=".7"/>')
        return drawn


@dataclass(frozen=True, slots=True)
class Curves:
    """A measure by step: of each arm a line for every seed, each of points (step, value)."""

    title: str
    arms: Mapping[str, Sequence[Sequence[Sequence[float]]]]

    @property
    def height(self) -> int:
        """Pixels of the panel."""
        return HEAD + max(CURVES, 18 * len(self.arms)) + FOOT

    def draw(self, top: int) -> list[str]:
        """Return what stands at `top`: the names of the arms, and their lines."""
        points = [point for lines in self.arms.values() for line in lines for point in line]
        across = Axis(0.0, max([step for step, _ in points], default=1.0), LEFT, RIGHT)
        bottom = top + self.height - FOOT
        up = Axis(*_roomy([value for _, value in points] or [0.0]), bottom, top + HEAD)
        drawn = _heights(self.title, top, up)
        steps = ticks(0.0, across.high, _MARKS, whole=True)
        for step in steps:
            label = tick_text(step, steps, "count")
            drawn.append(_text(across.at(step), bottom + 16, label, anchor="middle"))
        for place, (arm, lines) in enumerate(self.arms.items()):
            colour = COLOURS[place % len(COLOURS)]
            drawn.append(_text(10, top + HEAD + 18 * place + 12, arm, colour=colour))
            for line in lines:
                path = " ".join(f"{across.at(step)},{up.at(value)}" for step, value in line)
                drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
        return drawn


def plot(panels: Sequence[Dots | Curves]) -> str:
    """Return an SVG image of panels, one below the other."""
    drawn, top = list[str](), 0
    for panel in panels:
        drawn += panel.draw(top)
        top += panel.height
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}">'
    paper = f'<rect width="{WIDTH}" height="{top}" fill="white"/>'
    return "\n".join([head, paper, *drawn, "</svg>"]) + "\n"


def _heights(title: str, top: int, up: Axis) -> list[str]:
    """Return a title, and what stands at the left: numbers with lines, that of 0 a darker one."""
    drawn = [_text(10, top + 20, title, weight="bold")]
    marks = ticks(up.low, up.high, _MARKS)
    for mark in marks:
        y, colour = up.at(mark), "#888888" if mark == 0 else "#dddddd"
        drawn.append(f'<path d="M{LEFT} {y}H{RIGHT}" stroke="{colour}"/>')
        drawn.append(_text(LEFT - 8, y + 4, tick_text(mark, marks, "number"), anchor="end"))
    return drawn


def _roomy(values: Sequence[float]) -> tuple[float, float]:
    """Return ends that leave a little room around values."""
    low, high = min(values), max(values)
    room = 0.05 * ((high - low) or 1.0)
    return low - room, high + room


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    colour: str = "#222222",
    weight: str = "normal",
) -> str:
    style = f'font-size="13" font-family="sans-serif" font-weight="{weight}"'
    place = f'x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}"'
    return f"<text {place} {style}>{escape(text)}</text>"


def tables(study: Study, lines: Sequence[Finished], image: Path) -> list[str]:
    """Return the study's tables as Markdown, and write its plot where there is one.

    Args:
        study: What was run.
        lines: The finished runs, at least one.
        image: Where the plot goes.
    """
    runs: Runs = {(run.arm, run.seed): run for run in lines if run.arm in study.arms_of(run.seed)}
    arms = [name for name in study.arms if any(arm == name for arm, _ in runs)]
    found = [
        *_levels(study, runs, arms),
        "",
        *_compared(study, runs),
        "",
        *_each(study, runs, arms),
    ]
    if any(run.curves for run in lines):
        found += ["", *_falls(study, runs, arms)]
    if any(run.warnings for run in lines):
        found += ["", *_warnings(runs, arms)]
    if study.plot:
        image.parent.mkdir(parents=True, exist_ok=True)
        write_whole(image, _plot(study, runs, arms).encode())
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


def _head(*cells: str) -> list[str]:
    return [f"| {' | '.join(cells)} |", "|---" * len(cells) + "|"]


def _levels(study: Study, runs: Runs, arms: Sequence[str]) -> list[str]:
    """Mean over seeds before and after, and half the interval of the gain, for each arm."""
    rows = _head("arm", "seeds", "criterion missed", *study.measures)
    for arm in arms:
        own = [runs[arm, seed] for seed in seeds_of(runs, [arm])]
        missed = sum(not run.start_met for run in own)
        before, after, cells = [run.before for run in own], [run.after for run in own], []
        for name in study.measures:
            sides = [[one[name] for one in side if name in one] for side in (before, after)]
            means = " → ".join(f"{fmean(side):.3f}" if side else "–" for side in sides)
            gained = differences(runs, Compared(arm=arm, measures=(name,)), name)
            half = interval([*gained.values()] or [0.0])[2]
            cells.append(means if half is None else f"{means} ± {half:.3f}")
        rows.append(f"| {arm} | {len(own)} | {missed} | {' | '.join(cells)} |")
    return rows


def differences(runs: Runs, one: Compared, measure: str) -> dict[int, float]:
    """Return the difference of each seed that has both sides."""
    found = {}
    for seed in seeds_of(runs, [one.arm]):
        run, other = runs[one.arm, seed], runs.get((one.over, seed))
        base = run.before if one.over == BEFORE else other.after if other else None
        if base is None:
            continue
        if measure in run.after and measure in base:
            found[seed] = run.after[measure] - base[measure]
        elif not run.start_met and (other is None or not other.start_met):
            # A start may measure less than its arms.
            found[seed] = 0.0
    return found


def _compared(study: Study, runs: Runs) -> list[str]:
    """What was to be compared, with interval and test."""
    rows = _head("compared", "measure", "seeds", "mean [95 %]", "standard error", "range", "p")
    for one in study.compared:
        for measure in one.measures:
            values = list(differences(runs, one, measure).values())
            if not values:
                continue
            _, error, _, p = interval(values)
            between = f"{one.arm} − {one.over}"
            cells = [between, measure, str(len(values)), with_interval(values)]
            cells += [
                "–" if p is None else f"{error:.3f}",
                f"{min(values):+.3f} to {max(values):+.3f}",
            ]
            rows.append(f"| {' | '.join(cells)} | {'–' if p is None else f'{p:.2g}'} |")
    return rows


def _each(study: Study, runs: Runs, arms: Sequence[str]) -> list[str]:
    """All runs."""
    rows = _head("arm", "seed", "criterion", *study.measures)
    for arm in arms:
        for seed in seeds_of(runs, [arm]):
            run = runs[arm, seed]
            cells = []
            for name in study.measures:
                sides = [side.get(name) for side in (run.before, run.after)]
                cells.append(" → ".join("–" if v is None else f"{v:.3f}" for v in sides))
            met = "met" if run.start_met else "missed"
            rows.append(f"| {arm} | {seed} | {met} | {' | '.join(cells)} |")
    return rows


def fall(points: Sequence[Sequence[float]], bound: float) -> float | None:
    """Return the first step from which a curve stays more than `bound` below its first point."""
    if not points:
        return None
    found = None
    for step, value in points:
        is_below = value < points[0][1] - bound
        found = (step if found is None else found) if is_below else None
    return found


def _falls(study: Study, runs: Runs, arms: Sequence[str]) -> list[str]:
    """How high each curve rose and where it ended, and in how many seeds it fell for good."""
    fell_cell = "ended more than .05 below the first"
    rows = _head("arm", "curve", "first", "highest", "last", "mean", fell_cell)
    for arm in arms:
        own = [runs[arm, seed] for seed in seeds_of(runs, [arm])]
        for name in study.curves:
            curves = [points for run in own if (points := run.curves.get(name))]
            if not curves:
                continue
            first = fmean(points[0][1] for points in curves)
            top = fmean(max(value for _, value in points) for points in curves)
            last = fmean(points[-1][1] for points in curves)
            mean = fmean(fmean(value for _, value in points) for points in curves)
            fell = [step for points in curves if (step := fall(points, 0.05)) is not None]
            where = f"{len(fell)} of {len(curves)}"
            where += f", from step {min(fell):g} to {max(fell):g}" if fell else ""
            cells = " | ".join(f"{value:.3f}" for value in (first, top, last, mean))
            rows.append(f"| {arm} | {name} | {cells} | {where} |")
    return rows


def _warnings(runs: Runs, arms: Sequence[str]) -> list[str]:
    """What the health watch warned of, in how many runs and from which steps on."""
    rows = _head("arm", "the watch warned of", "runs", "first at step")
    for arm in arms:
        lines = [runs[arm, seed] for seed in seeds_of(runs, [arm])]
        own = [run.warnings for run in lines if run.warnings is not None]
        if not own:
            continue
        for name in sorted({name for warnings in own for name in warnings}):
            steps = [warnings[name] for warnings in own if name in warnings]
            where = f"{min(steps)} to {max(steps)}"
            rows.append(f"| {arm} | {name} | {len(steps)} of {len(own)} | {where} |")
        silent = sum(not warnings for warnings in own)
        rows.append(f"| {arm} | nothing | {silent} of {len(own)} | |")
    return rows


def _plot(study: Study, runs: Runs, arms: Sequence[str]) -> str:
    """A panel for each measure (change by arm, a dot a seed) or curve (a line)."""
    panels: list[Dots | Curves] = []
    for name in study.plot:
        if name in study.curves:
            lines = {
                arm: [runs[arm, seed].curves.get(name, ()) for seed in seeds_of(runs, [arm])]
                for arm in arms
            }
            panels.append(Curves(f"{name} by step, a line for each seed", lines))
        else:
            gained = {arm: Compared(arm=arm, measures=(name,)) for arm in arms}
            own = {arm: [*differences(runs, g, name).values()] for arm, g in gained.items()}
            title = f"{name}: after minus before, a dot for each seed, 95 % interval of the mean"
            panels.append(Dots(title, {arm: (each, _ends(each)) for arm, each in own.items()}))
    return plot(panels)


def _ends(values: Sequence[float]) -> tuple[float, float] | None:
    mean, _, half, _ = interval(values) if values else (0.0, 0.0, None, None)
    return None if half is None else (mean - half, mean + half)
