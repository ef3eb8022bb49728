"""Stop runs by random signals at random moments, go on with each, and count how they end.

SIGKILL, SIGINT, SIGTERM and SIGHUP come at seeded moments, up to three times a run, which writes
no checkpoint of its own accord but at the end of a phase. Every run must end bit-equal to the one
that nothing stopped, without a traceback; after SIGINT, SIGTERM and SIGHUP, once the run has begun
to train, every step whose metrics were written must be in a checkpoint.

    .venv/bin/python benchmarks/mutate_signals.py [--count 40] [--seed 0] [--keep FILE]

With `--keep` each run is a line of that file, and the same command goes on where it stopped.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "system"))

import killed_runs as runs  # noqa: E402

CHANGES = ["checkpoint.every=0", "checkpoint.keep_best=null"]
SIGNALS = ("SIGKILL", "SIGINT", "SIGTERM", "SIGHUP")
_MOST = 3


def metrics(run: Path) -> str:
    """Return what a run has written of its steps."""
    path = run / "metrics.jsonl"
    return path.read_text() if path.exists() else ""


def lost_steps(run: Path) -> int:
    """Return how many steps have metrics and are in no checkpoint."""
    steps = [int(json.loads(line)["step"]) for line in metrics(run).splitlines()]
    saved = [int(p.name[5:]) for p in (run / "checkpoints").glob("step-*")]
    return max(steps, default=0) - max(saved, default=0)


def ends(found: dict[str, Any]) -> dict[str, Any]:
    """Leave out checkpoints but the last: how many there are depends on when a run is stopped."""
    last = max(name for name in found if name.startswith("checkpoints/step-")).split("/")[1]
    return {k: v for k, v in found.items() if not k.startswith("checkpoints/") or last in k}


def stop_and_go_on(
    folder: Path, rng: random.Random, seconds: float, expected: dict[str, Any]
) -> dict[str, Any]:
    """Stop one run up to three times, let it end, and say what became of it."""
    runs.prepared(folder)
    sent: list[str] = []
    problems: list[str] = []
    more: list[str] = []
    while True:
        name = rng.choice(SIGNALS)
        moment = runs.Moment(seconds=rng.random() * seconds, signal=getattr(signal, name))
        last = len(sent) == _MOST
        before = metrics(folder / "run")
        code = runs.launch(folder, [*CHANGES, *more], runs.Moment() if last else moment)
        if code == 0:
            break
        sent.append(name)
        at_start = code in (-signal.SIGTERM, -signal.SIGHUP)  # Before anything heeds it.
        if code not in (None, 130) and not at_start:
            problems.append(f"exit code {code} after {name}")
        # One that comes before a step finds what a kill before it left behind.
        stepped = metrics(folder / "run") != before
        if code == 130 and stepped and (lost := lost_steps(folder / "run")) > 0:
            problems.append(f"{lost} steps lost after {name}")
        if last:
            break
        more = ["--resume"] if (folder / "run" / "recipe.yaml").exists() else []
    log = (folder / "log.txt").read_text(errors="replace")
    if "Traceback" in log:
        problems.append("traceback: " + log[log.index("Traceback") :][-1500:])
    if code == 0:
        problems += runs.different(ends(runs.kept(folder / "run")), expected)
    return {"sent": sent, "problems": problems}


def go(root: Path, count: int, seed: int, keep: Path | None = None) -> dict[str, Any]:
    """Stop `count` runs; return the counts and what went wrong."""
    torch.set_num_threads(1)
    done: list[dict[str, Any]] = []
    if keep is not None and keep.exists():
        done = [json.loads(line) for line in keep.read_text().splitlines()]
    found, _, seconds = runs.whole(root / "whole", CHANGES)
    expected = ends(found)
    for number in range(len(done), count):
        rng = random.Random(f"{seed}/{number}")
        done.append(stop_and_go_on(root / "stopped", rng, seconds, expected))
        print(json.dumps(done[-1]), file=sys.stderr, flush=True)
        if keep is not None:
            with keep.open("a") as file:
                file.write(json.dumps(done[-1]) + "\n")
    done = done[:count]
    bad = [one for one in done if one["problems"]]
    sent = Counter(name for one in done for name in one["sent"])
    return {
        "benchmark": "mutations/signals",
        "value": len(bad),
        "unit": "failures",
        "better": "lower",
        "runs": len(done),
        "stopped": sum(bool(one["sent"]) for one in done),
        "signals": {name: sent[name] for name in SIGNALS},
        "settings": {"seed": seed, "count": count},
        "failures": bad,
    }


def main() -> int:
    """Run the command; exit code 1 where a run did not end as it should."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        runs.warm_up(Path(root) / "warm")
        result = go(Path(root), arguments.count, arguments.seed, arguments.keep)
    print(json.dumps(result))
    return int(result["value"] > 0)


if __name__ == "__main__":
    sys.exit(main())
