"""Accuracy beside the tokens that it took: what more samples, or more rounds, would give."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from debate_protocol.types import Transcript

if TYPE_CHECKING:
    from debate_rewards.metrics.answers_given import AnswersGiven

__all__ = ["Curves", "Point", "debate_curves", "reply_curves"]


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a curve.

    Attributes:
        x: The number of samples k, or the round from 0, of this point.
        tokens: Sampled tokens an answer, on average over the questions; None where turns hold
            neither their reply nor its counts.
        values: Per question whether the answer is right, averaged over what was played of it.
    """

    x: int
    tokens: float | None
    values: Mapping[str, float]


Curves = Mapping[str, Sequence[Point]]
"""Curve by name, its points in order of their cost."""

MOST_REPLIES = 64
"""The end of curves of replies, whose expectation over subsets takes time that grows with k²."""


def most_replies(replies: Sequence[Transcript]) -> int:
    """Return the largest k that every question has replies for, at most `MOST_REPLIES`."""
    counts = Counter(one.question.id for one in replies)
    return min(MOST_REPLIES, *counts.values()) if counts else 1


def reply_curves(replies: Sequence[Transcript], most: int) -> Curves:
    """Return the curves of single replies.

    `maj@k`: the majority of k replies, in expectation over all subsets of k of them and over
    ties; its cost is k times the mean length of the question's replies. `pass@k`: whether one of
    k is right, and `cons@k`: whether more than half of k are, at the same cost. A question with
    fewer than `most` replies is left out.

    Args:
        replies: Debates of one turn each, several of each question.
        most: The largest k.
    """
    from debate_rewards.answers.checking import answer_classes
    from debate_rewards.metrics.answers_given import answers_given
    from debate_rewards.metrics.subsets import majority_of_subsets, pass_at, right_in_most

    majority: list[dict[str, float]] = [{} for _ in range(most)]
    passed: list[dict[str, float]] = [{} for _ in range(most)]
    agreed: list[dict[str, float]] = [{} for _ in range(most)]
    lengths: dict[str, float | None] = {}
    for question, given in _by_question(answers_given(replies)).items():
        if len(given) < most:
            continue
        turns = [turn for one in given for turn in one.debate.turns.values()]
        right = [hit for one in given for hit in (one.right or {}).values()]
        answers = [None if turn.failed else turn.parsed.answer for turn in turns]
        classes = answer_classes(given[0].debate.transcript.question, answers)
        good = frozenset(n for n, hit in zip(classes, right, strict=True) if hit and n is not None)
        for k, value in enumerate(majority_of_subsets(classes, good, most), 1):
            majority[k - 1][question] = value
            passed[k - 1][question] = pass_at(sum(right), len(right), k)
            agreed[k - 1][question] = right_in_most(sum(right), len(right), k)
        lengths[question] = _mean([_sampled(one, None) for one in given])
    length = _mean(list(lengths.values()))
    costs = [None if length is None else k * length for k in range(1, most + 1)]
    named = {"maj@k": majority, "pass@k": passed, "cons@k": agreed}
    return {
        name: [Point(k, costs[k - 1], values) for k, values in enumerate(points, 1)]
        for name, points in named.items()
        if lengths
    }


def debate_curves(debates: Sequence[Transcript]) -> Curves:
    """Return the curves of debates, a point a round; all that was sampled until then is its cost.

    `debate/majority`: the majority of the round's answers, ties in expectation.
    `debate/agent`: the accuracy of one agent's answer in the round, on average over the agents.
    `debate/all_rounds`: the majority of all answers of this round and those before.
    `debate/central`, under topology central: the answer of the agent in the center.

    A debate that ended early goes on with the answers of its last round and costs nothing more.
    """
    from debate_rewards.metrics.answers_given import answers_given

    given = [
        one
        for one in answers_given(debates, across_rounds=True)
        if one.right is not None and one.debate.turns
    ]
    last = max((one.debate.last_round for one in given), default=-1)
    found: dict[str, list[Point]] = {}
    for round in range(last + 1):
        values: dict[str, dict[str, list[float]]] = {}
        costs: dict[str, list[float | None]] = {}
        for one in given:
            question = one.debate.transcript.question.id
            for name, value in _at_round(one, round).items():
                values.setdefault(name, {}).setdefault(question, []).append(value)
            costs.setdefault(question, []).append(_sampled(one, round))
        cost = _mean([_mean(each) for each in costs.values()])
        for name, each in values.items():
            means = {question: fmean(hits) for question, hits in each.items()}
            found.setdefault(name, []).append(Point(round, cost, means))
    return found


def _at_round(one: "AnswersGiven", round: int) -> dict[str, float]:
    """Return what is right after a round of a debate, by curve."""
    assert one.right is not None
    rounds = one.rounds()
    spoken = [number for number in rounds if number <= round]
    now = rounds[spoken[-1]] if spoken else []
    if not now:
        return {}
    right = one.right
    found = {
        "debate/majority": one.majority(now),
        "debate/agent": fmean(right[key] for key in now),
        "debate/all_rounds": one.majority(key for number in spoken for key in rounds[number]),
    }
    rules = one.debate.transcript.protocol
    if rules.topology == "central":
        own = [key for key in right if key.agent == (rules.center or 0) and key.round <= round]
        found["debate/central"] = float(bool(own) and right[max(own, key=lambda key: key.round)])
    return found


def _sampled(one: "AnswersGiven", last: int | None) -> float | None:
    """Return the tokens sampled up to a round, in all where it is None; None where not known."""
    turns = one.debate.transcript.turns
    counts = [turn.token_counts for turn in turns if last is None or turn.round <= last]
    return None if None in counts else float(sum(count[1] for count in counts if count))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _by_question(given: Sequence["AnswersGiven"]) -> dict[str, list["AnswersGiven"]]:
    found: dict[str, list[AnswersGiven]] = {}
    for one in given:
        if one.right is not None:
            found.setdefault(one.debate.transcript.question.id, []).append(one)
    return found
