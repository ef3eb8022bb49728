"""What a state of a debate is worth: how often it comes out right from there."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from debate_protocol.types import Transcript, Turn, TurnKey, gives_answers, parse_turn, turn_failed
from debate_rewards.answers.checking import Verdict, check_many
from debate_rewards.reward import (
    FAILURE_VALUE,
    Credit,
    Need,
    RewardConfig,
    Score,
    check_turns,
    mean_returns,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StateValue:
    """The value of the state after a turn.

    `guide` is None for the debate's own turn, else it names the branch. `value` is the share of
    `rollouts` that ended right, or whether the turn itself is right where the debate ends with it
    or `continued: critic` continues no answers (`rollouts` 0, an exact value); None without either,
    or without a usable gold answer.
    `standard_error` is that of the mean, None for fewer than two roll-outs. `failed` roll-outs
    ended without a readable answer and count as wrong.
    """

    key: TurnKey
    guide: str | None
    value: float | None
    standard_error: float | None
    rollouts: int
    failed: int


class PartialTrajectory(RewardConfig):
    """The value of the state that each turn leads to, from 0 to 1, stream `generator`.

    It is the share of the turn's recorded continuations whose last answer is right. The turn that
    a debate ends with is worth 1 or 0 itself; a turn without continuations before the end has no
    signal. A failed turn carries −1. Branches are no turns of the debate and carry no credit:
    `state_values` has theirs. A question whose own answer is missing or cannot be read has no
    signal, and a warning names it.

    Source: ACC-Debate (paper), section 4.2, r(z, x, y) by one-step roll-out.
    """

    needs: ClassVar[frozenset[Need]] = frozenset(("answers",))
    can_be_tried: ClassVar[bool] = True

    type: Literal["partial_trajectory"] = "partial_trajectory"

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return ("generator",)

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        return [
            _score(transcript, found)
            for transcript, found in zip(transcripts, _found(transcripts), strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _Found:
    """A debate's states, and why its question has to be left out, if it has to be."""

    states: list[StateValue]
    left_out: str | None


def state_values(transcripts: Sequence[Transcript]) -> list[list[StateValue]]:
    """Return the values of each debate's states: of each turn, followed by its branches.

    Where a question's own answer is missing or cannot be read, no state of the debate has a
    value, and a warning names the question.
    """
    return [found.states for found in _found(transcripts)]


def _found(transcripts: Sequence[Transcript]) -> list[_Found]:
    for transcript in transcripts:
        check_turns(transcript)
    asked = [
        (transcript.question, _answer(transcript, end))
        for transcript in transcripts
        for _, _, ends in _states(transcript)
        for end in ends
    ]
    verdicts = iter(check_many(asked))
    return [_valued(transcript, verdicts) for transcript in transcripts]


def _valued(transcript: Transcript, verdicts: Iterator[Verdict]) -> _Found:
    states = _states(transcript)
    judged = [[next(verdicts) for _ in ends] for _, _, ends in states]
    unusable = [v.reason for own in judged for v in own if v.verdict == "unverifiable"]
    if unusable:
        _log.warning("question %r is left out: %s", transcript.question.id, unusable[0])
    values = []
    for (guide, turn, ends), own in zip(states, judged, strict=True):
        right = [verdict.verdict == "right" for verdict in own]
        mean = None if unusable or not right else sum(right) / len(right)
        if turn.continuations:
            error = None if mean is None else _standard_error(mean, len(right))
            failed = sum(turn_failed(transcript, end) for end in ends)
            values.append(StateValue(turn.key, guide, mean, error, len(right), failed))
        else:
            error = None if mean is None else 0.0
            values.append(StateValue(turn.key, guide, mean, error, 0, 0))
    return _Found(values, unusable[0] if unusable else None)


def _answer(transcript: Transcript, turn: Turn) -> str | None:
    return None if turn_failed(transcript, turn) else parse_turn(transcript, turn).answer


def _standard_error(mean: float, count: int) -> float | None:
    """Return that of a mean of zeros and ones: their sample deviation (n − 1) over √n."""
    return float((mean * (1 - mean) / (count - 1)) ** 0.5) if count > 1 else None


def _states(transcript: Transcript) -> list[tuple[str | None, Turn, list[Turn]]]:
    """Return each state's guide, its turn, and the answers that decide what it is worth."""
    rules = transcript.protocol
    answering = [turn.round for turn in transcript.turns if gives_answers(rules, turn.agent)]
    last_round = max(answering, default=-1)

    def ends(turn: Turn) -> list[Turn]:
        if turn.continuations:
            return [end for end in _leaves(turn) if gives_answers(rules, end.agent)]
        is_end = turn.round == last_round or rules.extra.get("continued") == "critic"
        return [turn] if is_end and gives_answers(rules, turn.agent) else []

    states: list[tuple[str | None, Turn, list[Turn]]] = []
    for turn in transcript.turns:
        states.append((None, turn, ends(turn)))
        states += [(branch.guide, branch.turn, ends(branch.turn)) for branch in turn.branches]
    return states


def _leaves(turn: Turn) -> list[Turn]:
    if not turn.continuations:
        return [turn]
    return [leaf for one in turn.continuations for leaf in _leaves(one)]


def _score(transcript: Transcript, found: _Found) -> Score:
    own = {state.key: state.value for state in found.states if state.guide is None}
    credits = []
    for turn in transcript.turns:
        value = own[turn.key]
        if found.left_out is None and turn_failed(transcript, turn):
            credits.append(Credit(*turn.key, "generator", FAILURE_VALUE, penalty=True))
        else:
            credits.append(Credit(*turn.key, "generator", value, expected=value is not None))
    agents = mean_returns(credits, transcript.protocol.num_agents)
    return Score(tuple(credits), agents, _metrics(transcript, found))


def _metrics(transcript: Transcript, found: _Found) -> dict[str, float]:
    """Return means over the debate's states, those that it has."""
    natural = {state.key: state for state in found.states if state.guide is None}
    values = [state.value for state in natural.values()]
    errors = [state.standard_error for state in natural.values() if state.rollouts]
    toward: list[float | None] = []
    away: list[float | None] = []
    for state in found.states:
        before = natural[state.key].value
        if state.guide is None or state.value is None or before is None:
            continue
        if state.guide == transcript.question.answer:
            toward.append(state.value - before)
        else:
            away.append(before - state.value)
    means = {
        "value": _mean(values),
        "standard_error": _mean(errors),
        "gain_to_right": _mean(toward),
        "loss_to_wrong": _mean(away),
    }
    metrics = {f"partial_trajectory/{k}": v for k, v in means.items() if v is not None}
    metrics["partial_trajectory/failed_rollouts"] = float(sum(s.failed for s in found.states))
    metrics["partial_trajectory/unverifiable_gold"] = float(found.left_out is not None)
    return metrics


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
