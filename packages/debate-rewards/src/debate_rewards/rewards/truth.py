"""The truth as a reward: of turns by their answers, of judges by the turns they judged."""

import logging
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from debate_protocol.types import Question, Transcript, TurnKey
from debate_rewards.answers.checking import Verdict, check_many, kind_of
from debate_rewards.reward import (
    Credit,
    Need,
    ReadDebate,
    RewardConfig,
    Score,
    mean_returns,
    read_debate,
)
from debate_rewards.rewards.spans import JudgeCredit
from debate_rewards.votes.ballots import Duplicates, all_votes, ballots
from debate_rewards.votes.judging import JUDGE, judge_credits, truth_values


class YardstickJudge(RewardConfig):
    """What rewards have in common that value a judge's votes by which turns count as right."""

    duplicates: Duplicates = "one"
    """Whether a voter's repeated verdict on a pair counts as `one` or each time (`count`)."""
    judge_credit: JudgeCredit = "block"
    """Where a judge's values go: one for the `block`, one per `line`, or per `segment` (lines,
    and each part of the evaluation about one agent)."""
    format_penalty: float | None = Field(default=-0.5, le=0)
    """What a turn is worth as a judge where comparisons were expected and none counted; under
    `line` and `segment` also a line that does not count, and ending with pairs left out. Null is no
    penalty."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return (JUDGE,)

    def score(self, debate: ReadDebate, right: Mapping[TurnKey, bool]) -> Score:
        """Return the values of a debate's judges.

        Args:
            debate: The debate.
            right: Whether each judged turn counts as right; votes about turns that are missing
                have no value.
        """
        cast = ballots(debate, self.duplicates)
        values = truth_values(all_votes(cast), right)
        credits = judge_credits(
            debate,
            cast,
            values,
            judge_credit=self.judge_credit,
            format_penalty=self.format_penalty,
        )
        metrics = {
            f"{self.type}/votes": float(len(values)),
            f"{self.type}/votes_with_value": float(sum(value is not None for value in values)),
        }
        turns = [c.value for c in credits if c.span is None and c.value is not None]
        if turns:
            metrics["reward/judge/mean"] = sum(turns) / len(turns)
        returns = mean_returns(credits, debate.transcript.protocol.num_agents)
        return Score(tuple(credits), returns, metrics)


_log = logging.getLogger(__name__)
Verdicts = dict[TurnKey, Verdict]


class Verifiable(RewardConfig):
    """Right or wrong as +1 or −1 (`plus_minus`) or as 1 or 0 (`zero_one`), stream `generator`.

    A failed turn carries −1. When the question's own answer is missing or cannot be read, the
    whole debate has no signal, and a warning names the question.

    Source: SDRL (paper), verifiable outcome reward.
    """

    needs: ClassVar[frozenset[Need]] = frozenset(("answers",))
    can_be_tried: ClassVar[bool] = True

    type: Literal["verifiable"] = "verifiable"
    values: Literal["plus_minus", "zero_one"] = "plus_minus"
    """A right and a wrong answer are +1 and -1 (`plus_minus`), or 1 and 0 (`zero_one`)."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return ("generator",)

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        return [self._score(*one) for one in with_verdicts(transcripts)]

    def _score(self, debate: ReadDebate, verdicts: Verdicts | None) -> Score:
        num_agents = debate.transcript.protocol.num_agents
        if verdicts is None:
            credits = tuple(Credit(*key, "generator", None, expected=False) for key in debate.turns)
            return Score(credits, (None,) * num_agents, {"verifiable/unverifiable_gold": 1.0})
        wrong = -1.0 if self.values == "plus_minus" else 0.0
        credits = tuple(
            Credit(*key, "generator", -1.0, penalty=True)
            if turn.failed
            else Credit(*key, "generator", 1.0 if verdicts[key].verdict == "right" else wrong)
            for key, turn in debate.turns.items()
        )
        earned: list[list[float]] = [[] for _ in range(num_agents)]
        for credit in credits:
            if credit.value is not None:
                earned[credit.agent].append(credit.value)
        agents = tuple(sum(values) / len(values) if values else None for values in earned)
        return Score(credits, agents, _metrics(debate, verdicts))


def with_verdicts(transcripts: Sequence[Transcript]) -> list[tuple[ReadDebate, Verdicts | None]]:
    """Return debates with the verdicts on their turns, None where no answer can be judged.

    A warning names the question of each that has none.
    """
    return _with_verdicts([read_debate(transcript) for transcript in transcripts])


