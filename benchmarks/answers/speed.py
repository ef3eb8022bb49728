"""Verdicts a second over the golds of twelve benchmarks, beside those of an earlier commit.

python -m benchmarks.answers.speed [--against b2e1b730] [--repeats 3]

One line for each of the two builds, and their ratio. Every gold is answered by four ordinary
replies: some lines of reasoning that end with a box, a line `Answer: …` or "The answer is …", two
with the gold and two with another gold of the same benchmark. Builds take turns, each in a process
of its own, with its workers started before. Left out: starting, and reading the files.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.answers.builds import ROOT, earlier_build

GOLDS = Path(__file__).with_name("golds.jsonl")
EARLIER = "b2e1b730"
_REASONING = (
    "Let me work through this step by step. In case {number} the first condition gives "
    "{number} + 3 as a bound,\nand the second one rules out all smaller values.\n"
    "Checking the remaining cases by hand shows that only one of them fits.\n\n"
)


def questions() -> list[dict[str, object]]:
    """Return each gold with four replies, as JSON can hold them."""
    golds = [json.loads(line) for line in GOLDS.read_text(encoding="utf-8").splitlines()]
    asked = []
    for number, row in enumerate(golds):
        same_benchmark = [one for one in golds if one["benchmark"] == row["benchmark"]]
        other = same_benchmark[(same_benchmark.index(row) + 1) % len(same_benchmark)]["gold"]
        gold = row["gold"]
        reasoning = _REASONING.format(number=number)
        replies = [
            f"{reasoning}So the answer is \\boxed{{{gold}}}.",
            f"{reasoning}Answer: {gold}",
            f"{reasoning}Hence it is \\boxed{{{other}}}.",
            f"{reasoning}The answer is {other}.",
        ]
        asked.append({**row, "replies": replies})
    return asked


def measure() -> None:
    """Judge all replies in this process, and print the seconds and how many were right."""
    from debate_protocol.types import Question
    from debate_rewards.answer_checking import check_many

    pairs = []
    for number, row in enumerate(questions()):
        meta = {"kind": row["kind"], "choices": row.get("choices")}
        question = Question(str(number), "?", str(row["gold"]), meta)
        pairs += [(question, reply) for reply in row["replies"]]  # type: ignore[attr-defined]
    formulas = [Question("warm", "?", f"\\sin {number} x") for number in range(64)]
    check_many([(question, "\\boxed{\\cos x}") for question in formulas])
    start = time.perf_counter()
    verdicts = check_many(pairs)
    seconds = time.perf_counter() - start
    num_right = sum(verdict.verdict == "right" for verdict in verdicts)
    compared = sum(verdict.seconds > 0 for verdict in verdicts)
    print(json.dumps([len(pairs), seconds, num_right, compared]))


def run(build: Path) -> tuple[int, float, int, int]:
    """Measure one build in a process of its own."""
    sources = os.pathsep.join(str(path) for path in sorted(build.glob("packages/*/src")))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.answers.speed", "--measure"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((sources, str(ROOT)))},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    count, seconds, num_right, compared = json.loads(done.stdout)
    return count, seconds, num_right, compared


def main() -> None:
    """Time both builds in turn and print verdicts a second."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", default=EARLIER, help="commit of the earlier build")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure()
        return
    with earlier_build(arguments.against) as earlier:
        builds = {arguments.against: earlier, "this": ROOT}
        rates: dict[str, list[float]] = {name: [] for name in builds}
        for _ in range(arguments.repeats):
            for name, build in builds.items():
                count, seconds, num_right, compared = run(build)
                rates[name].append(count / seconds)
                print(
                    f"{name}: {count / seconds:,.0f} verdicts/s "
                    f"({count} verdicts, {num_right} right, {compared} asked a worker)"
                )
    ratio = statistics.median(rates["this"]) / statistics.median(rates[arguments.against])
    print(f"ratio of medians: {ratio:.1f}")


if __name__ == "__main__":
    main()
