"""What a debate is worth, as the scores of a sample in an evaluation log of inspect."""

from collections.abc import Mapping, Sequence

from debate_protocol.transcripts.log_files import OneScore, Scores
from debate_protocol.types import Transcript, TurnKey
from debate_rewards.answers.checking import check
from debate_rewards.metrics.debate_metrics import answers_given
from debate_rewards.reward import ReadDebate, Score
from debate_rewards.votes.ballots import all_votes, ballots
from debate_rewards.votes.decisions import decisions_of, last_turns

_VALUES = {"right": "C", "wrong": "I", "unverifiable": "N"}
"""As inspect has them: correct, incorrect, no answer."""


def inspect_scores(
    transcripts: Sequence[Transcript], scores: Sequence[Score], seed: int = 0
) -> list[Scores]:
    """Return the scores of each debate by name.

    Each decision (`majority`, `peer_vote`, …) is C or I, or N where the question has no answer to
    check it with; `right` is the share of the last round's answers that are right; `votes` is how
    many count; `reward` is the mean return of the agents.
    """
    found: list[Scores] = []
    for given, score in zip(answers_given(transcripts), scores, strict=True):
        named = _decisions(given.debate, seed)
        if given.right is not None:
            last = [turn.key for turn in last_turns(given.debate).values()]
            named |= _share(last, given.right)
        if given.debate.compares:
            named["votes"] = _votes(given.debate)
        paid = {agent: value for agent, value in enumerate(score.agents) if value is not None}
        if paid:
            said = [f"agent {agent}: {value:+.3g}" for agent, value in paid.items()]
            named["reward"] = _number(sum(paid.values()) / len(paid), said)
        found.append(named)
    return found


def _decisions(debate: ReadDebate, seed: int) -> dict[str, OneScore]:
    question = debate.transcript.question
    found: dict[str, OneScore] = {}
    for rule, answer in decisions_of(debate, seed).items():
        verdict = check(question, answer)
        value = _VALUES[verdict.verdict]
        found[rule] = {"value": value, "answer": answer or "", "explanation": verdict.reason}
    return found


def _share(keys: Sequence[TurnKey], right: Mapping[TurnKey, bool]) -> dict[str, OneScore]:
    said = [f"agent {key.agent}: {'right' if right[key] else 'wrong'}" for key in keys]
    return {"right": _number(sum(right[key] for key in keys) / len(keys), said)} if keys else {}


def _votes(debate: ReadDebate) -> OneScore:
    votes = all_votes(ballots(debate))
    said = [
        f"agent {vote.judge.agent}, round {vote.judge.round}: "
        f"{vote.left.agent} {vote.verdict} {vote.right.agent}"
        for vote in votes
    ]
    return _number(len(votes), said)


def _number(value: float, said: Sequence[str]) -> OneScore:
    return {"value": value, "explanation": "\n".join(said)}
