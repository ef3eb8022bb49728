"""The v2 reward: turns are valued by the votes on them, judges by agreement with each other."""

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from debate_protocol.types import Transcript, TurnKey
from debate_rewards.credits import Credit, Score
from debate_rewards.judging import (
    Consensus,
    consensus_values,
    peer_prediction_values,
    verdicts_elsewhere,
)
from debate_rewards.reading import ReadDebate, ReadTurn, read_debate
from debate_rewards.spans import JudgeCredit, span_credits
from debate_rewards.v2_metrics import v2_metrics
from debate_rewards.votes import (
    Ballot,
    Duplicates,
    Share,
    Ties,
    Vote,
    ballots,
    missing_comparisons,
    tally,
)

FAILURE_VALUE = -1.0
"""What a failed turn earns on all its tokens."""

Ballots = Mapping[TurnKey, Ballot]


class V2(BaseModel):
    """Peer votes as two streams, `generator` and `judge`.

    `generator`, per judged turn: 2·for/(for+against) − 1. `judge`, per comparison: agreement with
    the other judges of that pair of turns; per turn: the mean over its valued comparisons, or
    `format_penalty` (None: no penalty) where comparisons were expected and none counted. A failed
    turn carries −1 on `generator` and nothing else.

    `unvoted` says what a valid turn without votes gets: no signal, 0, or the literal formula's −1.
    `judge_credit` says where judge values go: one for the `block`, one per `line`, or per `segment`
    (lines, and each part of the evaluation about one agent). `consensus: peer_prediction` compares
    across questions, so it needs batches with more than one.

    `shuffle_votes` is a control for experiments, not a way to train: it permutes the generator
    values of each (question, round) among the agents that have one, uniformly, so that credit
    keeps its distribution but says nothing about which agent won.

    Source: multi-agent debate overview, section 2.2. Deviations: `unvoted: mask`,
    `duplicates: one`, `ties: half` and `consensus: leave_one_out` are defaults that the text does
    not have; `literal`, `count`, `ignore` and `inclusive` are the text's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["v2"] = "v2"
    ties: Ties = "half"
    duplicates: Duplicates = "one"
    unvoted: Literal["mask", "zero", "literal"] = "mask"
    consensus: Consensus = "leave_one_out"
    judge_credit: JudgeCredit = "block"
    format_penalty: float | None = Field(default=-0.5, le=0)
    shuffle_votes: bool = False

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        debates = [read_debate(transcript) for transcript in transcripts]
        cast = [ballots(debate, self.duplicates) for debate in debates]
        values = self._vote_values(debates, cast)
        return [
            self._score(debate, its_ballots, its_values)
            for debate, its_ballots, its_values in zip(debates, cast, values, strict=True)
        ]

    def warning(self, num_agents: int, judge_weight: float) -> str | None:
        """Return why a judge stream of this weight teaches little with so few agents, or None."""
        if judge_weight <= 0 or num_agents >= 5:
            return None
        if self.consensus == "inclusive":
            found = (
                "each pair has one judge a round, whose value is always +1"
                if num_agents <= 3
                else "a judge is never outvoted, so no value is ever -1"
            )
        else:
            found = (
                "each pair has one judge a round, so no comparison gets a value and only the "
                "format penalty acts"
                if num_agents <= 3
                else "each pair has two judges a round, who can only copy each other"
            )
        return (
            f"v2 with {num_agents} agents and judge weight {judge_weight:g} "
            f"(consensus {self.consensus}): {found}. Use 5 or more agents, or judge weight 0."
        )

    def _vote_values(
        self, debates: Sequence[ReadDebate], cast: Sequence[Ballots]
    ) -> list[dict[Vote, float | None]]:
        """Return the judge value of each vote, per debate."""
        votes = [_all_votes(its_ballots.values()) for its_ballots in cast]
        if self.consensus == "peer_prediction":
            questions = [debate.transcript.question.id for debate in debates]
            elsewhere = verdicts_elsewhere(questions, votes)
            values = [peer_prediction_values(v, e) for v, e in zip(votes, elsewhere, strict=True)]
        else:
            values = [consensus_values(v, self.consensus) for v in votes]
        return [dict(zip(v, x, strict=True)) for v, x in zip(votes, values, strict=True)]

    def _score(
        self, debate: ReadDebate, cast: Ballots, vote_values: Mapping[Vote, float | None]
    ) -> Score:
        generator = self._generator_credits(debate, cast)
        judge = [
            credit
            for key, turn in debate.turns.items()
            if not turn.failed
            for credit in self._judge_credits(debate, turn, cast[key], vote_values)
        ]
        earned: list[list[float]] = [[] for _ in range(debate.transcript.protocol.num_agents)]
        for credit in generator:
            if credit.value is not None:
                earned[credit.agent].append(credit.value)
        return Score(
            credits=(*generator, *judge),
            agents=tuple(sum(values) / len(values) if values else None for values in earned),
            metrics=v2_metrics(debate, cast, generator, judge),
        )

    def _generator_credits(self, debate: ReadDebate, cast: Ballots) -> list[Credit]:
        shares = tally(_all_votes(cast.values()), self.ties)
        credits = []
        for key, turn in debate.turns.items():
            if turn.failed:
                credits.append(Credit(*key, "generator", FAILURE_VALUE, penalty=True))
            else:
                credits.append(Credit(*key, "generator", self._generator_value(shares.get(key))))
        return _shuffled(credits, debate.transcript.id) if self.shuffle_votes else credits

    def _generator_value(self, share: Share | None) -> float | None:
        if share is None:
            return {"mask": None, "zero": 0.0, "literal": -1.0}[self.unvoted]
        return 2 * share.up / (share.up + share.down) - 1

    def _judge_credits(
        self,
        debate: ReadDebate,
        turn: ReadTurn,
        cast: Ballot,
        vote_values: Mapping[Vote, float | None],
    ) -> list[Credit]:
        """Return a valid turn's judge value, then those of its lines and parts."""
        expected = debate.expected_pairs(turn) > 0
        whole = Credit(
            *turn.key,
            "judge",
            None,
            expected=expected,
            centred=self.consensus == "peer_prediction",
        )
        if missing_comparisons(debate, turn, cast) and self.format_penalty is not None:
            return [replace(whole, value=self.format_penalty, penalty=True)]
        lines = [(vote, vote_values[vote]) for vote in cast.votes]
        valued = [value for _, value in lines if value is not None]
        if valued:
            whole = replace(whole, value=sum(valued) / len(valued))
        return [whole, *span_credits(turn, whole, lines, self.judge_credit)]


def _all_votes(cast: Iterable[Ballot]) -> list[Vote]:
    return [vote for ballot in cast for vote in ballot.votes]


def _shuffled(credits: Sequence[Credit], transcript_id: str) -> list[Credit]:
    """Permute the values of each round among its agents that have one; failures stay."""
    rounds: dict[int, list[int]] = {}
    for index, credit in enumerate(credits):
        if credit.value is not None and not credit.penalty:
            rounds.setdefault(credit.round, []).append(index)
    shuffled = list(credits)
    for round_, indices in rounds.items():
        digest = hashlib.sha256(f"{transcript_id}\n{round_}".encode()).digest()
        order = random.Random(int.from_bytes(digest, "big")).sample(indices, len(indices))
        for index, source in zip(indices, order, strict=True):
            shuffled[index] = replace(credits[index], value=credits[source].value)
    return shuffled
