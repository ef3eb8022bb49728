"""Controls for experiments with v2: votes drawn from the truth, values shuffled between turns."""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, Self, TypeVar

from pydantic import Field, model_validator

from debate_protocol.plugins import Config
from debate_protocol.types import Transcript, TurnKey
from debate_rewards import V2, Learnability
from debate_rewards.answer_rewards import usable_verdicts
from debate_rewards.answers.questions import read_answer
from debate_rewards.answers.reply import Unreadable
from debate_rewards.group_advantages import group_mean
from debate_rewards.reward import Credit, ReadDebate, RewardNeeds, Score, build_score
from debate_rewards.votes import Verdict, Vote

_Value = TypeVar("_Value")


class VotesFrom(Config):
    """Error rates of judges who call each of two turns right or wrong, and vote by these calls.

    A right answer is called right with probability `tpr`, a wrong one with probability `fpr`. A
    turn called right beats a turn called wrong; two equal calls are `=`. Of votes on a right and a
    wrong turn, tpr·(1 − fpr) name the right one and fpr·(1 − tpr) the wrong one: the difference is
    tpr − fpr.

    `errors: independent` draws both calls for each debate, judge and pair. `fixed` draws one call
    for each answer of a question, the same for all judges, debates and steps: a systematic error.
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
        """Replace the verdicts of votes by drawn ones.

        Args:
            debate: The debate.
            votes: The counted votes of the debate.
            right: Whether the answer of each judged turn is right.
        """
        drawn_votes = []
        for vote in votes:
            left, other = vote.pair
            left_called_right = self._is_called_right(debate, vote, left, right[left])
            other_called_right = self._is_called_right(debate, vote, other, right[other])
            verdict: Verdict = "="
            if left_called_right and not other_called_right:
                verdict = ">"
            elif other_called_right and not left_called_right:
                verdict = "<"
            drawn_votes.append(vote._replace(verdict=verdict))
        return drawn_votes

    def _is_called_right(
        self, debate: ReadDebate, vote: Vote, turn: TurnKey, is_right: bool
    ) -> bool:
        name: list[object]
        if self.errors == "fixed":
            name = [debate.transcript.question.id, _canonical_answer(debate, turn)]
        else:
            name = [debate.transcript.id, vote.judge, vote.pair, turn]
        # A hash instead of a generator: the call depends on neither order nor number of votes.
        digest = hashlib.sha256(json.dumps([self.seed, *name]).encode()).digest()
        uniform = int.from_bytes(digest[:8], "big") / 2**64
        probability = self.tpr if is_right else self.fpr
        return uniform < probability


def _canonical_answer(debate: ReadDebate, turn: TurnKey) -> str | None:
    """Read the answer of a turn, alike for equal spellings; the text if unreadable."""
    text = debate.turns[turn].parsed.answer
    if text is None:
        return None
    answer = read_answer(debate.transcript.question, text)
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

    A shuffled value still has the mean of its debate and round, and this mean depends on what was
    said: judges who agree earn more together. Peer prediction has no baseline that would remove it,
    so its shuffled values teach agreement. `center` removes the mean before the shuffle: whatever
    the texts say, each value is then 0 on average over the permutations.

    `judged_only` drops values of turns that nobody compared from `pool: answer`. The turns with a
    value are then those of `pool: agent`.
    """

    type: Literal["v2_control"] = "v2_control"  # type: ignore[assignment]
    shuffle_votes: bool = False
    """Shuffle the values of the votes of each round among agents."""
    shuffle_verdicts: bool = False
    """Shuffle what judges are paid in each round among their verdicts."""
    center: bool = False
    """Subtract the mean of each debate and round before a shuffle, so that it teaches nothing on
    average."""
    judged_only: bool = False
    """With `pool: answer`, value only turns that were themselves compared."""
    votes_from: VotesFrom | None = None
    """Draw the votes from error rates in the place of what agents said."""

    @model_validator(mode="after")
    def _check_center(self) -> Self:
        if self.center and not (self.shuffle_votes or self.shuffle_verdicts):
            raise ValueError(
                "center: found true without a shuffle; expected shuffle_votes or shuffle_verdicts"
            )
        return self

    @model_validator(mode="after")
    def _check_judged_only(self) -> Self:
        if self.judged_only and self.pool != "answer":
            raise ValueError(
                "judged_only: found true with pool: agent; expected pool: answer, as agent values "
                "no other turns"
            )
        return self

    def needs(self) -> RewardNeeds:
        """Describe needs: as `v2`, and answers where verdicts are drawn from the truth."""
        return replace(super().needs(), answers=self.votes_from is not None)

    def verdict_values(
        self, debates: Sequence[ReadDebate], votes: Sequence[list[Vote]]
    ) -> list[list[float | None]]:
        """Compute the value of each vote for the judge; `shuffle_verdicts` shuffles the values."""
        values = super().verdict_values(debates, votes)
        if not self.shuffle_verdicts:
            return values
        return [
            shuffled_verdicts(debate_values, debate_votes, debate.transcript.id, center=self.center)
            for debate_values, debate_votes, debate in zip(values, votes, debates, strict=True)
        ]

    def booked_votes(
        self, debates: Sequence[ReadDebate], votes: Sequence[list[Vote]]
    ) -> Sequence[list[Vote] | None]:
        """Select the votes on the turns of each debate, `None` without usable answers."""
        booked = super().booked_votes(debates, votes)
        if self.votes_from is None:
            return booked
        answers = usable_verdicts(debates)
        drawn_votes: list[list[Vote] | None] = []
        for debate, debate_votes, turn_answers in zip(debates, booked, answers, strict=True):
            if turn_answers is None or debate_votes is None:
                drawn_votes.append(None)
                continue
            right = {key: answer.verdict == "right" for key, answer in turn_answers.items()}
            drawn_votes.append(self.votes_from.draw(debate, debate_votes, right))
        return drawn_votes

    def generator_credits(self, debate: ReadDebate, votes: Sequence[Vote] | None) -> list[Credit]:
        """Compute the credits of a debate's turns; `shuffle_votes` shuffles the values."""
        credits = super().generator_credits(debate, votes)
        if votes is None:
            return credits
        if self.judged_only:
            judged = {turn for vote in votes for turn in vote.pair}
            credits = [
                credit
                if credit.penalty or TurnKey(credit.agent, credit.round) in judged
                else replace(credit, value=None)
                for credit in credits
            ]
        if not self.shuffle_votes:
            return credits
        return shuffled_credits(credits, debate.transcript.id, center=self.center)


