"""Rewards without labels: agreement with the majority, and the policy's own certainty."""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Literal

from debate_protocol.transcripts.records import mean_logp
from debate_protocol.types import Transcript, TurnKey
from debate_rewards.answers.checking import answer_classes
from debate_rewards.reward import (
    FAILURE_VALUE,
    Credit,
    Need,
    ReadDebate,
    RewardConfig,
    Score,
    Use,
    mean_returns,
    read_debate,
)
from debate_rewards.rewards.truth import YardstickJudge, has_known_kind
from debate_rewards.votes.decisions import peer_vote_of

_log = logging.getLogger(__name__)
Group = list[tuple[int, TurnKey]]
"""Turns whose answers are counted together, each with the number of its debate."""
Against = Literal["each", "last"]
"""Whether a turn is compared with its own round (`each`) or with the `last` rounds."""


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


def nobody_outvoted(use: Use) -> str | None:
    """Return why no turn of a debate can differ from its majority, None if one can."""
    if use.rules.num_agents >= 3:
        return None
    return (
        f"in a debate of {use.rules.num_agents} nobody is outvoted; expected at least 3 agents, or "
        "majority with scope question and several debates on each question"
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
    decided = [peer_vote_of(debates[number], 0) for number in numbers]
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


class Certainty(RewardConfig):
    """How likely the policy found what it said, stream `generator`; no answers are needed.

    A valid turn is worth the geometric mean of the probabilities of its sampled tokens,
    exp(mean log-probability), above 0 and at most 1, taken under the distribution that was sampled
    from. A failed turn carries −1. Where log-probabilities are not known there is no signal.

    It sharpens what the policy prefers already, right or wrong: an arm to compare with, and seldom
    a way to train.

    Source: the certainty rewards that arXiv 2603.08660 compares. Deviation: Intuitor's
    self-certainty (arXiv 2505.19590) is the mean divergence of whole next-token distributions from
    the uniform one, which engines do not return; this has the sampled tokens alone.
    """

    type: Literal["certainty"] = "certainty"

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return ("generator",)

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        return [self._score(read_debate(transcript)) for transcript in transcripts]

    def _score(self, debate: ReadDebate) -> Score:
        credits, known = [], []
        for key, turn in debate.turns.items():
            if turn.failed:
                credits.append(Credit(*key, "generator", FAILURE_VALUE, penalty=True))
                continue
            logp = mean_logp(turn.turn)
            value = None if logp is None else math.exp(logp)
            credits.append(Credit(*key, "generator", value, expected=value is not None))
            known += [] if value is None else [value]
        returns = mean_returns(credits, debate.transcript.protocol.num_agents)
        metrics = {"certainty/mean": sum(known) / len(known)} if known else {}
        return Score(tuple(credits), returns, metrics)


class Majority(RewardConfig):
    """Whether a turn's answer is that of the majority, as 1 or 0 or as ±1, stream `generator`.

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

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return ("generator",)

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        debates = [read_debate(transcript) for transcript in transcripts]
        found = in_majority(
            debates, scope=self.scope, against=self.round, is_verified=self.verified
        )
        return [self._score(*one) for one in zip(debates, found, strict=True)]

    def needed(self) -> frozenset[Need]:
        """Return votes, where these verify the majority."""
        return frozenset(("votes",)) if self.verified else frozenset()

    def silence(self, stream: str, use: Use) -> str | None:
        """Return why no turn can differ from the majority."""
        return nobody_outvoted(use) if stream == "generator" and self.scope == "debate" else None

    def _score(self, debate: ReadDebate, in_majority: dict[TurnKey, bool]) -> Score:
        minority = -1.0 if self.values == "plus_minus" else 0.0
        credits = []
        for key, turn in debate.turns.items():
            if turn.failed:
                credits.append(Credit(*key, "generator", FAILURE_VALUE, penalty=True))
            else:
                value = {True: 1.0, False: minority, None: None}[in_majority.get(key)]
                credits.append(Credit(*key, "generator", value))
        valid = [in_majority.get(key) for key, turn in debate.turns.items() if not turn.failed]
        decided = [agrees for agrees in valid if agrees is not None]
        metrics = {}
        if valid:
            metrics["majority/undecided"] = 1 - len(decided) / len(valid)
        if decided:
            metrics["majority/share"] = sum(decided) / len(decided)
        returns = mean_returns(credits, debate.transcript.protocol.num_agents)
        return Score(tuple(credits), returns, metrics)


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

    needs: ClassVar[frozenset[Need]] = frozenset(("votes",))

    type: Literal["majority_judge"] = "majority_judge"
    verified: bool = True
    """Whether the peers' votes must decide for the majority's answer, too."""

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        debates = [read_debate(transcript) for transcript in transcripts]
        yardsticks = in_majority(debates, scope="debate", against="each", is_verified=self.verified)
        return [self.score(*one) for one in zip(debates, yardsticks, strict=True)]

    def silence(self, stream: str, use: Use) -> str | None:
        """Return why no turn can differ from the majority."""
        return nobody_outvoted(use) if stream == "judge" else None
