"""Tables and a plot of benchmarks/data/sdrl_study.jsonl, for docs/self-debate.md.

python benchmarks/sdrl_tables.py > tables.md
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/data/sdrl_study.jsonl"
PLOT = ROOT / "docs/sdrl_study.svg"
ARMS = ("start", "dapo", "rand", "freq")
QUANTILE = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t, two-sided 95 %, by the number of seeds."""
DECIDING = {
    "Debate (all, N=5, T=2)": "all, N=5, T=2, majority",
    "single replies": "direct",
    "second turns on prompts of training": "pairs freq, T=1, one agent",
}
ROWS = {
    "single replies": ("direct", None),
    "all, N=5, T=1": ("all, N=5, T=1", "all, N=5, T=0"),
    "all, N=5, T=2": ("all, N=5, T=2", "all, N=5, T=0"),
    "all, N=5, T=3": ("all, N=5, T=3", "all, N=5, T=0"),
    "all, N=5, T=4": ("all, N=5, T=4", "all, N=5, T=0"),
    "all, N=3, T=1": ("all, N=3, T=1", "all, N=3, T=0"),
    "all, N=7, T=1": ("all, N=7, T=1", "all, N=7, T=0"),
    "sparse, N=5, T=1": ("sparse, N=5, T=1", "sparse, N=5, T=0"),
    "sparse, N=5, T=2": ("sparse, N=5, T=2", "sparse, N=5, T=0"),
    "central, N=5, T=1": ("central, N=5, T=1", "central, N=5, T=0"),
    "central, N=5, T=2": ("central, N=5, T=2", "central, N=5, T=0"),
    "central, T=0, the center": ("central, N=5, T=0, center", None),
    "central, T=1, the center": ("central, N=5, T=1, center", None),
    "central, T=2, the center": ("central, N=5, T=2, center", None),
}
Measures = Mapping[tuple[int, str], Mapping[str, float]]


def read() -> dict[int, Measures]:
    """Return for each budget the figures by seed and arm, the start's among them."""
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    starts = {(one["seed"], one["arm"]): one["measures"] for one in lines if not one["budget"]}
    found: dict[int, dict[tuple[int, str], Mapping[str, float]]] = {}
    for line in lines:
        if line["budget"]:
            own = found.setdefault(line["budget"], dict(starts))
            own[line["seed"], line["arm"]] = line["measures"]
    return dict(sorted(found.items()))


def complete(found: Measures) -> list[int]:
    """Return the seeds of which all arms are measured."""
    return [seed for seed in sorted({s for s, _ in found}) if all((seed, a) in found for a in ARMS)]


def with_interval(values: Sequence[float], sign: str = "") -> str:
    """Return the mean with its interval over seeds, in percent."""
    mean = 100 * fmean(values)
    if len(values) not in QUANTILE:
        return f"{mean:{sign}.1f}"
    half = 100 * QUANTILE[len(values)] * stdev(values) / math.sqrt(len(values))
    return f"{mean:{sign}.1f} ± {half:.1f}"


def deciding(found: Measures, seeds: Sequence[int]) -> list[str]:
    """Return the table of what was to decide."""
    rows = ["| | arm | minus `dapo` | each seed |", "|---|---|---|---|"]
    for name, key in DECIDING.items():
        for arm in ("rand", "freq"):
            gains = [found[seed, arm][key] - found[seed, "dapo"][key] for seed in seeds]
            each = ", ".join(f"{100 * gain:+.1f}" for gain in gains)
            rows.append(f"| {name} | `{arm}` | {with_interval(gains, '+')} | {each} |")
    return rows


def all_figures(found: Measures, seeds: Sequence[int]) -> list[str]:
    """Return the table of all debates: Maj, Debate, Δ, and the peers' vote."""
    rows = [
        "| | policy | Maj | Debate | Δ | peer vote | one agent |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, (after, before) in ROWS.items():
        for arm in ARMS:
            own = [found[seed, arm] for seed in seeds]
            if before is None:
                rows.append(f"| {name} | `{arm}` | | | | | {mean(own, after)} |")
                continue
            change = [m[f"{after}, majority"] - m[f"{before}, majority"] for m in own]
            cells = [
                mean(own, f"{before}, majority"),
                mean(own, f"{after}, majority"),
                with_interval(change, "+"),
                mean(own, f"{after}, peer vote"),
                mean(own, f"{after}, one agent"),
            ]
            rows.append(f"| {name} | `{arm}` | {' | '.join(cells)} |")
    return rows


def mean(own: Sequence[Mapping[str, float]], key: str) -> str:
    """Return a figure's mean over seeds, in percent."""
    return f"{100 * fmean(measures[key] for measures in own):.1f}"


def plot(found: Measures, seeds: Sequence[int]) -> str:
    """Return Debate accuracy by round, all and N = 5: each seed thin, the mean thick."""
    colours = {"start": "#888888", "dapo": "#1f77b4", "rand": "#2ca02c", "freq": "#d62728"}
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 360" font-family="sans-serif">'
    ]
    lines.append('<rect width="640" height="360" fill="white"/>')
    for tenth in range(0, 11, 2):
        y = 320 - 28 * tenth
        lines.append(f'<path d="M60 {y}H520" stroke="#dddddd"/>')
        lines.append(
            f'<text x="52" y="{y + 4}" font-size="12" text-anchor="end">{tenth / 10}</text>'
        )
    for t in range(5):
        lines.append(f'<text x="{80 + 105 * t}" y="340" font-size="12">{t}</text>')
    lines.append('<text x="200" y="356" font-size="12">rounds of debate T (all, N = 5)</text>')
    for place, (arm, colour) in enumerate(colours.items()):
        curves = [
            [found[seed, arm][f"all, N=5, T={t}, majority"] for t in range(5)] for seed in seeds
        ]
        average = [fmean(column) for column in zip(*curves, strict=True)]
        for curve, width in [*((one, 0.6) for one in curves), (average, 3)]:
            points = " ".join(f"{84 + 105 * t},{320 - 280 * v:.1f}" for t, v in enumerate(curve))
            drawn = f'fill="none" stroke="{colour}" stroke-width="{width}"'
            lines.append(f'<polyline points="{points}" {drawn}/>')
        y = 60 + 24 * place
        lines.append(f'<text x="540" y="{y}" font-size="14" fill="{colour}">{arm}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> None:
    """Print the tables and write the plot, which is of the largest budget."""
    for budget, found in read().items():
        seeds = complete(found)
        print(f"\n{budget:,} sampled tokens, seeds {', '.join(map(str, seeds))}; percent\n")
        print("\n".join([*deciding(found, seeds), "", *all_figures(found, seeds)]))
        PLOT.write_text(plot(found, seeds), encoding="utf-8")


if __name__ == "__main__":
    main()
