"""How the files of published benchmarks in a folder are read, and whether their answers count.

    python -m benchmarks.learning.data_counts FOLDER

A file belongs to the benchmark whose name its own begins with: gsm8k_test.jsonl to gsm8k. Prints a
Markdown table: rows, repeated ones that are dropped, questions with an answer, and answers that
count as right where a response gives them; below it each that does not, and then exit code 1.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from debate_protocol.parsing import get_contract
from debate_rewards.answer_checking import check_many
from debate_train.data.benchmarks import BENCHMARKS
from debate_train.data.question_rows import Fields, Reading
from debate_train.data.questions import answered
from debate_train.data.row_files import read_questions

HEAD = "| file | benchmark | contract | rows | repeats | answers | right | others |"


def counted(path: Path, name: str) -> tuple[str, list[str]]:
    """Return the file's row of the table, and a line for each answer that does not count."""
    published = BENCHMARKS[name]
    rows = list(published.rows(str(path), "train", "data.path", None))
    questions, _ = read_questions(rows, Reading(Fields(), None, None), "data.path", str(path))
    with_answer = [one for one in questions if one.answer is not None]
    form = get_contract(published.contract).kind
    verdicts = check_many([(one, answered(one, form)) for one in with_answer])
    found = Counter(one.verdict for one in verdicts)
    cells = [
        f"`{path.name}`",
        name,
        published.contract,
        f"{len(rows):,}",
        f"{len(rows) - len(questions):,}",
        f"{len(with_answer):,}",
        f"{found['right']:,}",
        f"{found.total() - found['right']:,}",
    ]
    wrong = [
        f"{path.name}: {one.id}: {one.answer!r:.80} counts as {verdict.verdict} ({verdict.reason})"
        for one, verdict in zip(with_answer, verdicts, strict=True)
        if verdict.verdict != "right"
    ]
    return f"| {' | '.join(cells)} |", wrong


def benchmark_of(path: Path) -> str | None:
    """Return the benchmark that a file's name begins with, the longest of several."""
    known = [name for name in BENCHMARKS if path.stem.startswith(name)]
    return max(known, key=len, default=None)


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 when an answer does not count as right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    files = sorted(path for path in folder.glob("*") if path.suffix in (".jsonl", ".parquet"))
    named = [(path, benchmark_of(path)) for path in files]
    if not named:
        parser.error(f"{folder}: found no .jsonl or .parquet file")
    tables = [counted(path, name) for path, name in named if name is not None]
    print("\n".join([HEAD, "|---|---|---|" + "---:|" * 5, *(row for row, _ in tables)]))
    problems = [line for _, lines in tables for line in lines]
    problems += [f"{path.name}: no benchmark of this name" for path, name in named if name is None]
    print("\n".join(["", *problems]) if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
