"""What do judges earn who have skill, and judges who have a habit, under each judge reward?

Debates of 5 agents are made up: each turn of round 0 is right with probability one half, and in
round 1 every agent compares all pairs of the others. A judge of skill q sees whether a turn is
right, each time with probability q of seeing well, and votes for the turn it thinks right, `=`
when it thinks both the same; q = 0.5 is guessing. A habit looks at nothing:

- `equal`: always `=`.
- `low_first`: the agent with the lower number is always better.
- `first_position`: the agent that the judge writes down first, in an order of its own.
- `shared_order`: the agent that was shown first, in an order drawn anew for each question and the
  same for all judges. No habit in the sense of the theory: it is a signal that the judges share.

`among_skilled`: one such judge among four of skill 0.9. `everyone`: all five are such judges.
`value` is the mean value of the judged turns, `signal` the share of turns that had a value.

    python -m benchmarks.learning.judge_habits
"""

import argparse
import random
from collections.abc import Callable, Mapping
from itertools import combinations
from statistics import fmean

from benchmarks.measurement import print_line
from debate_protocol.transcripts.files import from_json
from debate_protocol.types import Transcript
from debate_rewards import Reward, get_reward

AGENTS = 5
SKILLED = 0.9
REWARDS: Mapping[str, Reward] = {
    "inclusive": get_reward("v2", consensus="inclusive"),
    "leave_one_out": get_reward("v2", consensus="leave_one_out"),
    "peer_prediction": get_reward("v2", consensus="peer_prediction"),
    "correlated_agreement": get_reward("v2_peer_scores"),
    "determinant_mutual_information": get_reward(
        "v2_peer_scores", consensus="determinant_mutual_information"
    ),
    "truth": get_reward("truth_judge"),
}
Vote = Callable[[int, int], str]
"""From two agents, the lower number first, to a comparison line."""


def skilled(skill: float, right: Mapping[int, bool], rng: random.Random) -> Vote:
    """Return a judge that sees each turn well with probability `skill`, once for each turn."""
    seen = {agent: is_right == (rng.random() < skill) for agent, is_right in right.items()}

    def vote(a: int, b: int) -> str:
        op = "=" if seen[a] == seen[b] else ">" if seen[a] else "<"
        return f"Agent {a} {op} Agent {b}"

    return vote


def judge(kind: str, right: Mapping[int, bool], order: list[int], rng: random.Random) -> Vote:
    """Return a judge of this kind: a number is a skill, a word a habit."""
    habits: dict[str, Vote] = {
        "equal": lambda a, b: f"Agent {a} = Agent {b}",
        "low_first": lambda a, b: f"Agent {a} > Agent {b}",
        "first_position": lambda a, b: "Agent {} > Agent {}".format(*rng.sample((a, b), 2)),
        "shared_order": lambda a, b: "Agent {} > Agent {}".format(*sorted((a, b), key=order.index)),
    }
    return habits[kind] if kind in habits else skilled(float(kind), right, rng)


def debate(number: int, kinds: list[str], rng: random.Random) -> Transcript:
    """Return a debate whose agent i judges as `kinds[i]`."""
    right = {agent: rng.random() < 0.5 for agent in range(AGENTS)}
    order = rng.sample(range(AGENTS), AGENTS)
    turns = []
    for round_ in range(2):
        for agent, kind in enumerate(kinds):
            vote = judge(kind, right, order, rng)
            others = [other for other in range(AGENTS) if other != agent]
            lines = [vote(a, b) for a, b in combinations(others, 2)] if round_ else []
            answer = "right" if right[agent] else "wrong"
            text = f"<solution>{answer}</solution><evaluation>-</evaluation><comparison>\n"
            turns.append({"agent": agent, "round": round_, "text": text + "\n".join(lines)})
    return from_json(
        {
            "id": str(number),
            "question": {"text": "?", "answer": "right", "meta": {"kind": "text"}},
            "protocol": {"num_agents": AGENTS},
            "turns": turns,
        }
    )


def earned(reward: Reward, kind: str, *, alone: bool, questions: int, seed: int) -> list[float]:
    """Return the values of all turns of judges of this kind, and 0 or 1 whether each had one."""
    rng = random.Random(f"{seed}/{kind}/{alone}")
    seats = [number % AGENTS for number in range(questions)]
    kinds = [
        [kind if agent == seat or not alone else str(SKILLED) for agent in range(AGENTS)]
        for seat in seats
    ]
    debates = [debate(number, its_kinds, rng) for number, its_kinds in enumerate(kinds)]
    found: list[float | None] = []
    for seat, score in zip(seats, reward(debates), strict=True):
        found += [
            credit.value
            for credit in score.credits
            if credit.stream == "judge"
            and credit.round == 1
            and (not alone or credit.agent == seat)
        ]
    values = [value for value in found if value is not None]
    return [fmean(values) if values else 0.0, len(values) / len(found)]


def main() -> None:
    """Print one line for each reward, company and kind of judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rewards", nargs="+", choices=REWARDS, default=list(REWARDS))
    options = parser.parse_args()
    kinds = ["equal", "low_first", "first_position", "shared_order"]
    kinds += ["0.5", "0.6", "0.7", "0.8", "0.9", "1.0"]
    for name in options.rewards:
        reward = REWARDS[name]
        for company in ("among_skilled", "everyone"):
            for kind in kinds:
                repeats = [
                    earned(
                        reward,
                        kind,
                        alone=company == "among_skilled",
                        questions=options.questions,
                        seed=seed,
                    )
                    for seed in range(options.seeds)
                ]
                print_line(
                    f"judge_habits/{name}/{company}/{kind}",
                    [value for value, _ in repeats],
                    "reward",
                    "higher",
                    {
                        "questions": options.questions,
                        "agents": AGENTS,
                        "company_skill": SKILLED if company == "among_skilled" else None,
                        "signal": round(fmean(signal for _, signal in repeats), 4),
                    },
                    ("debate-rewards",),
                )


if __name__ == "__main__":
    main()