def truth_of(debates: Sequence[ReadDebate]) -> list[dict[TurnKey, bool] | None]:
    """Return which turns are right, per debate; None as in `with_verdicts`."""
    return [
        None if verdicts is None else {key: v.verdict == "right" for key, v in verdicts.items()}
        for _, verdicts in _with_verdicts(debates)
    ]


def _with_verdicts(debates: Sequence[ReadDebate]) -> list[tuple[ReadDebate, Verdicts | None]]:
    found: list[tuple[ReadDebate, Verdicts | None]] = []
    for debate, verdicts in zip(debates, turn_verdicts(debates), strict=True):
        unusable = [v.reason for v in verdicts.values() if v.verdict == "unverifiable"]
        if unusable:
            _log.warning("question %r is left out: %s", debate.transcript.question.id, unusable[0])
        found.append((debate, None if unusable else verdicts))
    return found


def turn_verdicts(debates: Sequence[ReadDebate]) -> list[Verdicts]:
    """Return the verdict on every turn's answer, failed turns included, per debate.

    A question of an unknown kind is unverifiable, so that it leaves out one debate and not all.
    """
    usable = [has_known_kind(debate.transcript.question) for debate in debates]
    asked = [
        (debate.transcript.question, None if turn.failed else turn.parsed.answer)
        for debate, is_usable in zip(debates, usable, strict=True)
        if is_usable
        for turn in debate.turns.values()
    ]
    verdicts = iter(check_many(asked))
    unknown = Verdict("unverifiable", "unknown_kind")
    return [
        {key: next(verdicts) if is_usable else unknown for key in debate.turns}
        for debate, is_usable in zip(debates, usable, strict=True)
    ]


def has_known_kind(question: Question) -> bool:
    """Return whether the question's kind of answer is a known one."""
    try:
        kind_of(question)
    except ValueError:
        return False
    return True


def _metrics(debate: ReadDebate, verdicts: Verdicts) -> dict[str, float]:
    unread = sum(
        verdicts[key].verdict == "wrong" and verdicts[key].reason != "different"
        for key, turn in debate.turns.items()
        if not turn.failed
    )
    metrics = {
        "verifiable/unverifiable_gold": 0.0,
        "verifiable/unreadable_predictions": float(unread),
    }
    if verdicts:
        right = sum(verdict.verdict == "right" for verdict in verdicts.values())
        metrics["verifiable/right"] = right / len(verdicts)
    return metrics


class TruthJudge(YardstickJudge):
    """What each turn's comparisons are worth against the truth, stream `judge`.

    A vote on a right and a wrong turn is worth +1 if it names the right one, −1 if it names the
    other, 0 if it is `=`; None where both are right or both wrong. A turn's value is the mean over
    its valued votes, or `format_penalty` where comparisons were owed and none counted. Votes,
    `duplicates` and `judge_credit` are as in `v2`; unlike there, three agents are enough.

    A question whose own answer is missing or cannot be read has no signal, and a warning names it.
    Failed turns carry nothing: mix it with a reward for the generator, such as `verifiable`, or
    `v2` with `consensus: none`.

    Source: the judge stream of v2 (multi-agent debate overview, section 2.2.2) with the truth in
    the place of the consensus, after section 5.1's mixing of ground truth into peer rewards.
    """

    needs: ClassVar[frozenset[Need]] = frozenset(
        (
            "answers",
            "votes",
        )
    )
    can_be_tried: ClassVar[bool] = True

    type: Literal["truth_judge"] = "truth_judge"

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        return [self._score(*one) for one in with_verdicts(transcripts)]

    def _score(self, debate: ReadDebate, verdicts: Verdicts | None) -> Score:
        if verdicts is None:
            credits = [
                Credit(*key, JUDGE, None, expected=False)
                for key, turn in debate.judges.items()
                if not turn.failed
            ]
            nobody = (None,) * debate.transcript.protocol.num_agents
            return Score(tuple(credits), nobody, {"truth_judge/unverifiable_gold": 1.0})
        right = {key: verdict.verdict == "right" for key, verdict in verdicts.items()}
        score = self.score(debate, right)
        return Score(
            score.credits, score.agents, {"truth_judge/unverifiable_gold": 0.0, **score.metrics}
        )
