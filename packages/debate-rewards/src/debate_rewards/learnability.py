"""A proposed question's worth: solvers are neither all right nor all wrong."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import Field

from debate_protocol.types import QUESTION, Transcript
from debate_rewards.answer_checking import answer_classes
from debate_rewards.answer_rewards import has_known_kind, usable_verdicts
from debate_rewards.decisions import peer_vote
from debate_rewards.reward import (
    FAILURE_VALUE,
    Credit,
    ReadDebate,
    ReadTurn,
    RewardConfig,
    RewardContext,
    RewardNeeds,
    RewardNote,
    Score,
    build_score,
    read_debate,
)

PROPOSER = "proposer"
"""The stream of proposed questions."""


class Learnability(RewardConfig):
    """The value of an agent's question, stream `proposer`.

    With p the share of right solvers, B the proposed questions of the step and C those with the
    same text:

        value = max(0, 1 − 2·|p − ½| − repetition · C/B)

    An invalid question is worth −1. A held-out question has no value.

    Source: the challenger's reward of R-Zero (Huang et al., arXiv 2508.05004), where p is the share
    of answers equal to the majority's (`solved_by: majority`). Deviations: questions repeat by
    their text, not by BLEU, and an invalid question is worth −1, not 0. Absolute Zero (Zhao et al.,
    arXiv 2505.03335) pays 1 − p where 0 < p < 1, with p by a verifier (`solved_by: truth`).
    """

    type: Literal["learnability"] = "learnability"
    solved_by: Literal["truth", "majority", "votes"] = "majority"
    """The answer to solve a question: the right one, the most frequent, or the one voted for."""
    repetition: float = Field(1.0, ge=0)
    """Taken off for the share of equal questions in the step."""

    @property
    def streams(self) -> tuple[str, ...]:
        """Streams with values."""
        return (PROPOSER,)

    def needs(self) -> RewardNeeds:
        """Describe needs: answers where the truth decides, votes where judges do."""
        return RewardNeeds(
            answers=self.solved_by == "truth", votes=self.solved_by == "votes", policy=False
        )

    def notes(self, context: RewardContext) -> Iterator[RewardNote]:
        """Explain why no question has a value."""
        if QUESTION not in context.rules.contract_of(0).sections:
            text = "learnability pays proposed questions; expected debate.type: proposed"
            yield RewardNote(kind="no_signal", text=text)

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Score a batch of debates, in order."""
        debates = [read_debate(transcript) for transcript in transcripts]
        solve_rates = self._solve_rates(debates)
        text_counts: Counter[str] = Counter()
        for debate in debates:
            # A refused question has no answers, and its debate has the question of the data.
            if _proposal(debate) is not None and debate.turns:
                text_counts[debate.transcript.question.text] += 1
        scores = []
        for debate, solve_rate in zip(debates, solve_rates, strict=True):
            # A step of refused questions alone counts no text.
            num_equal = text_counts[debate.transcript.question.text]
            equal_share = num_equal / max(1, text_counts.total())
            scores.append(self._score(debate, solve_rate, equal_share))
        return scores

    def _score(self, debate: ReadDebate, solve_rate: float | None, equal_share: float) -> Score:
        proposal = _proposal(debate)
        if proposal is None:
            return build_score(debate.transcript, [], {})
        metrics: dict[str, float | None] = {
            "learnability/invalid": float(proposal.failed),
            "learnability/held_out": float(not proposal.failed and not debate.turns),
        }
        if proposal.failed:
            credit = Credit(*proposal.key, PROPOSER, FAILURE_VALUE, penalty=True)
        elif solve_rate is None:
            credit = Credit(*proposal.key, PROPOSER, None, expected=False)
        else:
            # 1 where half of the solvers are right, which leaves a reward of 0 or 1 the most
            # variance; 0 where all are right or all wrong, and nobody can learn.
            uncertainty = 1 - 2 * abs(solve_rate - 0.5)
            value = max(0.0, uncertainty - self.repetition * equal_share)
            credit = Credit(*proposal.key, PROPOSER, value)
            metrics["learnability/solve_rate"] = solve_rate
            metrics["learnability/repeated"] = equal_share
        return build_score(debate.transcript, [credit], metrics)

    def _solve_rates(self, debates: Sequence[ReadDebate]) -> list[float | None]:
        """Compute the share of right answers to each question, `None` where it is not known."""
        if self.solved_by != "truth":
            by_votes = self.solved_by == "votes"
            return [_agreement(debate, by_votes=by_votes) for debate in debates]
        solve_rates: list[float | None] = []
        for verdicts in usable_verdicts(debates):
            if not verdicts:
                solve_rates.append(None)
                continue
            num_right = sum(verdict.verdict == "right" for verdict in verdicts.values())
            solve_rates.append(num_right / len(verdicts))
        return solve_rates


def _proposal(debate: ReadDebate) -> ReadTurn | None:
    """Find the turn of the question; `None` for a given question."""
    protocol = debate.transcript.protocol
    for key, turn in debate.judges.items():
        if QUESTION in protocol.contract_of(key.round).sections:
            return turn
    return None


def _agreement(debate: ReadDebate, *, by_votes: bool) -> float | None:
    """Compute the share of answers equal to the most frequent, or to the one voted for.

    An unreadable answer equals none. `None` for a refused question.
    """
    question = debate.transcript.question
    if not debate.turns or not has_known_kind(question):
        return None
    answers: list[str | None] = []
    for turn in debate.turns.values():
        answers.append(None if turn.failed else turn.parsed.answer)
    if not by_votes:
        # Of tied classes any may be the majority: the share is the same.
        class_sizes = Counter(
            number for number in answer_classes(question, answers) if number is not None
        )
        return max(class_sizes.values(), default=0) / len(answers)
    voted_answer = peer_vote(debate, 0)
    *classes, voted_class = answer_classes(question, [*answers, voted_answer])
    if voted_class is None:
        return 0.0  # Nobody gave a readable answer.
    return classes.count(voted_class) / len(answers)
