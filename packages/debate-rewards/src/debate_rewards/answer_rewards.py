"""Rewards made of answers: the truth or the majority, of turns and of their judges."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from debate_protocol.types import Question, Transcript, TurnKey
from debate_rewards.answer_checking import Verdict, answer_classes, check_many, kind_of
from debate_rewards.decisions import peer_vote
from debate_rewards.reward import (
    FAILURE_VALUE,
    Credit,
    ReadDebate,
    ReadTurn,
    Requirement,
    RewardConfig,
    RewardContext,
    Score,
    known_mean,
    read_debate,
    scored,
    turn_credits,
)
from debate_rewards.votes import JUDGE, JudgeSettings, VoteReward, all_votes, ballots, truth_values


class YardstickJudge(JudgeSettings, VoteReward):
    """What rewards have in common that value a judge's votes by which turns count as right."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return (JUDGE,)

    def score_votes(self, debate: ReadDebate, right: Mapping[TurnKey, bool]) -> Score:
        """Return the values of a debate's judges.

        Args:
            debate: The debate.
            right: Whether each judged turn counts as right; votes about turns that are missing
                have no value.
        """
        cast = ballots(debate, self.duplicates)
        values = truth_values(all_votes(cast), right)
        credits = self.judge_credits(debate, cast, values)
        metrics = {
            f"{self.type}/votes": float(len(values)),
            f"{self.type}/votes_with_value": float(sum(value is not None for value in values)),
            "reward/judge/mean": known_mean(c.value for c in credits if c.span is None),
        }
        return scored(debate.transcript, credits, metrics)


_log = logging.getLogger(__name__)
Verdicts = dict[TurnKey, Verdict]


class Verifiable(RewardConfig):
    """Right or wrong as +1 or −1 (`plus_minus`) or as 1 or 0 (`zero_one`), stream `generator`.

    A failed turn carries −1. When the question's own answer is missing or cannot be read, the
    whole debate has no signal, and a warning names the question.

    Source: SDRL (paper), verifiable outcome reward.
    """

    needs: ClassVar[frozenset[Requirement]] = frozenset(("answers",))
    can_be_tried: ClassVar[bool] = True

    type: Literal["verifiable"] = "verifiable"
    values: Literal["plus_minus", "zero_one"] = "plus_minus"
    """A right and a wrong answer are +1 and -1 (`plus_minus`), or 1 and 0 (`zero_one`)."""
    contract_penalty: float = Field(0.0, le=0)
    """Added to the value of a turn that departs from its contract (`Parsed.problems`), down to -1:
    without it an answer that can be read is paid in full, whatever stands around it."""

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        debates = [read_debate(transcript) for transcript in transcripts]
        return [self._score(*one) for one in zip(debates, usable_verdicts(debates), strict=True)]

    def _score(self, debate: ReadDebate, verdicts: Verdicts | None) -> Score:
        if verdicts is None:
            credits = [Credit(*key, "generator", None, expected=False) for key in debate.turns]
            return scored(debate.transcript, credits, {"verifiable/unverifiable_gold": 1.0})
        wrong = -1.0 if self.values == "plus_minus" else 0.0
        right = {key: one.verdict == "right" for key, one in verdicts.items()}
        credits = turn_credits(
            debate,
            {
                key: max((1.0 if one else wrong) + self._penalty(debate.turns[key]), FAILURE_VALUE)
                for key, one in right.items()
            },
        )
        unread = sum(
            one.verdict == "wrong" and one.reason != "different" and not debate.turns[key].failed
            for key, one in verdicts.items()
        )
        metrics = {
            "verifiable/unverifiable_gold": 0.0,
            "verifiable/unreadable_predictions": float(unread),
            "verifiable/right": known_mean(map(float, right.values())),
        }
        return scored(debate.transcript, credits, metrics)

    def _penalty(self, turn: ReadTurn) -> float:
        return self.contract_penalty if turn.parsed.problems else 0.0


