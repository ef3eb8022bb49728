"""Controls for experiments with v2: votes drawn from the truth, values shuffled between turns."""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from pydantic import Field

from debate_protocol.plugins import Config
from debate_protocol.types import TurnKey
from debate_rewards import V2
from debate_rewards.answer_rewards import usable_verdicts
from debate_rewards.answers.questions import read_answer
from debate_rewards.answers.reply import Unreadable
from debate_rewards.reward import Credit, ReadDebate, RewardNeeds
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
    answer = None if text is None else read_answer(question, text)
    if answer is None or isinstance(answer, Unreadable):
        return text
    return answer.canonical


class V2Control(V2):
    """`v2` with a control: an experiment that says what learning from the votes is worth.

    `shuffle_votes` permutes the generator values of each question and round among the agents that
    have one, uniformly, so that credit keeps its distribution but says nothing about which agent
    won. `shuffle_verdicts` does the same with the judge values of each question and round among its
    verdicts. `votes_from`: the generator values come from verdicts that are drawn from the truth
    with given error rates, on the pairs that the judges compared. The judge stream keeps the
    judges' own verdicts.
    """

    type: Literal["v2_control"] = "v2_control"  # type: ignore[assignment]
    shuffle_votes: bool = False
    """Shuffle the values of the votes of each round among agents."""
    shuffle_verdicts: bool = False
    """Shuffle what judges are paid in each round among their verdicts."""
    votes_from: VotesFrom | None = None
    """Draw the votes from error rates in the place of what agents said."""

    def needs(self) -> RewardNeeds:
        """Describe needs: as `v2`, and answers where verdicts are drawn from the truth."""
        return replace(super().needs(), answers=self.votes_from is not None)

    def verdict_values(
        self, debates: Sequence[ReadDebate], votes: Sequence[list[Vote]]
    ) -> list[list[float | None]]:
        """Return what each vote earns its judge, shuffled where that is asked for."""
        values = super().verdict_values(debates, votes)
        if not self.shuffle_verdicts:
            return values
        return [
            shuffled_verdicts(its_values, its_votes, debate.transcript.id)
            for its_values, its_votes, debate in zip(values, votes, debates, strict=True)
        ]

    def booked_votes(
        self, debates: Sequence[ReadDebate], votes: Sequence[list[Vote]]
    ) -> Sequence[list[Vote] | None]:
        """Return the votes that value the turns of each debate, None where none can be drawn."""
        booked = super().booked_votes(debates, votes)
        if self.votes_from is None:
            return booked
        drawn: list[list[Vote] | None] = []
        for debate, own, verdicts in zip(debates, booked, usable_verdicts(debates), strict=True):
            if verdicts is None or own is None:
                drawn.append(None)
            else:
                right = {key: one.verdict == "right" for key, one in verdicts.items()}
                drawn.append(self.votes_from.draw(debate, own, right))
        return drawn

    def generator_credits(self, debate: ReadDebate, votes: Sequence[Vote] | None) -> list[Credit]:
        """Return what the turns of a debate earn, shuffled where that is asked for."""
        credits = super().generator_credits(debate, votes)
        if votes is None or not self.shuffle_votes:
            return credits
        return shuffled_credits(credits, debate.transcript.id)


_Value = TypeVar("_Value")


def shuffled_credits(credits: Sequence[Credit], transcript_id: str) -> list[Credit]:
    """Permute the values of each round among its agents that have one; failures stay."""
    rounds: dict[int, list[int]] = {}
    for index, credit in enumerate(credits):
        if credit.value is not None and not credit.penalty:
            rounds.setdefault(credit.round, []).append(index)
    values = _shuffled([credit.value for credit in credits], rounds, transcript_id)
    return [replace(c, value=v) for c, v in zip(credits, values, strict=True)]


def shuffled_verdicts(
    values: Sequence[float | None], votes: Sequence[Vote], transcript_id: str
) -> list[float | None]:
    """Permute the values of a debate's votes among those of each round that have one."""
    rounds: dict[int, list[int]] = {}
    for index, (value, vote) in enumerate(zip(values, votes, strict=True)):
        if value is not None:
            rounds.setdefault(vote.judge[1], []).append(index)
    return _shuffled(values, rounds, f"{transcript_id}\nverdicts")


def _shuffled(values: Sequence[_Value], rounds: dict[int, list[int]], name: str) -> list[_Value]:
    shuffled = list(values)
    for round_, indices in rounds.items():
        digest = hashlib.sha256(f"{name}\n{round_}".encode()).digest()
        order = random.Random(int.from_bytes(digest, "big")).sample(indices, len(indices))
        for index, source in zip(indices, order, strict=True):
            shuffled[index] = values[source]
    return shuffled
