"""Rewards made of a turn's consequences, its readers' opinions, its length or its certainty."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pydantic import Field, model_validator

from debate_protocol.parsing import Range, evaluation_parts, says_nothing
from debate_protocol.transcripts.files import mean_logp
from debate_protocol.types import (
    Question,
    Transcript,
    Turn,
    TurnKey,
    gives_answers,
    parse_turn,
    turn_failed,
)
from debate_rewards.answer_checking import Verdict, check_many
from debate_rewards.reward import (
    FAILURE_VALUE,
    Credit,
    ReadDebate,
    ReadTurn,
    RewardConfig,
    RewardContext,
    RewardNeeds,
    RewardNote,
    Score,
    build_score,
    check_turns,
    known_mean,
    turn_credits,
)
from debate_rewards.votes import VoteReward, ballots, tally

_log = logging.getLogger(__name__)

# The stream of critiques; it covers the evaluation.
CRITIC = "critic"

# The target of one part of an evaluation, and the part's characters.
_Part = tuple[int, Range]
# For each turn its readers' last turns before they were shown it, and their first after.
_Changes = Mapping[TurnKey, Sequence[tuple[TurnKey, TurnKey]]]


@dataclass(frozen=True, slots=True)
class StateValue:
    """The value of the state after a turn.

    `guide` is `None` for the debate's own turn, else it names the branch. `value` is the share of
    `rollouts` that ended right, or whether the turn itself is right where the debate ends with it
    or `continued: critic` continues no answers (`rollouts` 0, an exact value); None without either,
    or without a usable gold answer.
    `standard_error` is that of the mean, `None` for fewer than two roll-outs. `failed` roll-outs
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

    type: Literal["partial_trajectory"] = "partial_trajectory"

    def needs(self) -> RewardNeeds:
        """Describe needs: answers."""
        return RewardNeeds(answers=True, policy=False)

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Score a batch of debates, in order."""
        valued_debates = _value_debates(transcripts)
        scores = []
        for transcript, valued in zip(transcripts, valued_debates, strict=True):
            scores.append(_state_score(transcript, valued))
        return scores


@dataclass(frozen=True, slots=True)
class _TurnState:
    """A turn or branch, and the turns with the deciding answers."""

    guide: str | None
    turn: Turn
    ends: list[Turn]


@dataclass(frozen=True, slots=True)
class _ValuedDebate:
    """A debate's states, and whether its question is left out for want of a usable answer."""

    states: list[StateValue]
    is_left_out: bool


def state_values(transcripts: Sequence[Transcript]) -> list[list[StateValue]]:
    """Compute the values of each debate's states: of each turn, followed by its branches.

    Where a question's own answer is missing or cannot be read, no state of the debate has a
    value, and a warning names the question.
    """
    return [valued.states for valued in _value_debates(transcripts)]


def _value_debates(transcripts: Sequence[Transcript]) -> list[_ValuedDebate]:
    # All answers are checked in one call, so that worker processes share them out.
    states_by_debate: list[list[_TurnState]] = []
    answers: list[tuple[Question, str | None]] = []
    for transcript in transcripts:
        check_turns(transcript)
        states = _states(transcript)
        states_by_debate.append(states)
        for state in states:
            for end in state.ends:
                failed = turn_failed(transcript, end)
                answer = None if failed else parse_turn(transcript, end).answer
                answers.append((transcript.question, answer))
    next_verdict = iter(check_many(answers))
    valued_debates = []
    for transcript, states in zip(transcripts, states_by_debate, strict=True):
        verdicts = [[next(next_verdict) for _ in state.ends] for state in states]
        valued_debates.append(_value_states(transcript, states, verdicts))
    return valued_debates