def usable_verdicts(debates: Sequence[ReadDebate]) -> list[Verdicts | None]:
    """Return the verdicts on each debate's turns, None where the question's answer is unusable.

    A warning names each question that is left out.
    """
    found: list[Verdicts | None] = []
    for debate, verdicts in zip(debates, turn_verdicts(debates), strict=True):
        unusable = [v.reason for v in verdicts.values() if v.verdict == "unverifiable"]
        if unusable:
            _log.warning("question %r is left out: %s", debate.transcript.question.id, unusable[0])
        found.append(None if unusable else verdicts)
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

    needs: ClassVar[frozenset[Requirement]] = frozenset(("answers", "votes"))

    type: Literal["truth_judge"] = "truth_judge"

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        debates = [read_debate(transcript) for transcript in transcripts]
        return [self._score(*one) for one in zip(debates, usable_verdicts(debates), strict=True)]

    def _score(self, debate: ReadDebate, verdicts: Verdicts | None) -> Score:
        if verdicts is None:
            valid = [key for key, turn in debate.judges.items() if not turn.failed]
            credits = [Credit(*key, JUDGE, None, expected=False) for key in valid]
            return scored(debate.transcript, credits, {"truth_judge/unverifiable_gold": 1.0})
        right = {key: verdict.verdict == "right" for key, verdict in verdicts.items()}
        score = self.score_votes(debate, right)
        return replace(score, metrics={"truth_judge/unverifiable_gold": 0.0, **score.metrics})


# Turns whose answers are counted together, each with the number of its debate.
Group = list[tuple[int, TurnKey]]
# Whether a turn is compared with its own round (`each`) or with the `last` rounds.
Against = Literal["each", "last"]


def in_majority(
    debates: Sequence[ReadDebate],
    *,
    scope: Literal["debate", "question"],
    against: Against,
    is_verified: bool,
) -> list[dict[TurnKey, bool]]:
    """Return whether each turn gives the majority's answer, per debate; left out without one.

    Args:
        debates: The debates of a batch.
        scope: Whose majority: that of a `debate`, or of all debates of a `question`.
        against: Which round a turn is compared with.
        is_verified: Whether debates whose peers' votes decide for another answer are left out.
    """
    found: list[dict[TurnKey, bool]] = [{} for _ in debates]
    for group in _groups(debates, scope, against):
        agreement = _agreement(debates, group, against, is_verified)
        for (number, key), value in zip(group, agreement, strict=True):
            if value is not None:
                found[number][key] = value
    return found


def nobody_outvoted(context: RewardContext) -> str | None:
    """Return why no turn of a debate can differ from its majority, None if one can."""
    if context.rules.num_agents >= 3:
        return None
    return (
        f"in a debate of {context.rules.num_agents} nobody is outvoted; expected at least 3, "
        "or majority with scope question and several debates on each question"
    )


def _groups(debates: Sequence[ReadDebate], scope: str, against: Against) -> list[Group]:
    groups: dict[tuple[object, int], Group] = {}
    for number, debate in enumerate(debates):
        question = debate.transcript.question
        if not has_known_kind(question):
            _log.warning("question %r is left out: unknown_kind", question.id)
            continue
        whose: object = number if scope == "debate" else question.id
        for key in debate.turns:
            round_ = key.round if against == "each" else -1
            groups.setdefault((whose, round_), []).append((number, key))
    return list(groups.values())


def _agreement(
    debates: Sequence[ReadDebate], group: Group, against: Against, is_verified: bool
) -> list[bool | None]:
    """Return per turn of a group whether it agrees with the majority; None without one."""
    turns = [debates[number].turns[key] for number, key in group]
    answers = [None if turn.failed else turn.parsed.answer for turn in turns]
    numbers = list(dict.fromkeys(number for number, _ in group)) if is_verified else []
    decided = [peer_vote(debates[number], 0) for number in numbers]
    question = debates[group[0][0]].transcript.question
    classes = answer_classes(question, [*answers, *decided])
    chosen = dict(zip(numbers, classes[len(group) :], strict=True))
    classes = classes[: len(group)]
    sizes = Counter(
        of
        for (number, key), of in zip(group, classes, strict=True)
        if of is not None and (against == "each" or key.round == debates[number].last_round)
    ).most_common(2)
    if not sizes or (len(sizes) == 2 and sizes[0][1] == sizes[1][1]):
        return [None] * len(group)
    most = sizes[0][0]
    return [
        of == most if chosen.get(number, most) == most else None
        for (number, _), of in zip(group, classes, strict=True)
    ]