class LearnabilityControl(Learnability):
    """`learnability` with a control: the values of a step are dealt to the questions at random.

    The values keep their distribution and say nothing about a question. The penalty of an invalid
    question stays.
    """

    type: Literal["learnability_control"] = "learnability_control"  # type: ignore[assignment]

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Score a batch of debates, in order."""
        scores = super().__call__(transcripts)
        valued_indices = []
        for index, score in enumerate(scores):
            if any(credit.value is not None and not credit.penalty for credit in score.credits):
                valued_indices.append(index)
        name = "\n".join(transcript.id for transcript in transcripts)
        # Each of these scores has a single credit, the proposer's.
        credits = [score.credits[0] if score.credits else None for score in scores]
        dealt = _shuffled(credits, {0: valued_indices}, name)
        shuffled_scores = list(scores)
        for index in valued_indices:
            dealt_credit = dealt[index]
            assert dealt_credit is not None
            credit = replace(scores[index].credits[0], value=dealt_credit.value)
            shuffled_scores[index] = build_score(
                transcripts[index], [credit], scores[index].metrics
            )
        return shuffled_scores


def shuffled_credits(
    credits: Sequence[Credit], transcript_id: str, *, center: bool = False
) -> list[Credit]:
    """Permute the values of each round among the agents with a value; failures stay.

    Args:
        credits: Credits of a debate.
        transcript_id: The debate's id; decides the permutation.
        center: Subtract the mean of each round first.
    """
    indices_by_round: dict[int, list[int]] = {}
    for index, credit in enumerate(credits):
        if credit.value is not None and not credit.penalty:
            indices_by_round.setdefault(credit.round, []).append(index)
    values = [credit.value for credit in credits]
    if center:
        values = _centered(values, indices_by_round)
    shuffled_values = _shuffled(values, indices_by_round, transcript_id)
    return [
        replace(credit, value=value) for credit, value in zip(credits, shuffled_values, strict=True)
    ]


def shuffled_verdicts(
    values: Sequence[float | None],
    votes: Sequence[Vote],
    transcript_id: str,
    *,
    center: bool = False,
) -> list[float | None]:
    """Permute the values of each round among the votes with a value.

    Args:
        values: The value of each vote of a debate.
        votes: The votes.
        transcript_id: The debate's id; decides the permutation.
        center: Subtract the mean of each round first.
    """
    indices_by_round: dict[int, list[int]] = {}
    for index, (value, vote) in enumerate(zip(values, votes, strict=True)):
        if value is not None:
            _, judge_round = vote.judge
            indices_by_round.setdefault(judge_round, []).append(index)
    if center:
        values = _centered(values, indices_by_round)
    return _shuffled(values, indices_by_round, f"{transcript_id}\nverdicts")


def _centered(
    values: Sequence[float | None], indices_by_round: Mapping[int, Sequence[int]]
) -> list[float | None]:
    """Subtract the mean of each round from the values."""
    centered_values = list(values)
    for indices in indices_by_round.values():
        # A mean of equal values is exact here; rounding would leave each a tiny value.
        round_values = [values[index] for index in indices]
        mean = group_mean([value for value in round_values if value is not None])
        for index in indices:
            value = values[index]
            if value is not None:
                centered_values[index] = value - mean
    return centered_values


def _shuffled(
    values: Sequence[_Value], indices_by_round: Mapping[int, Sequence[int]], name: str
) -> list[_Value]:
    shuffled = list(values)
    for round_, indices in indices_by_round.items():
        # The name seeds the order: a resumed run shuffles as the first one did.
        digest = hashlib.sha256(f"{name}\n{round_}".encode()).digest()
        order = random.Random(int.from_bytes(digest, "big")).sample(indices, len(indices))
        for index, source in zip(indices, order, strict=True):
            shuffled[index] = values[source]
    return shuffled
