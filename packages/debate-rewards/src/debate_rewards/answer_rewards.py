"""Rewards made of answers: the truth or the majority, of turns and of their judges."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from debate_protocol.types import Question, Transcript, TurnKey
from debate_rewards.answer_checking import Verdict, answer_classes, check_many, kind_of
from debate_rewards.decisions import peer_vote
from debate_rewards.reward import (
    FAILURE_VALUE,
    Credit,
    ReadDebate,
    RewardConfig,
    RewardContext,
    RewardNeeds,
    RewardNote,
    Score,
    build_score,
    known_mean,
    read_debate,
    turn_credits,
)
from debate_rewards.v2 import JudgeSettings
from debate_rewards.votes import JUDGE, Vote, VoteReward, all_votes, ballots, judged_ballots

_log = logging.getLogger(__name__)

Verdicts = dict[TurnKey, Verdict]
# Turns whose answers are counted together, each with the index of its debate.
Group = list[tuple[int, TurnKey]]
# Whether a turn is compared with its own round (`each`) or with the `last` rounds.
Against = Literal["each", "last"]
_LAST_ROUNDS = -1


def usable_verdicts(debates: Sequence[ReadDebate]) -> list[Verdicts | None]:
    """Check each debate's answers; `None` where the question's own answer is unusable.

    A warning names each question that is left out.
    """
    usable: list[Verdicts | None] = []
    for debate, verdicts in zip(debates, turn_verdicts(debates), strict=True):
        reasons = [v.reason for v in verdicts.values() if v.verdict == "unverifiable"]
        # The fault is the question's, so that one reason covers all turns.
        if reasons:
            _log.warning("question %r is left out: %s", debate.transcript.question.id, reasons[0])
            usable.append(None)
        else:
            usable.append(verdicts)
    return usable


def turn_verdicts(debates: Sequence[ReadDebate]) -> list[Verdicts]:
    """Check every turn's answer, failed turns too, per debate.

    A question of an unknown kind is unverifiable, which leaves out one debate and not all.
    """
    # All answers are checked in one call, so that worker processes share them out.
    answers: list[tuple[Question, str | None]] = []
    for debate in debates:
        question = debate.transcript.question
        if has_known_kind(question):
            for turn in debate.turns.values():
                answers.append((question, None if turn.failed else turn.parsed.answer))
    next_verdict = iter(check_many(answers))
    verdicts: list[Verdicts] = []
    for debate in debates:
        if has_known_kind(debate.transcript.question):
            verdicts.append({key: next(next_verdict) for key in debate.turns})
        else:
            unknown_kind = Verdict("unverifiable", "unknown_kind")
            verdicts.append(dict.fromkeys(debate.turns, unknown_kind))
    return verdicts


def has_known_kind(question: Question) -> bool:
    """Say whether the question's kind of answer is a known one."""
    try:
        kind_of(question)
    except ValueError:
        return False
    return True


