"""What the scripts share that damage or stop whole runs: their command, and trials that are kept.

With `--keep` each trial is a line of that file, and the same command goes on where it stopped.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "stress"))

import killed_runs as runs  # noqa: E402

Row = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """The trials of a command: their number, seed and folder, and the file that records them."""

    folder: Path
    count: int
    seed: int
    keep: Path | None = None

    def rows(self, trials: Iterable[tuple[str, Callable[[], Row]]]) -> list[Row]:
        """Make the trials that the file does not hold yet; return the rows of all, in order."""
        done: dict[str, Row] = {}
        if self.keep is not None and self.keep.exists():
            for line in self.keep.read_text().splitlines():
                with contextlib.suppress(ValueError):  # A torn last line is tried again.
                    row = json.loads(line)
                    done[row["name"]] = row
        found = []
        for name, make in trials:
            if name not in done:
                line = json.dumps({"name": name} | make())
                print(line, file=sys.stderr, flush=True)
                if self.keep is not None:
                    with self.keep.open("a") as file:
                        file.write(line + "\n")
                done[name] = json.loads(line)
            found.append(done[name])
        return found

    def result(self, benchmark: str, counts: Row, failures: list[Row]) -> Row:
        """Return the measurement: its value is the number of failures."""
        return {
            "benchmark": benchmark,
            "value": len(failures),
            "unit": "failures",
            "better": "lower",
            **counts,
            "settings": {"seed": self.seed, "count": self.count},
            "failures": failures,
        }


def command(about: str | None, count: int, measure: Callable[[Wanted], Row]) -> int:
    """Run a script's command; exit code 1 where it found a failure."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        runs.warm_up(Path(folder) / "warm")
        wanted = Wanted(Path(folder), arguments.count, arguments.seed, arguments.keep)
        result = measure(wanted)
    print(json.dumps(result))
    return int(result["value"] > 0)
