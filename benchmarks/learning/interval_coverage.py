"""How often do intervals hold the truth, and how often is p below .05 where sides are equal?

A question's value is the share of four right replies, each right with a probability of the
question's own, drawn evenly between 0 and 1. `coverage` is the share of made-up sets of questions
whose 95 % interval (`bootstrap_interval`) holds the mean of all questions, 1/2. `false_alarms` is
the share of comparisons of two equal sides on one set of questions (`paired`) with p below .05;
`intervals_without_0` is the share of these comparisons whose interval leaves out 0.

    OMP_NUM_THREADS=1 python -m benchmarks.learning.interval_coverage
"""

import argparse
import random

from benchmarks.measurement import print_line
from debate_rewards.estimates import Paired, bootstrap_interval, paired

REPLIES = 4
LEVEL = 0.05
TRUE_MEAN = 0.5
PACKAGES = ("debate-rewards",)


def share_right(probability: float, rng: random.Random) -> float:
    """Return the share of right replies to a question."""
    return sum(rng.random() < probability for _ in range(REPLIES)) / REPLIES


def interval_holds_truth(questions: int, rng: random.Random) -> bool:
    """Return whether the interval of one made-up evaluation holds the mean of all questions."""
    values = [share_right(rng.random(), rng) for _ in range(questions)]
    _, low, high = bootstrap_interval(values, seed=rng.getrandbits(32), within=(0.0, 1.0))
    return low <= TRUE_MEAN <= high


def comparison_of_equals(questions: int, rng: random.Random) -> Paired:
    """Compare two sides that are right with the same probability on each question."""
    before: dict[str, float] = {}
    after: dict[str, float] = {}
    for question in range(questions):
        probability = rng.random()
        before[str(question)] = share_right(probability, rng)
        after[str(question)] = share_right(probability, rng)
    return paired(before, after, seed=rng.getrandbits(32))


def main() -> None:
    """Print the lines of all numbers of questions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, nargs="+", default=[8, 10, 20, 50])
    parser.add_argument("--sets", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for questions in args.questions:
        rng = random.Random(f"{args.seed} {questions}")
        held = [interval_holds_truth(questions, rng) for _ in range(args.sets)]
        compared = [comparison_of_equals(questions, rng) for _ in range(args.sets)]
        alarms = sum(comparison.p < LEVEL for comparison in compared)
        apart = sum(not comparison.low <= 0 <= comparison.high for comparison in compared)
        settings = {"questions": questions, "sets": args.sets, "seed": args.seed}
        shares = {
            "coverage": sum(held) / args.sets,
            "false_alarms": alarms / args.sets,
            "intervals_without_0": apart / args.sets,
        }
        for name, share in shares.items():
            print_line(
                f"interval_coverage/{name}",
                [share],
                "share",
                "higher" if name == "coverage" else "lower",
                settings,
                PACKAGES,
            )


if __name__ == "__main__":
    main()
