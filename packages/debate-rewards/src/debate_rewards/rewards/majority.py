"""The majority as a reward: each valid turn is valued by whether it agrees with most replies."""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Literal

from debate_protocol.types import Transcript, TurnKey
from debate_rewards.answers.checking import answer_classes
from debate_rewards.credits import FAILURE_VALUE, Credit, Score, mean_returns
from debate_rewards.reading import ReadDebate, read_debate
from debate_rewards.reward_config import Need, RewardConfig, Use
from debate_rewards.rewards.verifiable import has_known_kind
from debate_rewards.votes.decisions import peer_vote_of

_log = logging.getLogger(__name__)
Group = list[tuple[int, TurnKey]]
"""Turns whose answers are counted together, each with the number of its debate."""


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
        in_majority: list[dict[TurnKey, bool]] = [{} for _ in debates]
        for group in self._groups(debates):
            for (number, key), value in zip(group, self._agreement(debates, group), strict=True):
                if value is not None:
                    in_majority[number][key] = value
        return [self._score(*one) for one in zip(debates, in_majority, strict=True)]

    def needed(self) -> frozenset[Need]:
        """Return votes, where these verify the majority."""
        return frozenset(("votes",)) if self.verified else frozenset()

    def silence(self, stream: str, use: Use) -> str | None:
        """Return why no turn can differ from the majority."""
        if stream == "generator" and self.scope == "debate" and use.rules.num_agents < 3:
            return (
                f"in a debate of {use.rules.num_agents} nobody is outvoted; expected scope "
                "question with several debates on each question, or at least 3 agents"
            )
        return None

    def _groups(self, debates: Sequence[ReadDebate]) -> list[Group]:
        groups: dict[tuple[object, int], Group] = {}
        for number, debate in enumerate(debates):
            question = debate.transcript.question
            if not has_known_kind(question):
                _log.warning("question %r is left out: unknown_kind", question.id)
                continue
            scope: object = number if self.scope == "debate" else question.id
            for key in debate.turns:
                round_ = key.round if self.round == "each" else -1
                groups.setdefault((scope, round_), []).append((number, key))
        return list(groups.values())

    def _agreement(self, debates: Sequence[ReadDebate], group: Group) -> list[bool | None]:
        """Return per turn of a group whether it agrees with the majority; None without one."""
        turns = [debates[number].turns[key] for number, key in group]
        answers = [None if turn.failed else turn.parsed.answer for turn in turns]
        numbers = list(dict.fromkeys(number for number, _ in group)) if self.verified else []
        decided = [peer_vote_of(debates[number], 0) for number in numbers]
        question = debates[group[0][0]].transcript.question
        classes = answer_classes(question, [*answers, *decided])
        chosen = dict(zip(numbers, classes[len(group) :], strict=True))
        classes = classes[: len(group)]
        sizes = Counter(
            of
            for (number, key), of in zip(group, classes, strict=True)
            if of is not None and (self.round == "each" or key.round == debates[number].last_round)
        ).most_common(2)
        if not sizes or (len(sizes) == 2 and sizes[0][1] == sizes[1][1]):
            return [None] * len(group)
        most = sizes[0][0]
        return [
            of == most if chosen.get(number, most) == most else None
            for (number, _), of in zip(group, classes, strict=True)
        ]

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
