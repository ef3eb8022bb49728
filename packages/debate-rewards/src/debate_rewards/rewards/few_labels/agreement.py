"""Which turns give the answer of the majority: of a round, or of all debates of a question."""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from debate_protocol.types import TurnKey
from debate_rewards.answers.checking import answer_classes
from debate_rewards.reading import ReadDebate
from debate_rewards.reward_config import Use
from debate_rewards.rewards.verifiable import has_known_kind
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
