"""Values of parts of a turn: lines, sections, and the soft punishment of long replies."""

import math
import re
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from debate_protocol.parsing import Range
from debate_protocol.types import Transcript, Turn
from debate_rewards.reward import (
    Credit,
    ReadDebate,
    ReadTurn,
    RewardConfig,
    Score,
    Use,
    mean_returns,
    read_debate,
)
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


class Overlong(RewardConfig):
    """Minus what a turn's length l earns, stream `generator`.

    With L = `max_tokens` and B = `buffer`: 0 up to L − B tokens, then −factor · (l − (L − B)) / B,
    and −factor from L on. Length is all that counts, for failed turns too: what a failure costs is
    left to the reward this one is mixed with. A turn whose prompt filled the context has no
    signal.

    The length is the number of sampled tokens, the end token or stop string included. A transcript
    from a file has no tokens: there l is estimated as characters / `chars_per_token`, rounded up;
    with null such turns have no signal.

    Source: DAPO (Yu et al. 2025), soft overlong punishment, eq. 13, where factor is 1.
    """

    can_be_tried: ClassVar[bool] = True

    type: Literal["overlong"] = "overlong"
    max_tokens: int = Field(ge=1)
    """Length in tokens from which the whole penalty holds."""
    buffer: int = Field(ge=1)
    """Tokens below `max_tokens` over which the penalty grows evenly."""
    factor: float = Field(default=1.0, ge=0)
    """The whole penalty."""
    chars_per_token: float | None = Field(default=4.0, gt=0)
    """Characters of a token in transcripts that keep no tokens; null refuses these."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return ("generator",)

    def silence(self, stream: str, use: Use) -> str | None:
        """Return why no reply is too long."""
        begins = self.max_tokens - self.buffer
        if use.max_tokens > begins:
            return None
        return (
            f"overlong begins above {begins:,} tokens (max_tokens - buffer), and "
            f"rollout.max_tokens is {use.max_tokens:,}; expected reward.max_tokens at most that "
            "of rollout"
        )

    @model_validator(mode="after")
    def _buffer_fits(self) -> "Overlong":
        if self.buffer > self.max_tokens:
            raise ValueError(
                f"buffer: found {self.buffer}, expected at most max_tokens ({self.max_tokens})"
            )
        return self

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        return [self._score(read_debate(transcript)) for transcript in transcripts]

    def value(self, length: int) -> float:
        """Return what a turn of this many tokens earns."""
        over = length - (self.max_tokens - self.buffer)
        return -self.factor * min(over / self.buffer, 1.0) if over > 0 else 0.0

    def _score(self, debate: ReadDebate) -> Score:
        lengths = {key: self._length(read.turn) for key, read in debate.turns.items()}
        credits = tuple(
            Credit(
                *key,
                "generator",
                None if length is None else self.value(length),
                expected=length is not None,
            )
            for key, length in lengths.items()
        )
        known = [length for length in lengths.values() if length is not None]
        metrics = {}
        if known:
            allowed = self.max_tokens - self.buffer
            estimated = [
                key
                for key, length in lengths.items()
                if length is not None and debate.turns[key].turn.reply is None
            ]
            metrics = {
                "overlong/tokens": sum(known) / len(known),
                "overlong/penalised": sum(length > allowed for length in known) / len(known),
                "overlong/estimated": len(estimated) / len(known),
            }
        num_agents = debate.transcript.protocol.num_agents
        return Score(credits, mean_returns(credits, num_agents), metrics)

    def _length(self, turn: Turn) -> int | None:
        if turn.reply is not None:
            return len(turn.reply.token_ids) or None
        if turn.failure == "context_overflow" or self.chars_per_token is None:
            return None
        return math.ceil(len(turn.text) / self.chars_per_token)
