"""Where judge values go in a turn's text: comparison lines and parts of the evaluation."""

import re
from collections.abc import Sequence
from typing import Literal

from debate_protocol.parsing.tags import Range
from debate_rewards.credits import Credit
from debate_rewards.reading import ReadTurn
from debate_rewards.votes.ballots import Vote

JudgeCredit = Literal["line", "block", "segment"]

# The word boundary is looked for behind the name: in front of it, it costs as much as all the rest.
_MENTION = re.compile(r"(?i:agent)(?<!\w.{5})\s+(\d{1,9})\b")


def span_credits(
    turn: ReadTurn,
    whole: Credit,
    lines: Sequence[tuple[Vote, float | None]],
    judge_credit: JudgeCredit,
    without_vote: Sequence[tuple[Range, float | None]],
) -> list[Credit]:
    """Return the credits that stand beside the turn's own judge value.

    A line or part without a value has a credit with None: its tokens take no signal rather than
    the turn's mean, which would pay a line that does not count for those that do.

    Args:
        turn: The judge's turn.
        whole: Its credit for the whole stream.
        lines: Its counted votes with their values.
        judge_credit: `block` returns none; `line` one a vote; `segment` also one for each part of
            the evaluation about one agent: the mean over the valued lines that name it.
        without_vote: Where its other lines stand, and what they are worth.
    """
    if judge_credit == "block" or not lines:
        return []
    placed = [*((vote.span, value) for vote, value in lines), *without_vote]
    if judge_credit == "segment":
        placed = [*_part_values(turn, lines), *placed]
    agent, round_, stream, centred = whole.agent, whole.round, whole.stream, whole.centred
    return [
        Credit(agent, round_, stream, value, span, expected=False, centred=centred)
        for span, value in placed
    ]


def evaluation_parts(turn: ReadTurn) -> list[tuple[int, tuple[int, int]]]:
    """Return (agent, character range) for each part of the evaluation about one agent.

    A part begins where an agent is named and ends where another agent is named or the evaluation
    ends; text before the first name belongs to no part.
    """
    section = turn.parsed.sections.get("evaluation")
    if section is None:
        return []
    start, end = section.span
    marks: list[tuple[int, int]] = []
    for found in _MENTION.finditer(turn.turn.text, start, end):
        agent = int(found[1])
        if not marks or marks[-1][0] != agent:
            marks.append((agent, found.start()))
    ends = [begin for _, begin in marks[1:]] + [end] * bool(marks)
    return [(agent, (begin, stop)) for (agent, begin), stop in zip(marks, ends, strict=True)]


def _part_values(
    turn: ReadTurn, lines: Sequence[tuple[Vote, float | None]]
) -> list[tuple[tuple[int, int], float | None]]:
    naming: dict[int, list[float]] = {}
    for vote, value in lines:
        if value is not None:
            naming.setdefault(vote.left.agent, []).append(value)
            naming.setdefault(vote.right.agent, []).append(value)
    parts = []
    for agent, span in evaluation_parts(turn):
        values = naming.get(agent)
        parts.append((span, sum(values) / len(values) if values else None))
    return parts