class Majority(RewardConfig):
    """Whether a turn gives the majority's answer, as 1 or 0 or as ±1, stream `generator`.

    The majority is the largest class of equivalent answers in one round, of the debate
    (`scope: debate`) or of all debates of the batch on the same question (`scope: question`). Each
    turn is compared with its own round (`round: each`), or with the last rounds of these debates
    (`round: last`). A turn without an answer has no vote. Where two classes are largest, or nobody
    answered, there is no majority and no signal. With `verified` a debate has a signal only where
    its peers' votes decide for the majority's answer, too. A failed turn carries −1. No answers of
    the questions are needed.

    Source: TTRL (Zuo et al. 2025, arXiv 2504.16084), section 2: reward 1 if the prediction equals
    the most common of the sampled answers, else 0; there all samples of a prompt are the group,
    which is `scope: question` for single replies. Deviations: answers are counted by equivalence,
    and a tie has no signal instead of a winner by order. `verified` is after CoVerRL (arXiv
    2603.17775), where the model's own checks filter its majority; here votes on pairs do.
    """

    can_be_tried: ClassVar[bool] = True

    type: Literal["majority"] = "majority"
    values: Literal["plus_minus", "zero_one"] = "zero_one"
    """With the majority and against it are +1 and -1 (`plus_minus`), or 1 and 0 (`zero_one`)."""
    scope: Literal["debate", "question"] = "question"
    """Whose majority: that of a `debate`, or of all debates of a `question`."""
    round: Literal["each", "last"] = "each"
    """Whether a turn is compared with its own round (`each`) or with the `last` rounds."""
    verified: bool = False
    """Whether the peers' votes must decide for the majority's answer, too."""

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        debates = [read_debate(transcript) for transcript in transcripts]
        found = in_majority(
            debates, scope=self.scope, against=self.round, is_verified=self.verified
        )
        return [self._score(*one) for one in zip(debates, found, strict=True)]

    def needed(self) -> frozenset[Requirement]:
        """Return votes, where these verify the majority."""
        return frozenset(("votes",)) if self.verified else frozenset()

    def why_no_signal(self, stream: str, context: RewardContext) -> str | None:
        """Return why no turn can differ from the majority."""
        return (
            nobody_outvoted(context) if stream == "generator" and self.scope == "debate" else None
        )

    def _score(self, debate: ReadDebate, in_majority: dict[TurnKey, bool]) -> Score:
        minority = -1.0 if self.values == "plus_minus" else 0.0
        values = {key: 1.0 if agrees else minority for key, agrees in in_majority.items()}
        valid = [in_majority.get(key) for key, turn in debate.turns.items() if not turn.failed]
        metrics = {
            "majority/undecided": 1 - sum(v is not None for v in valid) / len(valid)
            if valid
            else None,
            "majority/share": known_mean(valid),
        }
        return scored(debate.transcript, turn_credits(debate, values), metrics)


class MajorityJudge(YardstickJudge):
    """What each turn's comparisons are worth against the majority's answer, stream `judge`.

    As `truth_judge`, with the answer that most agents of a round give in the place of the truth: a
    vote on a turn with it and a turn without it is worth +1 if it names the first, −1 if it names
    the second, 0 if it is `=`; None where both or neither give it, and in rounds where two answers
    are most frequent. With `verified` a debate has a signal only where its peers' votes decide for
    the majority's answer. No answers of the questions are needed.

    Source: CoVerRL (arXiv 2603.17775): majority answers that a majority of the model's own checks
    accepts are what its checks are trained on, right for those answers and wrong for others.
    Deviations: verdicts on pairs of turns in the place of checks of one reply, all other answers
    in the place of the least frequent one, −1 in the place of 0, and 0 for `=`.
    """

    can_be_tried: ClassVar[bool] = False

    type: Literal["majority_judge"] = "majority_judge"
    verified: bool = True
    """Whether the peers' votes must decide for the majority's answer, too."""

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        debates = [read_debate(transcript) for transcript in transcripts]
        yardsticks = in_majority(debates, scope="debate", against="each", is_verified=self.verified)
        return [self.score_votes(*one) for one in zip(debates, yardsticks, strict=True)]

    def why_no_signal(self, stream: str, context: RewardContext) -> str | None:
        """Return why no turn can differ from the majority."""
        return nobody_outvoted(context) if stream == "judge" else None
