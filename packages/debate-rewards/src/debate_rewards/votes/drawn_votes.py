"""Votes drawn from the truth with known error rates, a control for experiments."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from debate_protocol.config import Config
from debate_protocol.types import TurnKey
from debate_rewards.answers.checking import kind_of
from debate_rewards.answers.final_answers import canonical, final_answer
from debate_rewards.reading import ReadDebate
from debate_rewards.votes.ballots import Verdict, Vote


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
