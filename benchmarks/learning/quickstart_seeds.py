"""Do three agents learn? Complete runs over fixed seeds, with and without informative votes.

For every seed and arm: `debate-train` from random weights through warm-start and self-play.

- `peers`: recipes/quickstart_three.yaml as it ships.
- `shuffled`: the same, each question's vote values permuted among its agents (the control).
- `mixed`: recipes/papers/quickstart_mixed.yaml, 0.7 peers and 0.3 truth.

Each seed has its own initial weights, training questions and held-out questions (`data.seed`), so
the spread over seeds holds the noise of training and that of the test questions. The arithmetics
are code paths of the numeric libraries that round differently, as other processors do: `native`
is what the processor offers, `plain` has no vector instructions in torch and MKL's compatible path.

A run that missed an exit criterion counts as gain 0. Runs that are done are not repeated. Prints
one JSON line a run, one for each comparison, and a Markdown table:

    python -m benchmarks.learning.quickstart_seeds --output runs/seeds --jobs 2
    python -m benchmarks.learning.quickstart_seeds --seeds 0 1 2 --arms peers shuffled \
        --arithmetics native plain --output runs/arithmetics
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

SEEDS = (0, 1, 2, 3, 4)
ARITHMETICS: Mapping[str, Mapping[str, str]] = {
    "native": {},
    "plain": {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"},
}
ARMS: Mapping[str, tuple[str, ...]] = {
    "peers": ("recipes/quickstart_three.yaml",),
    "shuffled": (
        "recipes/quickstart_three.yaml",
        "reward.type=v2_control",
        "reward.shuffle_votes=true",
    ),
    "mixed": ("recipes/papers/quickstart_mixed.yaml",),
}
MEASURES = {
    "direct": "eval/direct/accuracy",
    "majority": "eval/majority/accuracy",
    "peer vote": "eval/peer_vote/accuracy",
    "judge": "eval/judge/accuracy",
    "format": "eval/format",
}


@dataclass(frozen=True, slots=True)
class Job:
    """One complete run."""

    arithmetic: str
    arm: str
    seed: int

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.arm}-{self.seed}-{self.arithmetic}"


def one_run(job: Job, root: Path) -> dict[str, Any]:
    """Do one run, unless it is already done; return its line."""
    output = root / job.name
    results = output / "results.json"
    if not results.is_file():
        seeds = [f"seed={job.seed}", f"data.seed={job.seed}"]
        command = [sys.executable, "-m", "debate_train", *ARMS[job.arm], *seeds]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
        started = time.perf_counter()
        with (root / f"{job.name}.log").open("w", encoding="utf-8") as file:
            subprocess.run(
                [*command, "--output", str(output)],
                stdout=file,
                stderr=subprocess.STDOUT,
                check=True,
                env=environment | ARITHMETICS[job.arithmetic],
            )
        (output / "wall_s").write_text(str(time.perf_counter() - started), encoding="utf-8")
    found = json.loads(results.read_text(encoding="utf-8"))
    is_met = all(found["exit_criteria"].values())
    line = asdict(job) | {"criterion_met": is_met, "steps": found["steps"]}
    for name, key in MEASURES.items():
        before, after = found["before"][key]["mean"], found["after"][key]["mean"]
        line[name] = [round(before, 6), round(after, 6)]
        line[f"{name} gain"] = round(after - before, 6) if is_met else 0.0
    line["wall_s"] = round(float((output / "wall_s").read_text(encoding="utf-8")), 1)
    return line


def summary(name: str, gains: Sequence[float]) -> dict[str, Any]:
    """Return mean, range and standard error of the mean over seeds."""
    error = stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else float("nan")
    return {
        "compared": name,
        "gains": [round(g, 6) for g in gains],
        "mean": round(fmean(gains), 6),
        "lowest": round(min(gains), 6),
        "highest": round(max(gains), 6),
        "standard_error": round(error, 6),
    }


def summaries(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compare each arm with its start and with the control, for each arithmetic."""
    gains: dict[tuple[str, str], list[float]] = {}
    for line in lines:
        gains.setdefault((line["arithmetic"], line["arm"]), []).append(line["direct gain"])
    found = [
        summary(f"{arm} ({arithmetic}): gain over the start", own)
        for (arithmetic, arm), own in gains.items()
    ]
    for (arithmetic, arm), own in gains.items():
        control = gains.get((arithmetic, "shuffled"))
        if arm != "shuffled" and control is not None:
            over = [a - b for a, b in zip(own, control, strict=True)]
            found.append(summary(f"{arm} ({arithmetic}): gain over the shuffled control", over))
    return found


def markdown(lines: Sequence[Mapping[str, Any]], compared: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables of recipes/README.md."""
    rows = [
        "| arithmetic | arm | seed | exit criterion | " + " | ".join(MEASURES) + " | direct gain |"
    ]
    rows.append("|---|---|---|---|" + "---|" * (len(MEASURES) + 1))
    for line in lines:
        cells = [f"{line[m][0]:.3f} → {line[m][1]:.3f}" for m in MEASURES]
        cells += [f"{line['direct gain']:+.3f}"]
        head = (line["arithmetic"], line["arm"], line["seed"])
        criterion = "met" if line["criterion_met"] else "missed"
        rows.append(f"| {' | '.join(map(str, (*head, criterion, *cells)))} |")
    rows += ["", "| compared | mean | lowest to highest | standard error | all seeds |"]
    rows.append("|---|---|---|---|---|")
    for s in compared:
        gains = ", ".join(f"{g:+.3f}" for g in s["gains"])
        between = f"{s['lowest']:+.3f} to {s['highest']:+.3f}"
        error = f"{s['standard_error']:.3f}"
        rows.append(f"| {s['compared']} | {s['mean']:+.3f} | {between} | {error} | {gains} |")
    return "\n".join(rows)


def main() -> None:
    """Do the runs that are missing and print lines, comparisons and tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("runs/seeds"))
    parser.add_argument("--jobs", type=int, default=2, help="runs at once, one thread each")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--arithmetics", nargs="+", choices=list(ARITHMETICS), default=["native"])
    chosen = parser.parse_args()
    chosen.output.mkdir(parents=True, exist_ok=True)
    jobs = [
        Job(arithmetic, arm, seed)
        for arithmetic in chosen.arithmetics
        for seed in chosen.seeds
        for arm in chosen.arms
    ]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        lines = list(pool.map(lambda job: one_run(job, chosen.output), jobs))
    arms, arithmetics = list(ARMS), list(ARITHMETICS)
    lines.sort(key=lambda line: (arithmetics.index(line["arithmetic"]), arms.index(line["arm"])))
    compared = summaries(lines)
    for printed in (*lines, *compared):
        print(json.dumps(printed))
    print(markdown(lines, compared))


if __name__ == "__main__":
    main()
