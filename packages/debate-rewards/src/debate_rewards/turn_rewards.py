"""Rewards made of what follows a turn, its opinions, its length or its certainty."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from debate_protocol.parsing import evaluation_parts, says_nothing
from debate_protocol.transcripts.files import mean_logp
from debate_protocol.types import Transcript, Turn, TurnKey, gives_answers, parse_turn, turn_failed
from debate_rewards.answer_checking import Verdict, check_many
from debate_rewards.reward import (
    FAILURE_VALUE,
    Credit,
    ReadDebate,
    ReadTurn,
    Requirement,
    RewardConfig,
    RewardContext,
    Score,
    build_score,
    check_turns,
    known_mean,
    turn_credits,
)
from debate_rewards.votes import PeerReward, ballots, tally

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

    needs: ClassVar[frozenset[Requirement]] = frozenset(("answers",))
    can_be_tried: ClassVar[bool] = True

    type: Literal["partial_trajectory"] = "partial_trajectory"

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        found = _found(transcripts)
        return [_state_score(*one) for one in zip(transcripts, found, strict=True)]


class _Found(NamedTuple):
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
        (
            transcript.question,
            None if turn_failed(transcript, end) else parse_turn(transcript, end).answer,
        )
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
        played = len(right) if turn.continuations else 0
        failed = sum(turn_failed(transcript, end) for end in ends) if played else 0
        error = None if mean is None else _standard_error(mean, len(right)) if played else 0.0
        values.append(StateValue(turn.key, guide, mean, error, played, failed))
    return _Found(values, unusable[0] if unusable else None)


def _standard_error(mean: float, count: int) -> float | None:
    """Return the standard error of a mean of zeros and ones: their deviation (n − 1) over √n."""
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
    return [leaf for one in turn.continuations for leaf in _leaves(one)] or [turn]


def _state_score(transcript: Transcript, found: _Found) -> Score:
    natural = {state.key: state for state in found.states if state.guide is None}
    credits = []
    for turn in transcript.turns:
        value = natural[turn.key].value
        if found.left_out is None and turn_failed(transcript, turn):
            credits.append(Credit(*turn.key, "generator", FAILURE_VALUE, penalty=True))
        else:
            credits.append(Credit(*turn.key, "generator", value, expected=value is not None))
    toward: list[float] = []
    away: list[float] = []
    for state in found.states:
        before = natural[state.key].value
        if state.guide is None or state.value is None or before is None:
            continue
        if state.guide == transcript.question.answer:
            toward.append(state.value - before)
        else:
            away.append(before - state.value)
    metrics = {
        "value": known_mean(state.value for state in natural.values()),
        "standard_error": known_mean(s.standard_error for s in natural.values() if s.rollouts),
        "gain_to_right": known_mean(toward),
        "loss_to_wrong": known_mean(away),
        "failed_rollouts": float(sum(state.failed for state in found.states)),
        "unverifiable_gold": float(found.left_out is not None),
    }
    named = {f"partial_trajectory/{name}": value for name, value in metrics.items()}
    return build_score(transcript, credits, named)


# The stream's name; it covers the evaluation.
CRITIC = "critic"


class Persuasion(PeerReward):
    """How far a critique lowered the group's opinion of its target, in [−1, 1], stream `critic`.

    A critique is a turn's evaluation of one other agent: its target. The opinion of judge j of an
    agent in one ballot is 2·for/(for + against) − 1 over j's votes about that agent there. For
    every judge who is neither critic nor target, `after` is its first turn that was shown the
    critique and `before` its turn before that one. With J the judges who voted about the target
    in both,

        value = mean over j in J of (opinion_before(j) − opinion_after(j)) / 2

    A part of the evaluation that names the target earns this value; the rest of the evaluation
    earns the mean over the turn's targets. An evaluation that names nobody is about the agent it
    was shown, if that was one; else it has no target.

    None without a judge in J. Nobody is shown a critique of the last round, and a first turn has
    no turn before it: parallel debates need three agents and three rounds. Failed turns carry
    nothing here. Between the ballots the target speaks again, and a good answer takes back what
    the critique had won; critiques of one target in one round share what they did together.

    Source: the shift of an audience's vote between two ballots by which Oxford-style debates are
    won (Zhang et al. 2016, Conversational flow in Oxford-style debates), taken per judge and
    target; our own as a reward.
    """

    type: Literal["persuasion"] = "persuasion"

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return (CRITIC,)

    def why_no_signal(self, stream: str, context: RewardContext) -> str | None:
        """Return why no critique has a value."""
        return (
            "persuasion compares votes on a critique's target before and after it was read, and "
            f"nobody votes twice around one: found {context.rules.max_rounds} rounds; expected 3 "
            "agents and 3 rounds at least, and evaluations in the contract"
        )

    def score(self, debate: ReadDebate) -> Score:
        """Return the score of one debate."""
        opinions = {
            key: {turn.agent: share.balance for turn, share in tally(cast.votes, self.ties).items()}
            for key, cast in ballots(debate, self.duplicates).items()
        }
        changes = _changes(debate)
        credits: list[Credit] = []
        values: list[float | None] = []
        for turn in debate.judges.values():
            if not turn.failed:
                parts, targets = critique_targets(debate, turn)
                falls = {target: _fall(opinions, changes, turn, target) for target in targets}
                values += falls.values()
                credits += critique_credits(turn, parts, falls)
        metrics = {
            "persuasion/critiques": float(len(values)),
            "persuasion/critiques_with_value": float(sum(value is not None for value in values)),
            "persuasion/mean": known_mean(values),
        }
        return build_score(debate.transcript, credits, metrics)


_Part = tuple[int, tuple[int, int]]


def critique_targets(debate: ReadDebate, turn: ReadTurn) -> tuple[list[_Part], list[int]]:
    """Return the parts of a turn's evaluation with their agents, and the agents it criticises."""
    shown = debate.judged_by(turn).keys() - {turn.key.agent}
    parts = [
        (agent, span)
        for agent, span in evaluation_parts(turn.turn.text, turn.parsed)
        if agent in shown
    ]
    if parts:
        return parts, list(dict.fromkeys(agent for agent, _ in parts))
    section = turn.parsed.sections.get("evaluation")
    if len(shown) == 1 and section is not None and not says_nothing(section.text):
        return [], list(shown)
    return [], []


