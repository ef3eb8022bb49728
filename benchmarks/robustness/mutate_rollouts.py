"""Mutate rows of other programs' rollouts, import them and write their page; count what fails.

Rows are those of every format that is read, from files that the programs wrote. A case takes a
file's rows, replaces values at random places by hostile ones (null, NaN, numbers of 400 digits,
lists, objects, empty and long texts) or drops keys, and writes the report of it. It must end with
a page or with one line; an exception is a failure.

    python -m benchmarks.robustness.mutate_rollouts --cases 400
"""

import argparse
import contextlib
import copy
import io
import json
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.measurement import print_line
from debate_report import report_main
from debate_report.imports.formats import rows_in

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "tests" / "report" / "rollout_files"
HOSTILE: tuple[Any, ...] = (
    None, True, 0, -1, 1e308, float("nan"), float("inf"), 10**400, "", "x" * 5000, "\ud800", [],
    [None], [[]], {}, {"value": None}, "<script>1</script>", "\x1b[31m", [1, "2", None], "NaN",
)  # fmt: skip


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the places of a row: keys of objects and indices of lists, from outside in."""
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    else:
        return []
    paths = [(*path, key) for key, _ in items]
    for key, inner in items:
        paths += places_in(inner, (*path, key))
    return paths


def mutated(row: Any, draw: random.Random) -> Any:
    """Return a copy of a row with one to three places changed."""
    changed = copy.deepcopy(row)
    for _ in range(draw.randint(1, 3)):
        path = draw.choice(places_in(changed) or [()])
        if not path:
            return draw.choice(HOSTILE)
        holder = changed
        for key in path[:-1]:
            holder = holder[key]
        if isinstance(holder, dict) and draw.random() < 0.2:
            del holder[path[-1]]
        else:
            holder[path[-1]] = copy.deepcopy(draw.choice(HOSTILE))
    return changed


def outcome_of(rows: list[Any], folder: Path) -> str:
    """Write the page of some rows; say how that ended."""
    file = folder / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            code = report_main([str(file)])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "a page" if code == 0 else "one line"


def main() -> None:
    """Try the cases, print each failure and one line of counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    paths = (path for path in sorted(FILES.rglob("*")) if path.is_file())
    files = [rows_in(path) for path in paths if path.suffix != ".txt"]
    outcomes: Counter[str] = Counter()
    num_failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for case in range(options.cases):
            draw = random.Random(f"{options.seed}/{case}")
            rows = [mutated(row, draw) for row in draw.choice(files)[:4]]
            outcome = outcome_of(rows, Path(folder))
            if outcome in ("a page", "one line"):
                outcomes[outcome] += 1
            else:
                num_failures += 1
                print(f"FAILURE: case {case}: {outcome:.300}")
    settings = {"cases": options.cases, "seed": options.seed, **outcomes}
    print_line("rollouts/tracebacks", [num_failures], "cases", "lower", settings, ["jinja2"])


if __name__ == "__main__":
    main()