class Verifiable(RewardConfig):
    """Right or wrong as +1 or −1 (`plus_minus`) or as 1 or 0 (`zero_one`), stream `generator`.

    A failed turn carries −1. When the question's own answer is missing or cannot be read, the
    whole debate has no signal, and a warning names the question.

    Source: SDRL (paper), verifiable outcome reward.
    """

    type: Literal["verifiable"] = "verifiable"
    values: Literal["plus_minus", "zero_one"] = "plus_minus"
    """A right and a wrong answer are +1 and -1 (`plus_minus`), or 1 and 0 (`zero_one`)."""
    contract_penalty: float = Field(0.0, le=0)
    """Added to the value of a turn that departs from its contract (`Parsed.problems`), down to -1:
    without it an answer that can be read is paid in full, whatever stands around it."""

    def needs(self) -> RewardNeeds:
        """Describe needs: answers."""
        return RewardNeeds(answers=True, policy=False)

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Score a batch of debates, in order."""
        debates = [read_debate(transcript) for transcript in transcripts]
        scores = []
        for debate, verdicts in zip(debates, usable_verdicts(debates), strict=True):
            scores.append(self._score(debate, verdicts))
        return scores

    def _score(self, debate: ReadDebate, verdicts: Verdicts | None) -> Score:
        if verdicts is None:
            credits = [Credit(*key, "generator", None, expected=False) for key in debate.turns]
            return build_score(debate.transcript, credits, {"verifiable/unverifiable_gold": 1.0})
        wrong_value = -1.0 if self.values == "plus_minus" else 0.0
        values: dict[TurnKey, float | None] = {}
        num_right = num_unreadable = 0
        for key, verdict in verdicts.items():
            turn = debate.turns[key]
            is_right = verdict.verdict == "right"
            num_right += is_right
            # Neither right nor compared and found different: it could not be read as an answer.
            is_unreadable = verdict.verdict == "wrong" and verdict.reason != "different"
            num_unreadable += is_unreadable and not turn.failed
            value = 1.0 if is_right else wrong_value
            if turn.parsed.problems:
                value += self.contract_penalty
            # Bounded, so that a readable answer is never worth less than a failed turn.
            values[key] = max(value, FAILURE_VALUE)
        metrics = {
            "verifiable/unverifiable_gold": 0.0,
            "verifiable/unreadable_predictions": float(num_unreadable),
            "verifiable/right": num_right / len(verdicts) if verdicts else None,
        }
        return build_score(debate.transcript, turn_credits(debate, values), metrics)


def truth_values(votes: Sequence[Vote], right: Mapping[TurnKey, bool]) -> list[float | None]:
    """Compute +1 for a vote that names the right turn of a pair, −1 for the wrong one, 0 for `=`.

    `None` where both turns are right or both are wrong, as the truth does not say which is better,
    and where it is not known of one of them. A verdict on one answer, right (`>`) or wrong (`<`),
    is worth +1 if it is true and −1 if not.

    Args:
        votes: Counted votes of one debate.
        right: Whether the answer of a judged turn is right, where the truth is known.
    """
    values: list[float | None] = []
    for vote in votes:
        left_is_right = right.get(vote.left)
        right_is_right = right.get(vote.right)
        is_unknown = left_is_right is None or right_is_right is None
        is_level_pair = vote.left != vote.right and left_is_right == right_is_right
        if is_unknown or is_level_pair:
            values.append(None)
        elif vote.verdict == "=":
            # The chance level of a guess and not None: a judge who says `=` whenever in doubt
            # would raise the mean of its other votes.
            values.append(0.0)
        else:
            names_left = vote.verdict == ">"
            values.append(1.0 if names_left == left_is_right else -1.0)
    return values


class YardstickJudge(JudgeSettings, VoteReward):
    """Base class of rewards of a judge's votes by the right turns."""

    @property
    def streams(self) -> tuple[str, ...]:
        """Streams with values."""
        return (JUDGE,)

    def score_votes(self, debate: ReadDebate, right: Mapping[TurnKey, bool]) -> Score:
        """Score a debate's judges.

        Args:
            debate: The debate.
            right: Whether each judged turn counts as right; votes about turns that are missing
                have no value.
        """
        turn_ballots = judged_ballots(debate, ballots(debate))
        values = truth_values(all_votes(turn_ballots), right)
        credits = self.judge_credits(debate, turn_ballots, values)
        metrics = {
            f"{self.type}/votes": float(len(values)),
            f"{self.type}/votes_with_value": float(sum(value is not None for value in values)),
            "reward/judge/mean": known_mean(c.value for c in credits if c.span is None),
        }
        return build_score(debate.transcript, credits, metrics)