def _value_states(
    transcript: Transcript, states: Sequence[_TurnState], verdicts: Sequence[Sequence[Verdict]]
) -> _ValuedDebate:
    unusable_reasons: list[str] = []
    for state_verdicts in verdicts:
        unusable_reasons += [v.reason for v in state_verdicts if v.verdict == "unverifiable"]
    if unusable_reasons:
        question_id = transcript.question.id
        _log.warning("question %r is left out: %s", question_id, unusable_reasons[0])
    values = []
    for state, state_verdicts in zip(states, verdicts, strict=True):
        num_right = sum(verdict.verdict == "right" for verdict in state_verdicts)
        num_ends = len(state_verdicts)
        # A turn that the debate ends with is its own end: its value is exact.
        num_rollouts = num_ends if state.turn.continuations else 0
        num_failed = 0
        if num_rollouts:
            num_failed = sum(turn_failed(transcript, end) for end in state.ends)
        mean = None
        standard_error = None
        if num_ends and not unusable_reasons:
            mean = num_right / num_ends
            standard_error = _standard_error(mean, num_ends) if num_rollouts else 0.0
        values.append(
            StateValue(
                key=state.turn.key,
                guide=state.guide,
                value=mean,
                standard_error=standard_error,
                rollouts=num_rollouts,
                failed=num_failed,
            )
        )
    return _ValuedDebate(states=values, is_left_out=bool(unusable_reasons))


def _standard_error(mean: float, count: int) -> float | None:
    """Compute the standard error of a mean of zeros and ones: their deviation (n − 1) over √n."""
    return float((mean * (1 - mean) / (count - 1)) ** 0.5) if count > 1 else None


def _states(transcript: Transcript) -> list[_TurnState]:
    protocol = transcript.protocol
    answering = [turn.round for turn in transcript.turns if gives_answers(protocol, turn.agent)]
    last_round = max(answering, default=-1)
    # Debates that go on with critics alone have no later answers: each answer decides its state.
    only_critics_continue = protocol.extra.get("continued") == "critic"

    def ends(turn: Turn) -> list[Turn]:
        if turn.continuations:
            return [end for end in _leaves(turn) if gives_answers(protocol, end.agent)]
        is_end = turn.round == last_round or only_critics_continue
        return [turn] if is_end and gives_answers(protocol, turn.agent) else []

    states: list[_TurnState] = []
    for turn in transcript.turns:
        states.append(_TurnState(guide=None, turn=turn, ends=ends(turn)))
        for branch in turn.branches:
            states.append(_TurnState(branch.guide, branch.turn, ends(branch.turn)))
    return states


def _leaves(turn: Turn) -> list[Turn]:
    if not turn.continuations:
        return [turn]
    leaves: list[Turn] = []
    for continuation in turn.continuations:
        leaves += _leaves(continuation)
    return leaves


def _state_score(transcript: Transcript, valued: _ValuedDebate) -> Score:
    # Branches are no turns of the debate: they have values, and carry no credit.
    natural = {state.key: state for state in valued.states if state.guide is None}
    credits = []
    for turn in transcript.turns:
        value = natural[turn.key].value
        if not valued.is_left_out and turn_failed(transcript, turn):
            credits.append(Credit(*turn.key, "generator", FAILURE_VALUE, penalty=True))
        else:
            credits.append(Credit(*turn.key, "generator", value, expected=value is not None))
    gains_to_right: list[float] = []
    losses_to_wrong: list[float] = []
    for state in valued.states:
        unguided_value = natural[state.key].value
        if state.guide is None or state.value is None or unguided_value is None:
            continue
        if state.guide == transcript.question.answer:
            gains_to_right.append(state.value - unguided_value)
        else:
            losses_to_wrong.append(unguided_value - state.value)
    errors = [state.standard_error for state in natural.values() if state.rollouts]
    num_failed_rollouts = sum(state.failed for state in valued.states)
    metrics = {
        "partial_trajectory/value": known_mean(state.value for state in natural.values()),
        "partial_trajectory/standard_error": known_mean(errors),
        "partial_trajectory/gain_to_right": known_mean(gains_to_right),
        "partial_trajectory/loss_to_wrong": known_mean(losses_to_wrong),
        "partial_trajectory/failed_rollouts": float(num_failed_rollouts),
        "partial_trajectory/unverifiable_gold": float(valued.is_left_out),
    }
    return build_score(transcript, credits, metrics)


