"""Tables and a plot of a study: means over seeds with intervals, and differences paired by seed.

Intervals are Student's t, 95 %, over seeds; p is the two-sided t test of a mean difference of 0, of
each figure alone. `benchmarks/study.py FILE --tables` prints them.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from benchmarks.study_levels import level_tables

if TYPE_CHECKING:
    from benchmarks.study_file import Compared, Study

Runs = Mapping[tuple[str, int], Mapping[str, Any]]
LEVEL = 0.95
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")


def within(t: float, freedom: int) -> float:
    """Return P(|T| <= t) of Student's distribution.

    Source: Abramowitz and Stegun (1964), 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(freedom))
    total, term = 0.0, 1.0 if freedom % 2 == 0 else math.cos(angle)
    for k in range(2 if freedom % 2 == 0 else 3, freedom + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (k - 1) / k
    if freedom % 2 == 0:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + math.sin(angle) * total)


def quantile(freedom: int, level: float = LEVEL) -> float:
    """Return the t with P(|T| <= t) = level."""
    low, high = 0.0, 1e4
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle, freedom) < level else (low, middle)
    return high


def interval(values: Sequence[float]) -> tuple[float, float, float | None, float | None]:
    """Return mean, standard error, half width of the interval and p; None of one seed."""
    if len(values) < 2:
        return fmean(values), math.nan, None, None
    mean, error = fmean(values), stdev(values) / math.sqrt(len(values))
    half = quantile(len(values) - 1) * error
    p = 1 - within(abs(mean) / error, len(values) - 1) if error else float(mean == 0)
    return mean, error, half, p


def tables(study: "Study", lines: Sequence[Mapping[str, Any]], plot: Path) -> list[str]:
    """Return the study's tables as Markdown, and write its plot where there is one."""
    runs: Runs = {(line["arm"], line["seed"]): line for line in lines}
    arms = [name for name in study.arms if any(arm == name for arm, _ in runs)]
    if not arms:
        return ["no run is finished"]
    found = [
        *_levels(study, runs, arms),
        "",
        *_compared(study, runs),
        *level_tables(study, runs),
        "",
        *_each(study, runs, arms),
    ]
    if any("curves" in line for line in lines):
        found += ["", *_falls(study, runs, arms)]
    if study.plot:
        plot.parent.mkdir(parents=True, exist_ok=True)
        plot.write_text(_plot(study, runs, arms), encoding="utf-8")
    return found


def _seeds(runs: Runs, arm: str) -> list[int]:
    return sorted(seed for name, seed in runs if name == arm)


def _levels(study: "Study", runs: Runs, arms: Sequence[str]) -> list[str]:
    """Mean over seeds before and after, for each arm."""
    rows = ["| arm | seeds | criterion missed | " + " | ".join(study.measures) + " |"]
    rows.append("|---|---|---|" + "---|" * len(study.measures))
    for arm in arms:
        own = [runs[arm, seed] for seed in _seeds(runs, arm)]
        missed = sum(not line["start_met"] for line in own)
        cells = []
        for name in study.measures:
            sides = [
                [line[side][name] for line in own if name in line[side]]
                for side in ("before", "after")
            ]
            cells.append(" → ".join(f"{fmean(side):.3f}" if side else "–" for side in sides))
        rows.append(f"| {arm} | {len(own)} | {missed} | {' | '.join(cells)} |")
    return rows


def differences(runs: Runs, one: "Compared", measure: str) -> dict[int, float]:
    """Return the difference of each seed that has both sides."""
    found = {}
    for seed in _seeds(runs, one.arm):
        after = runs[one.arm, seed]["after"]
        base = runs[one.arm, seed]["before"] if one.over == "start" else None
        if base is None:
            base = runs.get((one.over, seed), {}).get("after", {})
        if measure in after and measure in base:
            found[seed] = after[measure] - base[measure]
    return found


def _compared(study: "Study", runs: Runs) -> list[str]:
    """What was to be compared, with interval and test."""
    rows = ["| compared | measure | seeds | mean [95 %] | standard error | range | p |"]
    rows.append("|---|---|---|---|---|---|---|")
    for one in study.compared:
        for measure in one.measures:
            values = list(differences(runs, one, measure).values())
            if not values:
                continue
            mean, error, half, p = interval(values)
            shown = f"{mean:+.3f}"
            if half is not None:
                shown += f" [{mean - half:+.3f}, {mean + half:+.3f}]"
            cells = [f"{one.arm} − {one.over}", measure, str(len(values)), shown]
            cells += [
                "–" if p is None else f"{error:.3f}",
                f"{min(values):+.3f} to {max(values):+.3f}",
            ]
            rows.append(f"| {' | '.join(cells)} | {'–' if p is None else f'{p:.2g}'} |")
    return rows


