"""What the page of other programs' rollouts costs, beside pandas reading the same file.

    python -m benchmarks.speed.rollout_page

writes files of 1,000 and of 10,000 replies of 1,000 tokens, eight to a question, then runs
`debate-report FILE` and `pandas.read_json(FILE, lines=True)` on each in turn, every one in a new
process. Prints processor seconds (of all processes that a side starts), peak memory and bytes of
the page; seconds and memory are ratios to pandas, with their own medians in `settings`. The words
of a reply are drawn from GSM8K's questions, which compresses as prose does. With `--advantages` a
row also has the text and the advantage of each token. Fails where the page loads torch.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measurement import print_line

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("debate-report", "pandas")
REPLIES_A_QUESTION = 8
QUESTIONS_A_STEP = 16
# What a tokenizer of a language model makes of these words: about 1.3 tokens each.
WORDS_A_TOKEN = 0.77

WRITE_PAGE = """
import sys
from debate_report import report_main
code = report_main(sys.argv[1:])
if "torch" in sys.modules:
    sys.exit("the page loads torch")
sys.exit(code)
"""
READ_BY_PANDAS = """
import sys
import pandas
assert len(pandas.read_json(sys.argv[1], lines=True))
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a process and those that it started took."""

    seconds: float
    peak_bytes: int


def main() -> None:
    """Print one line a measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replies", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--tokens", type=int, default=1000, help="of a reply")
    parser.add_argument("--advantages", action="store_true", help="rows have those of each token")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for num_replies in arguments.replies:
            path = Path(folder) / f"{num_replies}.jsonl"
            write_rollouts(path, num_replies, arguments.tokens, arguments.advantages)
            settings = {
                "replies": num_replies,
                "tokens": arguments.tokens,
                "advantages": arguments.advantages,
                "file_bytes": path.stat().st_size,
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
            }
            measure(path, arguments.repeats, settings)


def write_rollouts(path: Path, num_replies: int, num_tokens: int, with_advantages: bool) -> None:
    """Write plain rows: about half of the replies are right."""
    rng = random.Random(0)
    lines = (ROOT / "recipes" / "data" / "gsm8k_50.jsonl").read_text().splitlines()
    words = " ".join(json.loads(line)["question"] for line in lines).split()
    with path.open("w") as file:
        for number in range(num_replies):
            question = number // REPLIES_A_QUESTION
            gold = question % 97
            is_right = rng.random() < 0.5
            answer = gold if is_right else gold + 1
            reply_words = rng.choices(words, k=round(num_tokens * WORDS_A_TOKEN))
            row: dict[str, object] = {
                "step": question // QUESTIONS_A_STEP,
                "question": f"Question {question}: what is left of {gold} after 0?",
                "response": f"{' '.join(reply_words)} \\boxed{{{answer}}}",
                "answer": str(gold),
                "reward": float(is_right),
                "completion_tokens": num_tokens,
            }
            if with_advantages:
                tokens = [f"{word} " for word in rng.choices(words, k=num_tokens - 1)]
                tokens.append(f"\\boxed{{{answer}}}")
                row["response"] = "".join(tokens)
                row["tokens"] = tokens
                row["advantages"] = [round(rng.gauss(0, 1), 4) for _ in range(num_tokens)]
            file.write(json.dumps(row) + "\n")


def measure(path: Path, num_repeats: int, settings: dict[str, object]) -> None:
    """Run both sides in turn, after one run of each that warms the disk's cache."""
    page = path.with_suffix(".html")
    ours = [WRITE_PAGE, str(path), "--output", str(page)]
    theirs = [READ_BY_PANDAS, str(path)]
    for command in (ours, theirs):
        cost_of(command)
    our_costs = []
    their_costs = []
    for _ in range(num_repeats):
        our_costs.append(cost_of(ours))
        their_costs.append(cost_of(theirs))
    for name, unit, of_cost in (
        ("seconds", "s", lambda cost: cost.seconds),
        ("memory", "bytes", lambda cost: cost.peak_bytes),
    ):
        our_values = list(map(of_cost, our_costs))
        their_values = list(map(of_cost, their_costs))
        ratios = [ours / theirs for ours, theirs in zip(our_values, their_values, strict=True)]
        medians = {"pandas": statistics.median(their_values)}
        print_line(f"rollout_page/{name}", our_values, unit, "lower", settings | medians, PACKAGES)
        print_line(f"rollout_page/{name}_to_pandas", ratios, "ratio", "lower", settings, PACKAGES)
    size = page.stat().st_size
    print_line("rollout_page/page", [size], "bytes", "lower", settings, PACKAGES)


def cost_of(command: Sequence[str]) -> Cost:
    """Run a program of Python to its end.

    Raises:
        RuntimeError: It failed.
    """
    process = subprocess.Popen([sys.executable, "-c", *command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"found exit code {process.returncode} of {command[1]}, expected 0")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


if __name__ == "__main__":
    main()