class Persuasion(VoteReward):
    """How far a critique lowered the group's opinion of its target, in [−1, 1], stream `critic`.

    A critique is a turn's evaluation of one other agent: its target. The opinion of judge j of an
    agent in one ballot is 2·for/(for + against) − 1 over j's votes about that agent there. For
    every judge other than critic and target, `after` is the first turn with the critique shown and
    `before` the judge's turn before. With J the judges with votes about the target in both,

        value = mean over j in J of (opinion_before(j) − opinion_after(j)) / 2

    A part of the evaluation that names the target earns this value; the rest of the evaluation
    earns the mean over the turn's targets. An evaluation without names is about the single agent
    shown, if there is just a single agent; else it has no target.

    `None` without a judge in J. Nobody is shown a critique of the last round, and a first turn has
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
        """Streams with values."""
        return (CRITIC,)

    def notes(self, context: RewardContext) -> Iterator[RewardNote]:
        """Explain why no critique has a value."""
        text = (
            "persuasion compares votes on a critique's target before and after it was read, and "
            f"nobody votes twice around one: found {context.rules.max_rounds} rounds; expected 3 "
            "agents and 3 rounds at least, and evaluations in the contract"
        )
        yield RewardNote(kind="no_signal", text=text)

    def score(self, debate: ReadDebate) -> Score:
        """Score a debate."""
        opinions: dict[TurnKey, dict[int, float]] = {}
        for key, ballot in ballots(debate).items():
            shares = tally(ballot.votes)
            opinions[key] = {turn.agent: share.balance for turn, share in shares.items()}
        changes = _changes(debate)
        credits: list[Credit] = []
        values: list[float | None] = []
        for critic in debate.judges.values():
            if critic.failed:
                continue
            parts, targets = critique_targets(debate, critic)
            falls = {target: _fall(opinions, changes, critic, target) for target in targets}
            values += falls.values()
            credits += critique_credits(critic, parts, falls)
        metrics = {
            "persuasion/critiques": float(len(values)),
            "persuasion/critiques_with_value": float(sum(value is not None for value in values)),
            "persuasion/mean": known_mean(values),
        }
        return build_score(debate.transcript, credits, metrics)


def critique_targets(debate: ReadDebate, turn: ReadTurn) -> tuple[list[_Part], list[int]]:
    """Find the parts of a turn's evaluation with their agents, and the agents it criticises."""
    other_agents = debate.judged_by(turn).keys() - {turn.key.agent}
    parts = []
    for agent, span in evaluation_parts(turn.turn.text, turn.parsed):
        if agent in other_agents:
            parts.append((agent, span))
    if parts:
        return parts, list(dict.fromkeys(agent for agent, _ in parts))
    # An evaluation that names nobody can only be about the single agent that it was shown.
    section = turn.parsed.sections.get("evaluation")
    if len(other_agents) == 1 and section is not None and not says_nothing(section.text):
        return [], list(other_agents)
    return [], []


def _changes(debate: ReadDebate) -> _Changes:
    """Find, for each turn, its readers' last turns before they were shown it and first after."""
    keys_by_agent: dict[int, list[TurnKey]] = {}
    for key in sorted(debate.turns):
        keys_by_agent.setdefault(key.agent, []).append(key)
    changes: dict[TurnKey, list[tuple[TurnKey, TurnKey]]] = {}
    for agent_keys in keys_by_agent.values():
        # Turns shown before an agent's first one have no opinion before them.
        already_shown: set[TurnKey] = set(debate.turns[agent_keys[0]].turn.shown)
        for before, after in pairwise(agent_keys):
            newly_shown = set(debate.turns[after].turn.shown) - already_shown
            already_shown |= newly_shown
            for key in newly_shown:
                changes.setdefault(key, []).append((before, after))
    return changes


def _fall(
    opinions: Mapping[TurnKey, Mapping[int, float]],
    changes: _Changes,
    critique: ReadTurn,
    target: int,
) -> float | None:
    """Compute the mean fall of opinions of a target around a critique, over its judges."""
    falls: list[float] = []
    for before, after in changes.get(critique.key, ()):
        # Neither the critic nor its target is a judge of what the critique did.
        if after.agent in (critique.key.agent, target):
            continue
        if target in opinions[before] and target in opinions[after]:
            falls.append((opinions[before][target] - opinions[after][target]) / 2)
    return known_mean(falls)


