"""Controls for experiments: votes drawn from the truth, and values shuffled between turns."""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from pydantic import Field

from debate_protocol.plugins import Config
from debate_protocol.types import TurnKey
from debate_rewards.answer_checking import kind_of
from debate_rewards.final_answers import canonical, final_answer
from debate_rewards.reward import Credit, ReadDebate
from debate_rewards.votes import Verdict, Vote


class VotesFrom(Config):
    """Error rates of judges, who call each of two turns right or wrong and vote by that.

    A right answer is called right with probability `tpr`, a wrong one with probability `fpr`. The
    turn that is called right beats the one that is called wrong; two equal calls are `=`. So of
    votes on a right and a wrong turn tpr·(1 − fpr) name the right one and fpr·(1 − tpr) the wrong
    one, whose difference is tpr − fpr.

    `errors: independent` draws both calls for each debate, judge and pair. `fixed` draws one call
    for each answer of a question, which all judges make in all debates and steps: a systematic
    error. Another `seed` draws others.
    """

    tpr: float = Field(ge=0, le=1)
    """Probability that a right turn is called right."""
    fpr: float = Field(ge=0, le=1)
    """Probability that a wrong turn is called right."""
    errors: Literal["independent", "fixed"] = "independent"
    """Whether each judge errs on its own (`independent`), or all do on the same answers
    (`fixed`)."""
    seed: int = 0
    """Decides the drawn votes."""

    def draw(
        self, debate: ReadDebate, votes: Sequence[Vote], right: Mapping[TurnKey, bool]
    ) -> list[Vote]:
        """Return the votes with verdicts drawn in the place of the judges'.

        Args:
            debate: The debate.
            votes: Its counted votes.
            right: Whether the answer of each judged turn is right.
        """
        return [vote._replace(verdict=self._verdict(debate, vote, right)) for vote in votes]

    def _verdict(self, debate: ReadDebate, vote: Vote, right: Mapping[TurnKey, bool]) -> Verdict:
        left, other = (self._called_right(debate, vote, turn, right[turn]) for turn in vote.pair)
        return "=" if left == other else ">" if left else "<"

    def _called_right(self, debate: ReadDebate, vote: Vote, turn: TurnKey, is_right: bool) -> bool:
        name: list[object]
        if self.errors == "fixed":
            name = [debate.transcript.question.id, _answer(debate, turn)]
        else:
            name = [debate.transcript.id, vote.judge, vote.pair, turn]
        digest = hashlib.sha256(json.dumps([self.seed, *name]).encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64 < (self.tpr if is_right else self.fpr)


def _answer(debate: ReadDebate, turn: TurnKey) -> str | None:
    """Return the answer as equal spellings of it are alike, or as it stands if it is unreadable."""
    question, text = debate.transcript.question, debate.turns[turn].parsed.answer
    kind = kind_of(question)
    answer = None if text is None else final_answer(text, kind)
    return text if answer is None else canonical(question, kind, answer) or answer.text


_Value = TypeVar("_Value")


def shuffled_credits(credits: Sequence[Credit], transcript_id: str) -> list[Credit]:
    """Permute the values of each round among its agents that have one; failures stay."""
    rounds: dict[int, list[int]] = {}
    for index, credit in enumerate(credits):
        if credit.value is not None and not credit.penalty:
            rounds.setdefault(credit.round, []).append(index)
    values = _dealt([credit.value for credit in credits], rounds, transcript_id)
    return [replace(c, value=v) for c, v in zip(credits, values, strict=True)]


def shuffled_verdicts(
    values: Sequence[float | None], votes: Sequence[Vote], transcript_id: str
) -> list[float | None]:
    """Permute the values of a debate's votes among those of each round that have one."""
    rounds: dict[int, list[int]] = {}
    for index, (value, vote) in enumerate(zip(values, votes, strict=True)):
        if value is not None:
            rounds.setdefault(vote.judge[1], []).append(index)
    return _dealt(values, rounds, f"{transcript_id}\nverdicts")


def _dealt(values: Sequence[_Value], rounds: dict[int, list[int]], name: str) -> list[_Value]:
    dealt = list(values)
    for round_, indices in rounds.items():
        digest = hashlib.sha256(f"{name}\n{round_}".encode()).digest()
        order = random.Random(int.from_bytes(digest, "big")).sample(indices, len(indices))
        for index, source in zip(indices, order, strict=True):
            dealt[index] = values[source]
    return dealt