def _each(study: "Study", runs: Runs, arms: Sequence[str]) -> list[str]:
    """All runs."""
    rows = ["| arm | seed | criterion | " + " | ".join(study.measures) + " |"]
    rows.append("|---|---|---|" + "---|" * len(study.measures))
    for arm in arms:
        for seed in _seeds(runs, arm):
            line = runs[arm, seed]
            cells = []
            for name in study.measures:
                sides = [line[side].get(name) for side in ("before", "after")]
                cells.append(" → ".join("–" if v is None else f"{v:.3f}" for v in sides))
            met = "met" if line["start_met"] else "missed"
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


def _falls(study: "Study", runs: Runs, arms: Sequence[str]) -> list[str]:
    """How high each curve rose and where it ended, and in how many seeds it fell for good."""
    rows = ["| arm | curve | first | highest | last | ended more than .05 below the first |"]
    rows.append("|---|---|---|---|---|---|")
    for arm in arms:
        own = [runs[arm, seed] for seed in _seeds(runs, arm)]
        for name in study.curves:
            curves = [points for line in own if (points := line.get("curves", {}).get(name))]
            if not curves:
                continue
            first = fmean(points[0][1] for points in curves)
            top = fmean(max(value for _, value in points) for points in curves)
            last = fmean(points[-1][1] for points in curves)
            fell = [step for points in curves if (step := fall(points, 0.05)) is not None]
            where = f"{len(fell)} of {len(curves)}"
            where += f", from step {min(fell):g} to {max(fell):g}" if fell else ""
            rows.append(f"| {arm} | {name} | {first:.3f} | {top:.3f} | {last:.3f} | {where} |")
    return rows


def _plot(study: "Study", runs: Runs, arms: Sequence[str]) -> str:
    """A panel for each measure (change by arm, a dot a seed) or curve (a line a seed)."""
    height = 320 * len(study.plot) + 24 * len(arms) + 16
    drawn = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 680 {height}">']
    drawn.append(f'<rect width="680" height="{height}" fill="white"/>')
    for place, name in enumerate(study.plot):
        panel = _curves if name in study.curves else _dots
        drawn += panel(name, runs, arms, 320 * place)
    for place, arm in enumerate(arms):
        y = 320 * len(study.plot) + 24 * place + 16
        drawn.append(_text(60, y, arm, COLOURS[place % len(COLOURS)]))
    return "\n".join([*drawn, "</svg>"]) + "\n"


def _curves(name: str, runs: Runs, arms: Sequence[str], top: int) -> list[str]:
    found = {
        (arm, seed): runs[arm, seed].get("curves", {}).get(name, [])
        for arm in arms
        for seed in _seeds(runs, arm)
    }
    most = max((point[0] for points in found.values() for point in points), default=1)
    values = [value for points in found.values() for _, value in points] or [0.0]
    drawn = _frame(f"{name} by step (to {most:g})", min(values), max(values), top)
    for (arm, _), points in found.items():
        colour = COLOURS[arms.index(arm) % len(COLOURS)]
        path = " ".join(
            f"{60 + 580 * step / most:.1f},{_height(value, values, top):.1f}"
            for step, value in points
        )
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
    return drawn


def _dots(name: str, runs: Runs, arms: Sequence[str], top: int) -> list[str]:
    gains = {
        arm: [
            runs[arm, seed]["after"][name] - runs[arm, seed]["before"][name]
            for seed in _seeds(runs, arm)
            if name in runs[arm, seed]["after"] and name in runs[arm, seed]["before"]
        ]
        for arm in arms
    }
    values = [0.0, *(gain for own in gains.values() for gain in own)]
    drawn = _frame(f"{name}: after minus before, a dot a seed", min(values), max(values), top)
    zero = _height(0.0, values, top)
    drawn.append(f'<path d="M60 {zero:.1f}H640" stroke="#999999"/>')
    for place, arm in enumerate(arms):
        x, colour = 60 + 580 * (place + 0.5) / len(arms), COLOURS[place % len(COLOURS)]
        for gain in gains[arm]:
            y = _height(gain, values, top)
            drawn.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        if len(gains[arm]) > 1:
            mean, _, half, _ = interval(gains[arm])
            ends = (_height(mean + side * (half or 0), values, top) for side in (-1, 1))
            low, high = ends
            line = f"M{x + 12:.1f} {low:.1f}V{high:.1f}"
            drawn.append(f'<path d="{line}" stroke="{colour}" stroke-width="3"/>')
    return drawn


def _height(value: float, values: Sequence[float], top: int) -> float:
    low, high = min(values), max(values)
    return top + 290 - 250 * (value - low) / ((high - low) or 1)


def _frame(title: str, low: float, high: float, top: int) -> list[str]:
    drawn = [_text(60, top + 24, title, "#000000")]
    for share in (0, 0.5, 1):
        y = top + 290 - 250 * share
        drawn.append(f'<path d="M60 {y}H640" stroke="#dddddd"/>')
        drawn.append(_text(8, y + 4, f"{low + share * (high - low):.3f}", "#000000"))
    return drawn


def _text(x: float, y: float, text: str, colour: str) -> str:
    style = 'font-size="13" font-family="sans-serif"'
    return f'<text x="{x}" y="{y}" fill="{colour}" {style}>{text}</text>'