def critique_credits(
    turn: ReadTurn, parts: Sequence[_Part], worth: Mapping[int, float | None]
) -> list[Credit]:
    """Build the credits of a turn's critiques: their mean, and the value of each part.

    Args:
        turn: The critic's.
        parts: Parts of the evaluation, each with a target.
        worth: The value of the critiques of each target, `None` where unknown.
    """
    mean = known_mean(worth.values())
    credits = [Credit(*turn.key, CRITIC, mean, expected=bool(worth))]
    if mean is not None:
        for agent, span in parts:
            credits.append(Credit(*turn.key, CRITIC, worth[agent], span, expected=False))
    return credits


class Overlong(RewardConfig):
    """A penalty on a turn's length l, stream `generator`.

    With L = `max_tokens` and B = `buffer`: 0 up to L − B tokens, then −factor · (l − (L − B)) / B,
    and −factor from L on. Length is all that counts, for failed turns too: the price of a failure
    is left to the other rewards of the mixture. A turn whose prompt filled the context has no
    signal.

    The length is the number of sampled tokens, the end token or stop string included. A turn of a
    file without token counts has no signal.

    Source: DAPO (Yu et al. 2025), soft overlong punishment, eq. 13, where factor is 1.
    """

    type: Literal["overlong"] = "overlong"
    max_tokens: int = Field(ge=1)
    """Length in tokens from which the whole penalty holds."""
    buffer: int = Field(ge=1)
    """Tokens below `max_tokens` over which the penalty grows evenly."""
    factor: float = Field(default=1.0, ge=0)
    """The whole penalty."""

    def needs(self) -> RewardNeeds:
        """Describe needs: debates with any turn."""
        return RewardNeeds(policy=False)

    def notes(self, context: RewardContext) -> Iterator[RewardNote]:
        """Explain why replies are never too long."""
        begins = self.max_tokens - self.buffer
        if context.max_tokens <= begins:
            text = (
                f"overlong begins above {begins:,} tokens (max_tokens - buffer), and "
                f"rollout.max_tokens is {context.max_tokens:,}; expected reward.max_tokens at most "
                "as large"
            )
            yield RewardNote(kind="no_signal", text=text)

    @model_validator(mode="after")
    def _buffer_fits(self) -> "Overlong":
        if self.buffer > self.max_tokens:
            raise ValueError(
                f"buffer: found {self.buffer}, expected at most max_tokens ({self.max_tokens})"
            )
        return self

    def value(self, length: int) -> float:
        """Compute the value of a turn of this many tokens."""
        over = length - (self.max_tokens - self.buffer)
        return -self.factor * min(over / self.buffer, 1.0) if over > 0 else 0.0

    def score(self, debate: ReadDebate) -> Score:
        """Score a debate."""
        penalty_start = self.max_tokens - self.buffer
        lengths: list[int] = []
        credits: list[Credit] = []
        for key, turn in debate.turns.items():
            token_counts = turn.turn.token_counts
            length = token_counts[1] if token_counts else 0
            # Without sampled tokens: a prompt that filled the context, or a file without counts.
            if length:
                lengths.append(length)
                credits.append(Credit(*key, "generator", self.value(length)))
            else:
                credits.append(Credit(*key, "generator", None, expected=False))
        metrics = {
            "overlong/tokens": known_mean(lengths),
            "overlong/penalised": known_mean(length > penalty_start for length in lengths),
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
        """Score a debate."""
        values: dict[TurnKey, float] = {}
        for key, turn in debate.turns.items():
            logp = None if turn.failed else mean_logp(turn.turn)
            if logp is not None:
                values[key] = math.exp(logp)
        credits = turn_credits(debate, values, always_expected=False)
        return build_score(
            debate.transcript, credits, {"certainty/mean": known_mean(values.values())}
        )
