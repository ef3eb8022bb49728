"""Damage run directories, go on with each, and count how that ends: one JSON line, reasons beside.

A run that was stopped in the middle of its second phase, and one that ended, are copied and
damaged: files and folders in each other's place, emptied, cut, garbled, linked; rows of metrics
changed; checkpoints altered and sealed again, as by somebody who knows the format. Then
`--resume` must end bit-equal to the run that nobody damaged, or refuse with a reason. Of a run
that has ended only the newest checkpoint is read: damage to older ones, and to debates of its
evaluations, is counted as `unread`.

    python -m benchmarks.resuming.mutate_run_directories [--count 320] [--seed 0] [--keep FILE]

With `--keep` each result is a line of that file, and the same command goes on where it stopped.
"""

import json
import random
import re
import shutil
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.resuming.run_damages import Damage, damages
from benchmarks.resuming.run_trials import Row, Wanted, command, runs

LONGEST_S = 20
BAD = ("traceback", "different", "slow")


def judge(folder: Path, base: Path, damage: Damage, expected: dict[str, Any]) -> Row:
    """Damage a copy, go on with it in a child, and say how that ended."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copytree(base, folder / "run", symlinks=True)
    shutil.copy(base.parent / "recipe.yaml", folder)
    damage(folder / "run")
    began = time.perf_counter()
    code = runs.launch(folder, ["--resume"], runs.Moment())
    seconds = time.perf_counter() - began
    log = (folder / "log.txt").read_text(errors="replace")
    found = {"code": code, "seconds": round(seconds, 2)}
    if "Traceback" in log or code not in (0, 2):
        return found | {"verdict": "traceback", "log": log[-3000:]}
    if seconds > LONGEST_S:
        return found | {"verdict": "slow"}
    if code == 2:
        reason = log.strip().splitlines()[-1]
        return found | {"verdict": "refused", "log": reason[:300]}
    left = {k: v for k, v in runs.kept(folder / "run").items() if "refused-" not in k}
    if differences := runs.different(left, expected):
        last = max(k for k in left if k.startswith("checkpoints/step-")).split("/")[1]
        if "the best so far, is missing" in log:
            differences = [name for name in differences if name != "checkpoints/best.json"]
        unread = "phase_start.safetensors"  # What a run that has ended was measured against.
        if base.parent.name == "ended" and all(
            name == unread
            or (name.startswith("evaluations/") and name.endswith(".jsonl"))
            or (name.startswith("checkpoints/step-") and last not in name)
            for name in differences
        ):
            return found | {"verdict": "unread"}
        if "is not as this phase has written it" in log:
            return found | {"verdict": "no more measured against its start"}
        return found | {"verdict": "different", "differences": differences[:9], "log": log[-1500:]}
    return found | {"verdict": "before used" if "is not used" in log else "equal"}


def prepare(root: Path) -> tuple[Path, Path, dict[str, Any]]:
    """Make the run that is stopped, the run that ends, and what both are to end with."""
    expected, _, _ = runs.whole(root / "ended", [])
    ended = root / "ended" / "run"
    runs.prepared(root / "stopped")
    operations = int((root / "ended" / "operations.txt").read_text())
    at = operations * 7 // 10
    while True:
        code = runs.launch(root / "stopped", [], runs.Moment(operation=at))
        stopped = root / "stopped" / "run"
        steps = sorted((stopped / "checkpoints").glob("step-*"))
        state = json.loads((steps[-1] / "state.json").read_text()) if steps else {}
        is_inside = state.get("phase") == 1 and state["step"] > state["phase_start"]
        if code is None and len(steps) > 1 and is_inside:
            return stopped, ended, {k: v for k, v in expected.items() if "refused-" not in k}
        at += 3
        runs.prepared(root / "stopped")


def chosen(found: list[Any], count: int, seed: int) -> list[Any]:
    """Draw this many in a seeded order, of each damaged file as many as fit."""
    rng = random.Random(seed)
    groups: dict[tuple[str, str], list[Any]] = {}
    for one in found:
        base, damaged = one[0].split(": ")[:2]
        groups.setdefault((base, re.sub(r"\d", "", damaged).split()[0]), []).append(one)
    kinds = list(groups.values())
    for kind in kinds:
        rng.shuffle(kind)
    rng.shuffle(kinds)
    picked: list[Any] = []
    while len(picked) < min(count, len(found)):
        picked += [kind.pop() for kind in kinds if kind]
    return picked[:count]


def measure(wanted: Wanted) -> Row:
    """Judge damages; return the counts and what went wrong."""
    stopped, ended, expected = prepare(wanted.folder)
    rows = wanted.rows(
        (name, partial(judge, wanted.folder / "damaged", base, damage, expected))
        for name, base, damage in chosen(list(damages(stopped, ended)), wanted.count, wanted.seed)
    )
    verdicts = Counter(row["verdict"] for row in rows)
    counts = {
        "damaged": len(rows),
        "counts": {key: verdicts[key] for key in (*sorted(verdicts), *BAD)},
        "longest_s": max((row["seconds"] for row in rows), default=0.0),
    }
    failures = [row for row in rows if row["verdict"] in BAD]
    return wanted.result("mutations/run_directories", counts, failures)


if __name__ == "__main__":
    sys.exit(command(__doc__, 320, measure))
