"""Builders of recorded debates in short form, and readers of their scores."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from debate_protocol.transcripts.files import from_json
from debate_protocol.types import Transcript
from debate_rewards import Credit, Score

# Per agent the comparison lines of a round, "" for none and None for a failed turn.
RoundLines = Mapping[int, str | None] | Sequence[str | None]


def turn_text(solution: str, lines: str = "", evaluation: str = "N/A") -> str:
    """Write a turn; `A1>A2; A0=A2` are two comparison lines."""
    comparisons = [line.strip().replace("A", "Agent ") for line in lines.split(";")]
    comparison = "\n".join(comparisons).strip() or "N/A"
    return (
        f"<solution>{solution}</solution>\n<evaluation>{evaluation}</evaluation>\n"
        f"<comparison>\n{comparison}\n</comparison>"
    )


def debate_of(
    *rounds: RoundLines,
    id: str = "d",
    solutions: Sequence[Sequence[str]] = (),
    gold: str | None = None,
    meta: Mapping[str, Any] | None = None,
    evaluations: Mapping[tuple[int, int], str] | None = None,
    **protocol: Any,
) -> Transcript:
    """Build a debate.

    Args:
        rounds: Comparison lines by round and agent.
        id: Id of the debate and of its question.
        solutions: Solutions by round and agent: `["aab", "abb"]`; `s0`, `s1` … where left out.
        gold: The gold answer.
        meta: Meta of the question beside the kind, text.
        evaluations: Evaluations by agent and round.
        protocol: Rules beside the number of agents.
    """
    turns = []
    for round_number, round_lines in enumerate(rounds):
        by_agent = round_lines
        if not isinstance(by_agent, Mapping):
            by_agent = dict(enumerate(by_agent))
        for agent, lines in by_agent.items():
            solution = f"s{agent}"
            if round_number < len(solutions):
                solution = solutions[round_number][agent]
            evaluation = (evaluations or {}).get((agent, round_number), "N/A")
            text = "no tags" if lines is None else turn_text(solution, lines, evaluation)
            turns.append({"agent": agent, "round": round_number, "text": text})
    rules = {"num_agents": len(rounds[0])} | protocol
    question = {"text": "?", "answer": gold, "meta": {"kind": "text"} | dict(meta or {})}
    return from_json({"id": id, "question": question, "protocol": rules, "turns": turns})


def judged_debate(*lines: str | None, **settings: Any) -> Transcript:
    """Build a debate whose agents answer in round 0 and write these lines in round 1."""
    return debate_of([""] * len(lines), lines, **settings)


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
