"""Recorded debates in short form, and what their scores hold.

A round is written as the comparison lines of each agent: `A1>A2; A0=A2 | | fail | absent` are two
lines of agent 0, a turn without lines, a failed turn, and an agent that does not speak.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from debate_protocol.transcripts.files import from_json
from debate_protocol.types import DebateRun, Reply, Transcript, TurnRequest
from debate_rewards import Credit, Score

SILENT = "| |"
SILENT_FIVE = "| | | |"


def turn_text(solution: str, lines: str = "", evaluation: str = "N/A") -> str:
    """Write a turn of three sections."""
    comparisons = [line.strip().replace("A", "Agent ") for line in lines.split(";")]
    comparison = "\n".join(comparisons).strip() or "N/A"
    return (
        f"<solution>{solution}</solution>\n<evaluation>{evaluation}</evaluation>\n"
        f"<comparison>\n{comparison}\n</comparison>"
    )


def debate_of(
    *rounds: str,
    id: str = "d",
    solutions: Sequence[Sequence[str]] = (),
    gold: str | None = None,
    meta: Mapping[str, Any] | None = None,
    evaluations: Mapping[tuple[int, int], str] | None = None,
    **rules: Any,
) -> Transcript:
    """Build a debate.

    Args:
        rounds: Comparison lines by round and agent.
        id: Id of the debate and of its question.
        solutions: Solutions by round and agent: `["aab", "abb"]`; `s0`, `s1` … where left out.
        gold: The gold answer.
        meta: Meta of the question beside the kind, text.
        evaluations: Evaluations by agent and round.
        rules: Fields of the protocol beside the number of agents.
    """
    turns = []
    for round_number, round_lines in enumerate(rounds):
        for agent, lines in enumerate(round_lines.split("|")):
            if lines.strip() == "absent":
                continue
            solution = f"s{agent}"
            if round_number < len(solutions):
                solution = solutions[round_number][agent]
            evaluation = (evaluations or {}).get((agent, round_number), "N/A")
            text = turn_text(solution, lines, evaluation)
            if lines.strip() == "fail":
                text = "no tags"
            turns.append({"agent": agent, "round": round_number, "text": text})
    question = {"text": "?", "answer": gold, "meta": {"kind": "text"} | dict(meta or {})}
    protocol = {"num_agents": rounds[0].count("|") + 1} | rules
    return from_json({"id": id, "question": question, "protocol": protocol, "turns": turns})


def judged_debate(lines: str, **settings: Any) -> Transcript:
    """Build a debate whose agents answer in round 0 and write these lines in round 1."""
    return debate_of("|" * lines.count("|"), lines, **settings)


def on_question(question_id: str, debate: Transcript) -> Transcript:
    """Ask the question of a debate under another id."""
    return replace(debate, question=replace(debate.question, id=question_id))


def score_of(reward: Any, debate: Transcript) -> Score:
    """Score one debate."""
    (score,) = reward([debate])
    assert isinstance(score, Score)
    return score


def turn_credits(score: Score, stream: str = "generator") -> dict[tuple[int, int], Credit]:
    """Look up the credits of whole turns by agent and round."""
    credits = {}
    for credit in score.credits:
        if credit.stream == stream and credit.span is None:
            credits[credit.agent, credit.round] = credit
    return credits


def turn_values(score: Score, stream: str = "generator") -> dict[tuple[int, int], float | None]:
    """Look up the values of whole turns by agent and round."""
    return {key: credit.value for key, credit in turn_credits(score, stream).items()}


def round_values(score: Score, round: int, stream: str = "generator") -> list[float | None]:
    """List the values of a round's turns, by agent."""
    values = turn_values(score, stream)
    return [values[key] for key in sorted(values) if key[1] == round]


def span_values(
    score: Score, debate: Transcript, agent: int, round: int, stream: str = "judge"
) -> list[tuple[str, float | None]]:
    """List text and value of each credited part of a turn, in the order of the text."""
    (turn,) = [turn for turn in debate.turns if turn.key == (agent, round)]
    credits = []
    for credit in score.credits:
        if credit.span and (credit.agent, credit.round, credit.stream) == (agent, round, stream):
            credits.append(credit)
    credits.sort(key=lambda credit: credit.span or (0, 0))
    return [(turn.text[slice(*credit.span or ())], credit.value) for credit in credits]


def numbers(text: str) -> Any:
    """Read expected values: `1 -1/3 none`."""
    parsed = []
    for word in text.split():
        parsed.append(None if word == "none" else float(Fraction(word)))
    return pytest.approx(parsed)


def play_out(run: DebateRun, speak: Callable[[TurnRequest], Reply]) -> Transcript:
    """Answer the requests of a form without gates until its transcript is there."""
    requests: Any = next(run)
    while True:
        try:
            requests = run.send([speak(request) for request in requests])
        except StopIteration as end:
            assert isinstance(end.value, Transcript)
            return end.value