class TruthJudge(YardstickJudge):
    """The value of each turn's comparisons against the truth, stream `judge`.

    A vote on a right and a wrong turn is worth +1 if it names the right one, −1 if it names the
    other, 0 if it is `=`; None where both are right or both wrong. A turn's value is the mean over
    its valued votes, or `format_penalty` where comparisons were expected and none counted. A
    verdict on one answer alone is worth +1 if it is true, −1 if not. Votes and `judge_credit` are
    as in `v2`; unlike there, three agents are enough.

    A question whose own answer is missing or cannot be read has no signal, and a warning names it.
    Failed turns carry nothing: mix it with a reward for the generator, such as `verifiable`, or
    `v2` with `consensus: none`.

    Source: the judge stream of v2 (multi-agent debate overview, section 2.2.2) with the truth in
    the place of the consensus, after section 5.1's mixing of ground truth into peer rewards.
    """

    type: Literal["truth_judge"] = "truth_judge"

    def needs(self) -> RewardNeeds:
        """Describe needs: answers, and comparisons."""
        return RewardNeeds(answers=True, votes=True, policy=False)

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Score a batch of debates, in order."""
        debates = [read_debate(transcript) for transcript in transcripts]
        scores = []
        for debate, verdicts in zip(debates, usable_verdicts(debates), strict=True):
            scores.append(self._score(debate, verdicts))
        return scores

    def _score(self, debate: ReadDebate, verdicts: Verdicts | None) -> Score:
        if verdicts is None:
            valid_keys = [key for key, turn in debate.judges.items() if not turn.failed]
            credits = [Credit(*key, JUDGE, None, expected=False) for key in valid_keys]
            return build_score(debate.transcript, credits, {"truth_judge/unverifiable_gold": 1.0})
        right = {key: verdict.verdict == "right" for key, verdict in verdicts.items()}
        score = self.score_votes(debate, right)
        return replace(score, metrics={"truth_judge/unverifiable_gold": 0.0, **score.metrics})


def in_majority(
    debates: Sequence[ReadDebate],
    *,
    scope: Literal["debate", "question"],
    against: Against,
    is_verified: bool,
) -> list[dict[TurnKey, bool]]:
    """Say whether each turn gives the majority's answer; turns without a majority are left out.

    Args:
        debates: The debates of a batch.
        scope: The majority of a `debate`, or of all debates of a `question`.
        against: The round that a turn is compared with.
        is_verified: Whether debates whose peers' votes decide for another answer are left out.
    """
    agreement_by_debate: list[dict[TurnKey, bool]] = [{} for _ in debates]
    for group in _majority_groups(debates, scope, against):
        for (index, key), agrees in _agreement(debates, group, against, is_verified).items():
            agreement_by_debate[index][key] = agrees
    return agreement_by_debate


def _majority_groups(debates: Sequence[ReadDebate], scope: str, against: Against) -> list[Group]:
    groups: dict[tuple[object, int], Group] = {}
    for index, debate in enumerate(debates):
        question = debate.transcript.question
        if not has_known_kind(question):
            _log.warning("question %r is left out: unknown_kind", question.id)
            continue
        voters: object = index if scope == "debate" else question.id
        for key in debate.turns:
            round_ = key.round if against == "each" else _LAST_ROUNDS
            groups.setdefault((voters, round_), []).append((index, key))
    return list(groups.values())


def _agreement(
    debates: Sequence[ReadDebate], group: Group, against: Against, is_verified: bool
) -> dict[tuple[int, TurnKey], bool]:
    """Compare the turns of a group with the majority, except in debates left out."""
    answers = []
    for index, key in group:
        turn = debates[index].turns[key]
        answers.append(None if turn.failed else turn.parsed.answer)
    peer_answers: dict[int, str | None] = {}
    if is_verified:
        for index in dict.fromkeys(index for index, _ in group):
            peer_answers[index] = peer_vote(debates[index], seed=0)
    # Answers of peers are classed with those of turns, so that equal ones have one number.
    question = debates[group[0][0]].transcript.question
    classes = answer_classes(question, [*answers, *peer_answers.values()])
    turn_classes = classes[: len(group)]
    peer_classes = dict(zip(peer_answers, classes[len(group) :], strict=True))

    class_sizes: Counter[int] = Counter()
    for (index, key), class_number in zip(group, turn_classes, strict=True):
        # Against the last round, earlier answers are compared with the majority but do not make it.
        has_vote = against == "each" or key.round == debates[index].last_round
        if has_vote and class_number is not None:
            class_sizes[class_number] += 1
    largest_size = max(class_sizes.values(), default=0)
    largest_classes = [number for number, size in class_sizes.items() if size == largest_size]
    # A winner by order would pay whichever answer was sampled first.
    if len(largest_classes) != 1:
        return {}
    (majority,) = largest_classes
    agreement = {}
    for (index, key), class_number in zip(group, turn_classes, strict=True):
        if peer_classes.get(index, majority) == majority:
            agreement[index, key] = class_number == majority
    return agreement


def nobody_outvoted(context: RewardContext) -> str | None:
    """Explain why turns of a debate never differ from the majority; `None` if they can."""
    if context.rules.num_agents >= 3:
        return None
    return (
        f"in a debate of {context.rules.num_agents} nobody is outvoted; expected at least 3, "
        "or majority with scope question and several debates on each question"
    )


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
        """Score a batch of debates, in order."""
        debates = [read_debate(transcript) for transcript in transcripts]
        agreement = in_majority(
            debates, scope=self.scope, against=self.round, is_verified=self.verified
        )
        minority_value = -1.0 if self.values == "plus_minus" else 0.0
        scores = []
        for debate, agrees in zip(debates, agreement, strict=True):
            values: dict[TurnKey, float | None] = {}
            for key, is_with_majority in agrees.items():
                values[key] = 1.0 if is_with_majority else minority_value
            # Failed turns have a value without a majority, and no part in these shares.
            valid_keys = [key for key, turn in debate.turns.items() if not turn.failed]
            decided = [agrees[key] for key in valid_keys if key in agrees]
            share_undecided = None
            if valid_keys:
                share_undecided = 1 - len(decided) / len(valid_keys)
            metrics = {"majority/undecided": share_undecided, "majority/share": known_mean(decided)}
            scores.append(build_score(debate.transcript, turn_credits(debate, values), metrics))
        return scores

    def needs(self) -> RewardNeeds:
        """Describe needs: comparisons where these verify the majority."""
        return RewardNeeds(votes=self.verified, policy=False)

    def notes(self, context: RewardContext) -> Iterator[RewardNote]:
        """Explain why no turn can differ from the majority."""
        text = nobody_outvoted(context)
        if text is not None and self.scope == "debate":
            yield RewardNote(kind="no_signal", text=text, stream="generator")


class MajorityJudge(YardstickJudge):
    """The value of each turn's comparisons against the majority's answer, stream `judge`.

    As `truth_judge`, with the answer that most agents of a round give in the place of the truth: a
    vote on a turn with it and a turn without it is worth +1 if it names the first, −1 if it names
    the second, 0 if it is `=`; None where both or neither give it, and in rounds where two answers
    are most frequent. With `verified` a debate has a signal only where its peers' votes decide for
    the majority's answer. No answers of the questions are needed.

    Source: CoVerRL (arXiv 2603.17775): majority answers that a majority of the model's own checks
    accepts are the targets of checks: right for these answers and wrong for others.
    Deviations: verdicts on pairs of turns in the place of checks of one reply, all other answers
    in the place of the least frequent one, −1 in the place of 0, and 0 for `=`.
    """

    type: Literal["majority_judge"] = "majority_judge"
    verified: bool = True
    """Whether the peers' votes must decide for the majority's answer, too."""

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Score a batch of debates, in order."""
        debates = [read_debate(transcript) for transcript in transcripts]
        agreement = in_majority(debates, scope="debate", against="each", is_verified=self.verified)
        scores = []
        for debate, agrees in zip(debates, agreement, strict=True):
            scores.append(self.score_votes(debate, agrees))
        return scores

    def needs(self) -> RewardNeeds:
        """Describe needs: comparisons, and answers on which a policy agrees."""
        return RewardNeeds(votes=True)

    def notes(self, context: RewardContext) -> Iterator[RewardNote]:
        """Explain why no turn can differ from the majority."""
        text = nobody_outvoted(context)
        if text is not None:
            yield RewardNote(kind="no_signal", text=text, stream=JUDGE)
