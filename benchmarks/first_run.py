"""How long does a stranger's first run take, beside an earlier commit whose run began from nothing?

Three runs by turns, each a `debate-train` process of its own with two threads and without W&B,
set-up left out: the quickstart as it is, the earlier commit's quickstart, and `from_nothing`, which
is the same work as the earlier one. Ratios are of wall time, this commit's over the earlier one's:

- `whole`: from the command to the report. The quickstart makes 75 steps of self-play, the earlier
  one 150;
- `self_play_step`: a step of self-play, which is the same work;
- `from_nothing`: from random weights to the report. Runs with other digits may imitate for another
  number of steps until the exit criterion is met; `settings` has the steps of both.

    python -m benchmarks.first_run --before b2e1b730
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.answers.builds import ROOT, earlier_build
from benchmarks.measurement import print_line

SELF_PLAY_PHASES = ("self_play", "train")


@dataclass(frozen=True, slots=True)
class TimedRun:
    """Wall time of one run.

    Attributes:
        seconds: From the command to the report.
        self_play_seconds: Of a step of self-play.
        num_steps: Of all phases.
    """

    seconds: float
    self_play_seconds: float
    num_steps: int


def time_run(repository: Path, recipe: str, folder: Path) -> TimedRun:
    """Train a recipe with the packages of a repository, in a folder that does not exist yet."""
    package_folders = sorted(map(str, repository.glob("packages/*/src")))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(package_folders),
        "OMP_NUM_THREADS": "2",
    }
    command = [sys.executable, "-m", "debate_train", str(repository / "recipes" / recipe)]
    command += ["tracking.wandb=false", "--output", str(folder)]
    with folder.with_suffix(".log").open("w") as log:
        start = time.perf_counter()
        outputs = {"stdout": log, "stderr": subprocess.STDOUT}
        subprocess.run(command, cwd=repository, env=environment, check=True, **outputs)
        seconds = time.perf_counter() - start
    results = json.loads((folder / "results.json").read_text())
    (phase,) = set(SELF_PLAY_PHASES) & set(results["seconds"])
    metrics = (folder / "metrics.jsonl").read_text().splitlines()
    num_steps = sum(is_step_of(json.loads(line), phase) for line in metrics)
    return TimedRun(seconds, results["seconds"][phase] / num_steps, results["steps"])


def is_step_of(row: Mapping[str, object], phase: str) -> bool:
    """Whether a row of metrics is a training step of this phase."""
    return row.get("phase") == phase and "time/step_s" in row


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", metavar="COMMIT", default="b2e1b730")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--quickstart-alone", action="store_true", help="leave out from_nothing")
    options = parser.parse_args()
    commands = [
        ("quickstart", "quickstart.yaml"),
        ("before", "quickstart.yaml"),
        ("from_nothing", "from_nothing.yaml"),
    ]
    if options.quickstart_alone:
        commands.pop()
    ratios: dict[str, list[float]] = defaultdict(list)
    steps: dict[str, list[int]] = defaultdict(list)
    with earlier_build(options.before) as earlier, tempfile.TemporaryDirectory() as runs:
        for repeat in range(options.repeats):
            timed: dict[str, TimedRun] = {}
            for name, recipe in commands:
                repository = earlier if name == "before" else ROOT
                folder = Path(runs) / f"{name}-{repeat}"
                timed[name] = time_run(repository, recipe, folder)
                steps[name].append(timed[name].num_steps)
                print(name, timed[name], file=sys.stderr, flush=True)
            ours, before = timed["quickstart"], timed["before"]
            ratios["whole"].append(ours.seconds / before.seconds)
            step_ratio = ours.self_play_seconds / before.self_play_seconds
            ratios["self_play_step"].append(step_ratio)
            if "from_nothing" in timed:
                ratios["from_nothing"].append(timed["from_nothing"].seconds / before.seconds)
    described = {"before": options.before, "threads": 2, "steps": steps, "clock": "wall time"}
    for name, values in ratios.items():
        packages = ("debate-train", "debate-rollout", "torch", "transformers")
        print_line(f"first_run/{name}", values, "ratio", "lower", described, packages)


if __name__ == "__main__":
    main()