_Changes = Mapping[TurnKey, Sequence[tuple[TurnKey, TurnKey]]]


def _changes(debate: ReadDebate) -> _Changes:
    """Return, for each turn, its readers' last turns before they were shown it and first after."""
    spoken: dict[int, list[TurnKey]] = {}
    for key in sorted(debate.turns):
        spoken.setdefault(key.agent, []).append(key)
    changes: dict[TurnKey, list[tuple[TurnKey, TurnKey]]] = {}
    for own in spoken.values():
        seen: set[TurnKey] = set(debate.turns[own[0]].turn.shown)
        for before, after in pairwise(own):
            shown = set(debate.turns[after].turn.shown) - seen
            seen |= shown
            for key in shown:
                changes.setdefault(key, []).append((before, after))
    return changes


def _fall(
    opinions: Mapping[TurnKey, Mapping[int, float]],
    changes: _Changes,
    critique: ReadTurn,
    target: int,
) -> float | None:
    falls: list[float] = []
    for before, after in changes.get(critique.key, ()):
        if after.agent in (critique.key.agent, target):
            continue
        if target in opinions[before] and target in opinions[after]:
            falls.append((opinions[before][target] - opinions[after][target]) / 2)
    return known_mean(falls)


def critique_credits(
    turn: ReadTurn, parts: Sequence[_Part], worth: Mapping[int, float | None]
) -> list[Credit]:
    """Return the credits of a turn's critiques: their mean, and that of each part.

    Args:
        turn: The critic's.
        parts: Of its evaluation, each with its target.
        worth: What the critiques of each target are worth, None where that is not known.
    """
    mean = known_mean(worth.values())
    whole = Credit(*turn.key, CRITIC, mean, expected=bool(worth))
    if mean is None:
        return [whole]
    spans = [Credit(*turn.key, CRITIC, worth[agent], span, expected=False) for agent, span in parts]
    return [whole, *spans]


class Overlong(RewardConfig):
    """Minus what a turn's length l earns, stream `generator`.

    With L = `max_tokens` and B = `buffer`: 0 up to L − B tokens, then −factor · (l − (L − B)) / B,
    and −factor from L on. Length is all that counts, for failed turns too: what a failure costs is
    left to the reward this one is mixed with. A turn whose prompt filled the context has no
    signal.

    The length is the number of sampled tokens, the end token or stop string included. A turn of a
    file that does not say how many these were has no signal.

    Source: DAPO (Yu et al. 2025), soft overlong punishment, eq. 13, where factor is 1.
    """

    can_be_tried: ClassVar[bool] = True

    type: Literal["overlong"] = "overlong"
    max_tokens: int = Field(ge=1)
    """Length in tokens from which the whole penalty holds."""
    buffer: int = Field(ge=1)
    """Tokens below `max_tokens` over which the penalty grows evenly."""
    factor: float = Field(default=1.0, ge=0)
    """The whole penalty."""

    def why_no_signal(self, stream: str, context: RewardContext) -> str | None:
        """Return why no reply is too long."""
        begins = self.max_tokens - self.buffer
        if context.max_tokens > begins:
            return None
        return (
            f"overlong begins above {begins:,} tokens (max_tokens - buffer), and "
            f"rollout.max_tokens is {context.max_tokens:,}; expected reward.max_tokens at most as "
            "large"
        )

    @model_validator(mode="after")
    def _buffer_fits(self) -> "Overlong":
        if self.buffer > self.max_tokens:
            raise ValueError(
                f"buffer: found {self.buffer}, expected at most max_tokens ({self.max_tokens})"
            )
        return self

    def value(self, length: int) -> float:
        """Return what a turn of this many tokens earns."""
        over = length - (self.max_tokens - self.buffer)
        return -self.factor * min(over / self.buffer, 1.0) if over > 0 else 0.0

    def score(self, debate: ReadDebate) -> Score:
        """Return the score of one debate."""
        counts = {key: read.turn.token_counts for key, read in debate.turns.items()}
        lengths = {key: count[1] if count else 0 for key, count in counts.items()}
        credits = [
            Credit(*key, "generator", self.value(length))
            if length
            else Credit(*key, "generator", None, expected=False)
            for key, length in lengths.items()
        ]
        known = [length for length in lengths.values() if length]
        allowed = self.max_tokens - self.buffer
        metrics = {
            "overlong/tokens": known_mean(known),
            "overlong/penalised": known_mean(length > allowed for length in known),
        }
        return build_score(debate.transcript, credits, metrics)


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

    def score(self, debate: ReadDebate) -> Score:
        """Return the score of one debate."""
        logps = {key: mean_logp(one.turn) for key, one in debate.turns.items() if not one.failed}
        values = {key: math.exp(logp) for key, logp in logps.items() if logp is not None}
        credits = turn_credits(debate, values, always_expected=False)
        return build_score(
            debate.transcript, credits, {"certainty/mean": known_mean(values.values())}
        )
