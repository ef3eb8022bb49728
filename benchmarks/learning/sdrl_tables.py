"""Tables and a plot of benchmarks/data/sdrl_study.jsonl, for docs/self-debate.md.

python -m benchmarks.learning.sdrl_tables > tables.md
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/data/sdrl_study.jsonl"
PLOT = ROOT / "docs/sdrl_study.svg"
ARMS = ("start", "dapo", "rand", "freq")
STEPS = "dapo_steps"
QUANTILE = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t, two-sided 95 %, by the number of seeds."""
DECIDING = {
    "second turns on prompts of training": "pairs freq, T=1, one agent",
    "Debate (all, N=5, T=2)": "all, N=5, T=2, majority",
    "single replies": "direct",
}
TOPOLOGIES, SIZES, ROUNDS = ("all", "sparse", "central"), (3, 5, 7), (1, 2, 3, 4)
Measures = Mapping[tuple[int, str], Mapping[str, float]]


def read() -> list[dict[str, Any]]:
    """Return the lines of the study."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()]


def complete(found: Measures) -> list[int]:
    """Return the seeds of which all arms are measured."""
    wanted = (*ARMS, STEPS)
    return [s for s in sorted({s for s, _ in found}) if all((s, arm) in found for arm in wanted)]


def with_interval(values: Sequence[float], sign: str = "") -> str:
    """Return the mean with its interval over seeds, in percent."""
    mean = 100 * fmean(values)
    if len(values) not in QUANTILE:
        return f"{mean:{sign}.1f}"
    half = 100 * QUANTILE[len(values)] * stdev(values) / math.sqrt(len(values))
    return f"{mean:{sign}.1f} ± {half:.1f}"


def deciding(found: Measures, seeds: Sequence[int], base: str) -> list[str]:
    """Return the table of what was to decide, beside DAPO at equal tokens or at equal steps."""
    rows = [f"| | arm | minus `{base}` | each seed |", "|---|---|---|---|"]
    for name, key in DECIDING.items():
        for arm in ("rand", "freq"):
            gains = [found[seed, arm][key] - found[seed, base][key] for seed in seeds]
            each = ", ".join(f"{100 * gain:+.1f}" for gain in gains)
            rows.append(f"| {name} | `{arm}` | {with_interval(gains, '+')} | {each} |")
    return rows


def levels(found: Measures, seeds: Sequence[int]) -> list[str]:
    """Return the table of what was to decide for each policy."""
    rows = ["| policy | " + " | ".join(DECIDING) + " |", "|---|" + "---|" * len(DECIDING)]
    for arm in (*ARMS, STEPS):
        own = [found[seed, arm] for seed in seeds]
        rows.append(
            f"| `{arm}` | " + " | ".join(mean(own, key) for key in DECIDING.values()) + " |"
        )
    return rows


def gains_of_debate(found: Measures, seeds: Sequence[int]) -> list[str]:
    """Return the table of Δ, means over T = 1 … 4, and how far an arm's is above that of `dapo`."""
    arms = " | ".join(f"`{arm}`" for arm in ARMS)
    rows = [f"| mean Δ | {arms} | `rand` minus `dapo` | `freq` minus `dapo` |"]
    rows.append("|---|" + "---|" * (len(ARMS) + 2))
    for topology in TOPOLOGIES:
        for size in SIZES:
            name = f"{topology}, N={size}"
            if name == "sparse, N=3":
                continue  # Of three agents each hears two others: it is `all, N=3`.

            def delta(seed: int, arm: str, name: str = name) -> float:
                own = found[seed, arm]
                last = fmean(own[f"{name}, T={t}, majority"] for t in ROUNDS)
                return last - own[f"{name}, T=0, majority"]

            cells = [with_interval([delta(seed, arm) for seed in seeds], "+") for arm in ARMS]
            for arm in ("rand", "freq"):
                above = [delta(seed, arm) - delta(seed, "dapo") for seed in seeds]
                cells.append(with_interval(above, "+"))
            rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


