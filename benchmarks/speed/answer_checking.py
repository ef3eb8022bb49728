"""Answers checked a second by Math-Verify workers, without cache and without the fast path.

python -m benchmarks.speed.answer_checking [--workers 2] [--repeats 5]

One line: pairs of a MATH500 answer and a re-written form of it, or another answer of the set, half
each. Left out: starting the workers. Before it times, it checks that all re-written forms are
equal and that the others are not.
"""

import argparse
import json
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.measurement import print_line
from debate_rewards.answers.spelling import spelling
from debate_rewards.math_pool import MathPool

ANSWERS = Path(__file__).parents[1] / "data" / "math500_answers.jsonl"
LIMIT_S = 5.0


def rewritten(answer: str) -> str:
    """Return the same answer in another form: `+0` for expressions, as it is for the others."""
    is_other = re.search(r"[,=_\[]|\\(?:text|mbox|in|begin|cup|pm|circ|\$)", answer)
    return answer if is_other else f"{answer}+0"


def pairs() -> list[tuple[str, str, bool]]:
    """Return gold, given and whether both are the same answer."""
    lines = ANSWERS.read_text(encoding="utf-8").splitlines()
    golds = [spelling(json.loads(line)["answer"]) for line in lines]
    found = []
    for number, (gold, other) in enumerate(zip(golds, golds[1:] + golds[:1], strict=True)):
        same = number % 2 == 0 or gold == other
        found.append((gold, spelling(rewritten(gold)) if same else other, same))
    return found


def run(pool: MathPool, asked: list[tuple[str, str, bool]], workers: int) -> tuple[float, int]:
    """Return the seconds for all pairs and how many came out otherwise than expected."""
    start = time.perf_counter()
    with ThreadPoolExecutor(workers) as executor:
        outcomes = list(executor.map(lambda p: pool.compare(p[0], p[1], LIMIT_S).outcome, asked))
    seconds = time.perf_counter() - start
    return seconds, sum((o == "equal") != p[2] for o, p in zip(outcomes, asked, strict=True))


def main() -> None:
    """Warm up, check that the verdicts are right, time, and print one line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    asked = pairs()
    pool = MathPool(size=arguments.workers, cached=False)
    wrong = run(pool, asked, arguments.workers)[1]
    if wrong:
        sys.exit(f"{wrong} of {len(asked)} verdicts are not as expected: nothing was timed")
    rates = [len(asked) / run(pool, asked, arguments.workers)[0] for _ in range(arguments.repeats)]
    pool.close()
    settings = {"pairs": len(asked), "workers": arguments.workers, "cache": False}
    settings |= {"fast_path": False, "equal": sum(same for _, _, same in asked)}
    packages = ("debate-rewards", "math-verify", "sympy")
    print_line("answer_checking/math500", rates, "1/s", "higher", settings, packages)


if __name__ == "__main__":
    main()
