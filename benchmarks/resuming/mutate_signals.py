"""Stop runs by random signals at random moments, go on with each, and count how they end.

SIGKILL, SIGINT, SIGTERM and SIGHUP come at seeded moments, before a file operation or after some
seconds, up to three times a run, which writes no checkpoint of its own accord but at the end of a
phase. Every run must end bit-equal to the one that nothing stopped, without a traceback; after
SIGINT, SIGTERM and SIGHUP, once the run has begun to train, every step whose metrics were written
must be in a checkpoint.

    python -m benchmarks.resuming.mutate_signals [--count 40] [--seed 0] [--keep FILE]

With `--keep` each run is a line of that file, and the same command goes on where it stopped.
"""

import json
import random
import signal
import sys
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.resuming.run_trials import Row, Wanted, command, runs

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


@dataclass(frozen=True)
class Whole:
    """The run that nothing stops: what it leaves, its file operations and its seconds."""

    left: dict[str, Any]
    operations: int
    seconds: float

    def moment(self, rng: random.Random, name: str) -> runs.Moment:
        """Return when a run gets a signal, by its file operations or by the clock.

        How many of the latter come before the end depends on the machine and its other work.
        """
        place, number = rng.random(), getattr(signal, name)
        if rng.random() < 0.5:
            return runs.Moment(operation=1 + int(place * self.operations), signal=number)
        return runs.Moment(seconds=place * self.seconds, signal=number)


def stop_and_go_on(folder: Path, rng: random.Random, whole: Whole) -> Row:
    """Stop one run up to three times, let it end, and say what became of it.

    Of the row `sent` holds the signals that stopped the run, `at_end` one that came before its
    process ended and after all that could be stopped.
    """
    runs.prepared(folder)
    sent: list[str] = []
    at_end: list[str] = []
    problems: list[str] = []
    more: list[str] = []
    while True:
        name = rng.choice(SIGNALS)
        moment = runs.Moment() if len(sent) == _MOST else whole.moment(rng, name)
        before = metrics(folder / "run")
        code = runs.launch(folder, [*CHANGES, *more], moment)
        if code == 0:
            at_end += [name] * moment.was_sent
            break
        problems += stop_problems(folder / "run", code, name, metrics(folder / "run") != before)
        if not moment.was_sent:
            break
        sent.append(name)
        more = ["--resume"] if (folder / "run" / "recipe.yaml").exists() else []
    log = (folder / "log.txt").read_text(errors="replace")
    if "Traceback" in log:
        problems.append("traceback: " + log[log.index("Traceback") :][-1500:])
    if code == 0:
        problems += runs.different(ends(runs.kept(folder / "run")), whole.left)
    return {"sent": sent, "at_end": at_end, "problems": problems}


def stop_problems(run: Path, code: int | None, name: str, stepped: bool) -> list[str]:
    """Return what is wrong about how a run was stopped; `stepped` is whether it had trained."""
    at_start = code in (-signal.SIGTERM, -signal.SIGHUP)  # Before anything heeds it.
    if code not in (None, 130) and not at_start:
        return [f"exit code {code} after {name}"]
    # One that comes before a step finds what a kill before it left behind.
    lost = lost_steps(run) if code == 130 and stepped else 0
    return [f"{lost} steps lost after {name}"] if lost > 0 else []


def measure(wanted: Wanted) -> Row:
    """Stop runs; return the counts and what went wrong."""
    found, operations, seconds = runs.whole(wanted.folder / "whole", CHANGES)
    whole, folder = Whole(ends(found), operations, seconds), wanted.folder / "stopped"
    names = [f"{wanted.seed}/{number}" for number in range(wanted.count)]
    rows = wanted.rows(
        (name, partial(stop_and_go_on, folder, random.Random(name), whole)) for name in names
    )
    sent = Counter(name for row in rows for name in row["sent"])
    counts = {
        "runs": len(rows),
        "stopped": sum(bool(row["sent"]) for row in rows),
        "signals": {name: sent[name] for name in SIGNALS},
        "at_end": sum(len(row["at_end"]) for row in rows),
    }
    return wanted.result("mutations/signals", counts, [row for row in rows if row["problems"]])


if __name__ == "__main__":
    sys.exit(command(__doc__, 40, measure))
