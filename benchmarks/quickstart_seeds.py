"""Does the quickstart learn? Complete runs over fixed seeds, with and without informative votes.

For every seed and arm: `debate-train` from random weights through warm-start and self-play.

- `peers`: the quickstart as it ships.
- `shuffled`: the same, each question's vote values permuted among its agents (the control).
- `mixed`: recipes/quickstart_mixed.yaml, 0.7 peers and 0.3 truth.

A run whose gate stayed shut counts as gain 0. Prints one JSON line a run, one for each arm and
comparison, and a Markdown table:

    python benchmarks/quickstart_seeds.py --output runs/seeds --jobs 2
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

SEEDS = (0, 1, 2, 3, 4)
ARMS: Mapping[str, tuple[str, ...]] = {
    "peers": ("recipes/quickstart.yaml",),
    "shuffled": ("recipes/quickstart.yaml", "reward.shuffle_votes=true"),
    "mixed": ("recipes/quickstart_mixed.yaml",),
}
MEASURES = {
    "direct": "eval/direct/accuracy",
    "majority": "eval/majority/accuracy",
    "peer vote": "eval/peer_vote/accuracy",
    "judge": "eval/judge/accuracy",
    "format": "eval/format",
}


def one_run(arm: str, seed: int, root: Path) -> dict[str, Any]:
    """Run one arm with one seed, unless it is already done; return its line."""
    output = root / f"{arm}-{seed}"
    results = output / "results.json"
    if not results.is_file():
        command = [sys.executable, "-m", "debate_train.cli", *ARMS[arm], f"seed={seed}"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
        log = root / f"{arm}-{seed}.log"
        started = time.perf_counter()
        with log.open("w", encoding="utf-8") as file:
            subprocess.run(
                [*command, "--output", str(output)],
                stdout=file,
                stderr=subprocess.STDOUT,
                check=True,
                env=environment,
            )
        (output / "wall_s").write_text(str(time.perf_counter() - started), encoding="utf-8")
    found = json.loads(results.read_text(encoding="utf-8"))
    opened = all(found["gates"].values())
    line: dict[str, Any] = {"arm": arm, "seed": seed, "gate_open": opened, "steps": found["steps"]}
    for name, key in MEASURES.items():
        before, after = found["before"][key]["mean"], found["after"][key]["mean"]
        line[name] = [round(before, 6), round(after, 6)]
        line[f"{name} gain"] = round(after - before, 6) if opened else 0.0
    line["wall_s"] = round(float((output / "wall_s").read_text(encoding="utf-8")), 1)
    return line


def summary(name: str, gains: Sequence[float]) -> dict[str, Any]:
    """Return mean and standard error over seeds."""
    error = stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else float("nan")
    return {
        "compared": name,
        "gains": [round(g, 6) for g in gains],
        "mean": round(fmean(gains), 6),
        "standard_error": round(error, 6),
        "standard_errors": round(fmean(gains) / error, 2) if error > 0 else None,
    }


def markdown(lines: Sequence[Mapping[str, Any]], summaries: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables of recipes/README.md."""
    rows = ["| arm | seed | gate | " + " | ".join(MEASURES) + " | direct gain |"]
    rows.append("|---|---|---|" + "---|" * (len(MEASURES) + 1))
    for line in lines:
        cells = (f"{line[m][0]:.3f} → {line[m][1]:.3f}" for m in MEASURES)
        gate = "open" if line["gate_open"] else "shut"
        gain = f"{line['direct gain']:+.3f}"
        rows.append(f"| {line['arm']} | {line['seed']} | {gate} | {' | '.join(cells)} | {gain} |")
    rows += ["", "| compared | mean | standard error | all seeds |", "|---|---|---|---|"]
    for s in summaries:
        gains = ", ".join(f"{g:+.3f}" for g in s["gains"])
        rows.append(f"| {s['compared']} | {s['mean']:+.3f} | {s['standard_error']:.3f} | {gains} |")
    return "\n".join(rows)


def main() -> None:
    """Run what is missing and print lines, comparisons and tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("runs/seeds"))
    parser.add_argument("--jobs", type=int, default=2, help="runs at once, one thread each")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    work = [(arm, seed) for seed in SEEDS for arm in arguments.arms]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        lines = list(pool.map(lambda job: one_run(*job, arguments.output), work))
    lines.sort(key=lambda line: (list(ARMS).index(line["arm"]), line["seed"]))
    for line in lines:
        print(json.dumps(line))
    gains = {
        arm: [line["direct gain"] for line in lines if line["arm"] == arm] for arm in arguments.arms
    }
    summaries = [summary(f"{arm}: gain over the start", own) for arm, own in gains.items()]
    for arm in gains:
        if arm != "shuffled" and "shuffled" in gains:
            over = [a - b for a, b in zip(gains[arm], gains["shuffled"], strict=True)]
            summaries.append(summary(f"{arm}: gain over the shuffled control", over))
    for found in summaries:
        print(json.dumps(found))
    print(markdown(lines, summaries))


if __name__ == "__main__":
    main()
