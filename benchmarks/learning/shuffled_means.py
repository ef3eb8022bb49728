"""How much of what a judge is paid is left in shuffled verdicts?

    debate rollout quickstart steps=8 --output runs/start
    python -m benchmarks.learning.shuffled_means runs/start/transcripts.jsonl

A verdict of a shuffled debate is worth, on average over the permutations, the mean of its debate.
Prints the slope of that mean over the slope of the verdict's own value, both on whether it is right
(1 for the right one of a right and a wrong answer, 0 for `=`, −1 for the wrong one). Values are by
peer prediction within batches of 32 debates.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import covariance, fmean

from debate_protocol.transcripts.files import read_transcripts
from debate_protocol.types import TurnKey
from debate_rewards import V2
from debate_rewards.metrics import answers_given
from debate_rewards.votes import Vote, all_votes, ballots

BATCH = 32


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("transcripts", type=Path, metavar="FILE.jsonl")
    rows = list(verdicts(parser.parse_args().transcripts))
    correctness, own_values, means = zip(*rows, strict=True)
    left = covariance(correctness, means) / covariance(correctness, own_values)
    print(json.dumps({"verdicts": len(rows), "left in shuffled verdicts": round(left, 3)}))


def verdicts(file: Path) -> Iterator[tuple[float, float, float]]:
    """Yield of each verdict on a right and a wrong answer: rightness, value, mean of its debate."""
    given = answers_given(read_transcripts(file), across_rounds=True)
    for start in range(0, len(given), BATCH):
        batch = given[start : start + BATCH]
        debates = [answers.debate for answers in batch]
        votes = [all_votes(ballots(debate)) for debate in debates]
        values = V2(consensus="peer_prediction").verdict_values(debates, votes)
        for answers, debate_votes, debate_values in zip(batch, votes, values, strict=True):
            known = [value for value in debate_values if value is not None]
            for vote, value in zip(debate_votes, debate_values, strict=True):
                rightness = rightness_of(vote, answers.right or {})
                if value is not None and rightness is not None:
                    yield rightness, value, fmean(known)


def rightness_of(vote: Vote, right: dict[TurnKey, bool]) -> float | None:
    """Compute 1, 0 or −1; None where both answers are right or wrong, or not known."""
    left_is_right, other_is_right = right.get(vote.left), right.get(vote.right)
    if left_is_right is None or other_is_right is None or left_is_right == other_is_right:
        return None
    if vote.verdict == "=":
        return 0.0
    return 1.0 if (vote.verdict == ">") == left_is_right else -1.0


if __name__ == "__main__":
    main()
