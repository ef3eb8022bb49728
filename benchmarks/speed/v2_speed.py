"""How many debates a second does the v2 reward score, from parsed transcripts and with parsing?

Debates of 5 agents and 3 rounds in which every agent compares all pairs of the others, about 1.6
kilobytes a turn. One process, one core; the clock is the process's own time, so that neighbours on
the machine count little.

    OMP_NUM_THREADS=1 python -m benchmarks.speed.v2_speed
"""

import argparse
import random
import time
from collections.abc import Callable
from itertools import combinations
from typing import Any

from benchmarks.measurement import print_line
from debate_protocol.transcripts.files import from_json
from debate_protocol.types import Transcript
from debate_rewards import V2
from debate_rewards.reward import read_debate

AGENTS, ROUNDS = 5, 3
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "peer_prediction_segment": {"consensus": "peer_prediction", "judge_credit": "segment"},
}


def debate(number: int, rng: random.Random) -> Transcript:
    """Return a debate with a full ballot in every turn after the first round."""
    turns = []
    for round_ in range(ROUNDS):
        for agent in range(AGENTS):
            others = [other for other in range(AGENTS) if other != agent]
            about = "".join(
                f"Agent {other} sets up the equation well, but the second step drops a sign. "
                "Checking it by substitution would have shown that. " * 2
                for other in others
            )
            votes = "\n".join(
                f"Agent {a} {rng.choice('>=<')} Agent {b}" for a, b in combinations(others, 2)
            )
            solution = "We substitute, expand and collect terms. " * 20
            text = (
                f"<solution>{solution}</solution>\n<evaluation>{about if round_ else 'N/A'}"
                f"</evaluation>\n<comparison>\n{votes if round_ else 'N/A'}\n</comparison>"
            )
            turns.append({"agent": agent, "round": round_, "text": text})
    return from_json(
        {
            "id": str(number),
            "question": {"text": "?"},
            "protocol": {"num_agents": AGENTS},
            "turns": turns,
        }
    )


def rates(work: Callable[[], object], debates: int, repeats: int) -> list[float]:
    """Return debates a second of process time, per repeat, after one to warm up."""
    found = []
    for _ in range(repeats + 1):
        start = time.process_time()
        work()
        found.append(debates / (time.process_time() - start))
    return found[1:]


def main() -> None:
    """Print one line for each case, from parsed transcripts and with parsing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--debates", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    transcripts = [debate(number, rng) for number in range(options.debates)]
    read = [read_debate(transcript) for transcript in transcripts]
    texts = [turn.text for transcript in transcripts for turn in transcript.turns]
    size = sum(len(text.encode()) for text in texts) / len(texts)
    for name, fields in CASES.items():
        reward = V2(**fields)
        if reward.score_read(read) != reward(transcripts):
            raise SystemExit(f"{name}: scores differ between parsed and raw transcripts")
        settings = vars(options) | {"agents": AGENTS, "rounds": ROUNDS, "reward": fields}
        settings |= {"bytes_a_turn": round(size), "clock": "process time"}
        works: dict[str, Callable[[], object]] = {
            "parsed": lambda reward=reward: reward.score_read(read),
            "with_parsing": lambda reward=reward: reward(transcripts),
        }
        for part, work in works.items():
            found = rates(work, options.debates, options.repeats)
            packages = ("debate-protocol", "debate-rewards")
            print_line(f"v2_speed/{name}/{part}", found, "1/s", "higher", settings, packages)


if __name__ == "__main__":
    main()
