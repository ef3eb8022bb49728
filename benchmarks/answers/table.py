"""Wrong verdicts on labelled pairs: this build, an earlier one, and the scorers of other libraries.

python -m benchmarks.answers.table [--held-out [FILE]] [--against b2e1b730] [--named]

`pairs.jsonl` holds gold answers, replies, and whether a person would call the reply right.
`held_out.jsonl` holds others, which no reading was mended with (`--held-out`); so do the files
beside it that `--held-out FILE` names, such as `everyday.jsonl`. A row of
the table is a scorer, a column a kind of answer; a cell says how many verdicts are wrong of how
many. A right reply called wrong and a wrong one called right count alike. A scorer is not marked
where it has none for the kind. Other libraries are installed by uv where this environment lacks
them; one that cannot be installed is named. `--named` prints each wrong verdict of this build.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.answers.builds import ROOT, earlier_build

PAIRS = Path(__file__).with_name("pairs.jsonl")
HELD_OUT = Path(__file__).with_name("held_out.jsonl")
MARKERS = Path(__file__).with_name("markers.py")
EARLIER = "b2e1b730"
KINDS = ("math", "number", "choice", "yes_no", "text", "puzzle")
LIBRARIES: Mapping[str, tuple[str, Sequence[str]]] = {
    "Math-Verify 0.9": ("math-verify", ("math-verify==0.9.0",)),
    "TRL 1.16, accuracy_reward": ("trl", ()),
    "verl 0.9, math and gsm8k": ("verl", ("verl==0.9.1",)),
    "inspect 0.3, math to answer": ("inspect", ("inspect-ai==0.3.285",)),
}
"""Other scorers: the name in `markers.py`, and what to install beside this environment."""

Marks = Sequence[bool | None]


def marks_of_build(sources: Path, pairs: str) -> Marks:
    """Return the verdicts of a build of debate-rewards."""
    path = os.pathsep.join(str(folder) for folder in sorted(sources.glob("packages/*/src")))
    command = [sys.executable, str(MARKERS), "debate-rewards"]
    return marked(command, pairs, {**os.environ, "PYTHONPATH": path})


def marks_of_library(name: str, requirements: Sequence[str], pairs: str) -> Marks:
    """Return the marks of another library's scorer."""
    python = [sys.executable]
    if requirements:
        python = [uv(), "run", "--no-project", "--quiet", "--python", sys.executable]
        if name == "verl":
            return marks_of_verl(requirements[0], pairs)
        for requirement in (*requirements, "sympy", "math-verify==0.9.0"):
            python += ["--with", requirement]
        python += ["python"]
    return marked([*python, str(MARKERS), name], pairs, dict(os.environ))


def marks_of_verl(requirement: str, pairs: str) -> Marks:
    """Return the marks of verl's scorers, installed without all that verl trains with."""
    folder = Path.home() / ".cache" / "debate-benchmarks" / requirement.replace("==", "-")
    if not folder.is_dir():
        subprocess.run(
            [uv(), "pip", "install", "--quiet", "--no-deps", "--target", str(folder), requirement],
            check=True,
        )
    return marked(
        [sys.executable, str(MARKERS), "verl"], pairs, {**os.environ, "PYTHONPATH": str(folder)}
    )


def uv() -> str:
    """Return the uv on the path, or that of the checkout."""
    return shutil.which("uv") or str(ROOT / ".uv" / "bin" / "uv")


def marked(command: Sequence[str], pairs: str, environment: dict[str, str]) -> Marks:
    """Run `markers.py` and return its marks."""
    done = subprocess.run(
        command,
        input=pairs,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    marks: list[bool | None] = json.loads(done.stdout.splitlines()[-1])
    return marks


def counted(rows: Sequence[Mapping[str, Any]], marks: Marks) -> list[str]:
    """Return the cells of one scorer: wrong marks of all, for each kind and in all."""
    wrong: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    for row, mark in zip(rows, marks, strict=True):
        if mark is not None:
            asked[row["kind"]] += 1
            wrong[row["kind"]] += mark != row["right"]
    cells = [f"{wrong[kind]} of {asked[kind]}" if asked[kind] else "–" for kind in KINDS]
    share = wrong.total() / asked.total()
    return [*cells, f"{wrong.total()} of {asked.total()} ({share:.1%})"]


def main() -> None:
    """Mark all pairs with all scorers and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", default=EARLIER, help="commit of the earlier build")
    parser.add_argument(
        "--held-out",
        nargs="?",
        const=HELD_OUT.name,
        default=PAIRS.name,
        metavar="FILE",
        help="judge the pairs held out, of held_out.jsonl or of another file here",
    )
    parser.add_argument("--named", action="store_true", help="print each wrong verdict of ours")
    arguments = parser.parse_args()
    path = PAIRS.with_name(arguments.held_out)
    pairs = path.read_text(encoding="utf-8")
    rows = [json.loads(line) for line in pairs.splitlines()]
    print("| scorer |", " | ".join((*KINDS, "all")), "|")
    print("|---" * (len(KINDS) + 2) + "|")
    ours = marks_of_build(ROOT, pairs)
    print("| this build |", " | ".join(counted(rows, ours)), "|", flush=True)
    with earlier_build(arguments.against) as earlier:
        marks = marks_of_build(earlier, pairs)
    print(f"| {arguments.against} |", " | ".join(counted(rows, marks)), "|", flush=True)
    for title, (name, requirements) in LIBRARIES.items():
        try:
            cells = counted(rows, marks_of_library(name, requirements, pairs))
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            cells = [f"not installed: {str(getattr(error, 'stderr', error) or error)[-200:]!r}"]
        print(f"| {title} |", " | ".join(cells), "|", flush=True)
    for row, mark in zip(rows, ours, strict=True):
        if arguments.named and mark != row["right"]:
            print(json.dumps(row, ensure_ascii=False))


if __name__ == "__main__":
    main()
