"""Where all agents agree in the end and the votes on answers differ: who is right?

    debate eval RUN/recipe.yaml --policy before=recipe --policy after=RUN --output EVALUATION
    python -m benchmarks.learning.overruled_agreement EVALUATION [EVALUATION ...]

Counts, by policy, the debates of an evaluation in which every agent gives one answer in the last
round while the votes clearly prefer another first answer. Ties of votes between different answers
are left out. Prints how often the votes and how often the agents are right, with Wilson's interval.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from debate_protocol.transcripts.files import read_transcripts
from debate_protocol.types import Transcript
from debate_rewards.answer_checking import answer_classes, check
from debate_rewards.decisions import answer_text, last_turns, standings
from debate_rewards.reward import ReadDebate, read_debate

Z = 1.959964


def main() -> None:
    """Print one line a policy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("evaluations", type=Path, nargs="+", metavar="EVALUATION")
    evaluations = parser.parse_args().evaluations
    policies = sorted({path.parent.name for path in transcript_files(evaluations)})
    for policy in policies:
        counts: Counter[str] = Counter()
        for path in transcript_files(evaluations):
            if path.parent.name == policy:
                for debate in read_transcripts(path):
                    counts.update(outcome(debate))
        num_overruled = counts["overruled"]
        row = {
            "policy": policy,
            "debates": counts["debates"],
            "all agree": counts["all agree"],
            "votes prefer another": num_overruled,
            "votes right": counts["votes right"],
            "votes right, 95 %": wilson(counts["votes right"], num_overruled),
            "agents right": counts["agents right"],
            "agents right, 95 %": wilson(counts["agents right"], num_overruled),
        }
        print(json.dumps(row))


def transcript_files(evaluations: list[Path]) -> Iterator[Path]:
    """Find the debates of all policies of evaluations."""
    for evaluation in evaluations:
        yield from sorted(evaluation.glob("transcripts/*/*debate*.jsonl"))


def outcome(transcript: Transcript) -> list[str]:
    """Name what a debate counts as."""
    debate = read_debate(transcript)
    outcomes = ["debates"]
    last_answers = [answer_text(debate, turn) for turn in last_turns(debate).values()]
    num_agents = transcript.protocol.num_agents
    classes = answer_classes(transcript.question, last_answers)
    if len(last_answers) < num_agents or None in classes or len(set(classes)) > 1:
        return outcomes
    outcomes.append("all agree")
    preferred = preferred_answer(debate)
    if preferred is None:
        return outcomes
    agreed = last_answers[0]
    agreed_class, preferred_class = answer_classes(transcript.question, [agreed, preferred])
    if agreed_class == preferred_class:
        return outcomes
    outcomes.append("overruled")
    if check(transcript.question, preferred).verdict == "right":
        outcomes.append("votes right")
    if check(transcript.question, agreed).verdict == "right":
        outcomes.append("agents right")
    return outcomes


def preferred_answer(debate: ReadDebate) -> str | None:
    """Find the answer with the most votes; None without votes, or where different answers tie."""
    turn_standings = standings(debate)
    if not turn_standings:
        return None
    highest = max(standing for _, standing in turn_standings)
    best = [answer_text(debate, turn) for turn, standing in turn_standings if standing == highest]
    classes = answer_classes(debate.transcript.question, best)
    return best[0] if len(set(classes)) == 1 else None


def wilson(successes: int, trials: int) -> list[float]:
    """Compute Wilson's interval of a share (Wilson 1927)."""
    if trials == 0:
        return []
    share = successes / trials
    middle = (share + Z**2 / (2 * trials)) / (1 + Z**2 / trials)
    spread = Z * (share * (1 - share) / trials + Z**2 / (4 * trials**2)) ** 0.5
    half_width = spread / (1 + Z**2 / trials)
    return [round(middle - half_width, 3), round(middle + half_width, 3)]


if __name__ == "__main__":
    main()