def one_round(found: Measures, seeds: Sequence[int]) -> list[str]:
    """Return the table of what a majority and one round add, all and N = 5, at equal steps too."""
    each = "all, N=5, T={}, {}"
    gains = {
        "Maj − one agent": (each.format(0, "majority"), each.format(0, "one agent")),
        "Δ": (each.format(1, "majority"), each.format(0, "majority")),
        "drift of one agent": (each.format(1, "one agent"), each.format(0, "one agent")),
        "second − first turns of training": (
            "pairs freq, T=1, one agent",
            "pairs freq, T=0, one agent",
        ),
    }
    rows = [f"| policy | {' | '.join(gains)} |", "|---|" + "---|" * len(gains)]
    for arm, base in [*((arm, None) for arm in (*ARMS, STEPS)), ("rand", STEPS), ("freq", STEPS)]:
        cells = []
        for after, before in gains.values():
            own = [found[s, arm][after] - found[s, arm][before] for s in seeds]
            if base is not None:
                other = [found[s, base][after] - found[s, base][before] for s in seeds]
                own = [mine - theirs for mine, theirs in zip(own, other, strict=True)]
            cells.append(with_interval(own, "+"))
        name = f"`{arm}`" if base is None else f"`{arm}` minus `{base}`"
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


def votes(found: Measures, seeds: Sequence[int]) -> list[str]:
    """Return the table of how often votes on a right and a wrong answer are right."""
    keys = {f"N={size}, T={t}": f"all, N={size}, T={t}, judge" for size in SIZES for t in (1, 4)}
    keys["pairs"] = "pairs freq, T=1, judge"
    rows = [f"| right votes | {' | '.join(keys)} |", "|---|" + "---|" * len(keys)]
    for arm in ARMS:
        own = [found[seed, arm] for seed in seeds]
        rows.append(f"| `{arm}` | {' | '.join(mean(own, key) for key in keys.values())} |")
    return rows


def all_debates(found: Measures, seeds: Sequence[int]) -> list[str]:
    """Return the table of all debates: Maj, then Δ and the peers' vote by rounds of debate."""
    rounds = (
        " | ".join(f"Δ T={t}" for t in ROUNDS) + " | " + " | ".join(f"vote T={t}" for t in ROUNDS)
    )
    rows = [f"| | policy | Maj | {rounds} |", "|---|---|---|" + "---|" * 2 * len(ROUNDS)]
    for topology in TOPOLOGIES:
        for size in SIZES:
            name = f"{topology}, N={size}"
            if name == "sparse, N=3":
                continue  # It is `all, N=3`.
            for arm in ARMS:
                own = [found[seed, arm] for seed in seeds]
                maj = f"{name}, T=0, majority"
                cells = [mean(own, maj)]
                for t in ROUNDS:
                    gains = [m[f"{name}, T={t}, majority"] - m[maj] for m in own]
                    cells.append(with_interval(gains, "+"))
                cells += [mean(own, f"{name}, T={t}, peer vote") for t in ROUNDS]
                rows.append(f"| {name} | `{arm}` | {' | '.join(cells)} |")
    return rows


def centers(found: Measures, seeds: Sequence[int]) -> list[str]:
    """Return the table of the center's own answers by round, of debates through a center."""
    rows = ["| | policy | " + " | ".join(f"T={t}" for t in (0, *ROUNDS)) + " |"]
    rows.append("|---|---|" + "---|" * (1 + len(ROUNDS)))
    for size in SIZES:
        for arm in ARMS:
            own = [found[seed, arm] for seed in seeds]
            each = [mean(own, f"central, N={size}, T={t}, center") for t in (0, *ROUNDS)]
            rows.append(f"| central, N={size} | `{arm}` | {' | '.join(each)} |")
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
    """Print the tables and write the plot."""
    lines = read()
    found = {(line["seed"], line["arm"]): line["measures"] for line in lines}
    seeds = complete(found)
    print(f"seeds {', '.join(map(str, seeds))}; percent\n")
    for arm in (*ARMS[1:], STEPS):
        own = [line for line in lines if line["arm"] == arm and line["seed"] in seeds]
        steps, tokens = ([line[name] for line in own] for name in ("steps", "sampled_tokens"))
        print(f"{arm}: steps {steps}, sampled tokens {tokens}")
    for rows in (
        levels(found, seeds),
        deciding(found, seeds, "dapo"),
        deciding(found, seeds, STEPS),
        gains_of_debate(found, seeds),
        one_round(found, seeds),
        votes(found, seeds),
        all_debates(found, seeds),
        centers(found, seeds),
    ):
        print("\n" + "\n".join(rows))
    PLOT.write_text(plot(found, seeds), encoding="utf-8")


if __name__ == "__main__":
    main()
