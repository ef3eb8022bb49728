"""Which failures does the health watch notice? Runs that are made to fail, and runs that do well.

    python benchmarks/health_runs.py --output runs/health

- `good_0`, `good_1`: the quickstart with seeds 0 and 1; the first looks at the dev split, too.
- The others start where self-play of `good_0` started:
  `fast`: a learning rate ten times as large and no KL;
  `liars`: verdicts that name the wrong one of a right and a wrong answer nine times in ten.

Runs that are done are not repeated. Prints the alarms of each run, and writes what detectors read
of its last phase to `tests/train/health_rows/NAME.json`, rounded to four digits.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from debate_train.health.detectors import OWN
from debate_train.health.watch import alarms_of

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "train" / "health_rows"
GOOD = {"good_0": ("seed=0", "evaluation.every=10"), "good_1": ("seed=1",)}
BAD: Mapping[str, Sequence[str]] = {
    "fast": ("trainer.learning_rate=3e-3", "loss.kl.weight=0"),
    "liars": ("reward.votes_from={tpr: 0.1, fpr: 0.9}", "reward.consensus=none"),
}
READ = (
    *(model().metric for model in OWN),
    *("eval/direct/maj@4", "eval/start/learned/accuracy", "eval/start/opponent/accuracy"),
    *(f"judge/wins/agent_{agent}" for agent in range(3)),
    *("reward/total", "optim/grad_norm"),
)


def train(recipe: Path, output: Path, overrides: Sequence[str]) -> None:
    """Run `debate-train` unless that is done."""
    if not (output / "results.json").exists():
        program = [sys.executable, "-m", "debate_train", str(recipe), f"--output={output}"]
        subprocess.run([*program, *overrides], check=True, cwd=ROOT)


def self_play(output: Path, good: Path) -> Path:
    """Write the recipe of the quickstart's self-play from the weights that it started with."""
    recipe = yaml.safe_load((ROOT / "recipes" / "quickstart.yaml").read_text())
    del recipe["phases"]
    start = min((good / "checkpoints").glob("step-*"))
    recipe["model"] = {"type": "pretrained", "name": str(start.resolve()), "dtype": "float32"}
    recipe |= {"steps": 40, "evaluation": {"questions": 256, "every": 10}}
    path = output / "self_play.yaml"
    path.write_text("# The quickstart's self-play, from its start.\n" + yaml.safe_dump(recipe))
    return path


def keep(name: str, run: Path) -> None:
    """Print the alarms of a run, and keep what detectors read of its last phase."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    print(name, json.dumps(alarms_of(rows)))
    last = [row for row in rows if row["phase"] == rows[-1]["phase"]]
    columns = ["step", *(n for n in dict.fromkeys(READ) if any(n in row for row in last))]
    kept = [[_short(row.get(column)) for column in columns] for row in last]
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in [columns, *kept])
    FIXTURES.mkdir(exist_ok=True)
    (FIXTURES / f"{name}.json").write_text(f"[\n{lines}\n]\n")


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    """Run all, one after the other."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "health")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    for name, overrides in GOOD.items():
        train(ROOT / "recipes" / "quickstart.yaml", output / name, overrides)
        keep(name, output / name)
    recipe = self_play(output, output / "good_0")
    for name, overrides in BAD.items():
        train(recipe, output / name, overrides)
        keep(name, output / name)


if __name__ == "__main__":
    main()
