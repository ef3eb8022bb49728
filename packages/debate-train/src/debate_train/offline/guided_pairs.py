"""Preference pairs of guided debates: replies that brought a debate nearer to the right answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from debate_protocol.forms import DebateForm
from debate_protocol.types import Transcript, Turn, TurnKey, gives_answers, role_of, turn_failed
from debate_rewards.turn_rewards import StateValue, state_values
from debate_train.offline.offline_set import (
    Example,
    ExampleSet,
    OfflineSettings,
    Pair,
    Teaches,
    composed,
    example_of,
)

# Rounding of differences of shares of roll-outs, which may equal the threshold exactly.
_TOLERANCE = 1e-9
# What states after replies should be worth, from most to least: words and metric.
_VALUE_ORDER = (
    ("guided to the right answer", "offline/value_guided_right"),
    ("natural", "offline/value_natural"),
    ("guided to a wrong answer", "offline/value_guided_wrong"),
)
# Names under which pairs are counted, by the replies that were guided.
_PAIR_KINDS = {"chosen": "toward_right", "rejected": "away_from_wrong", "both": "right_over_wrong"}


@dataclass(frozen=True, slots=True)
class _ValuedReply:
    """A reply and the value of the state after it."""

    turn: Turn
    state: StateValue


class GuidedPairs(OfflineSettings):
    """Pairs of a role's natural and guided replies to the same prompt, by their values.

    With values r of the states after the natural reply z, after the reply z_y guided to the right
    answer and after z_!y guided to a wrong answer, the pair of a state is (z_y over z) where
    r(z_y) − r(z) ≥ `threshold`, else (z over z_!y) where r(z) − r(z_!y) ≥ `threshold`, else none.
    With `compare: guided` it is (z_y over z_!y) where r(z_y) − r(z_!y) ≥ `threshold`, else none.
    The prompt is always natural: guidance is in no example.

    Source: ACC-Debate (paper), eq. 4 and Algorithm 1, without a printed threshold ε;
    `compare: guided` follows the authors' published code, with ε = .6.
    """

    teaches: ClassVar[Teaches] = "pairs"

    type: Literal["guided_pairs"] = "guided_pairs"
    role: str
    """Role whose replies are compared: `actor` or `critic`."""
    threshold: float = Field(0.25, gt=0, le=1)
    """Least difference of values."""
    pairs_per_state: Literal["first", "both"] = "first"
    """`first` as in the algorithm's else-if; `both` takes both pairs where both differ enough."""
    compare: Literal["natural", "guided"] = "natural"
    """What a guided reply is compared with: the `natural` reply (the paper), or the reply that is
    guided the other way (`guided`, the authors' code)."""

    @model_validator(mode="after")
    def _pairs_are_of_natural_replies(self) -> Self:
        if self.compare == "guided" and self.pairs_per_state == "both":
            raise ValueError(
                "pairs_per_state: found both with compare: guided, which has one pair of a state; "
                "expected first, or compare: natural"
            )
        return self

    def problem(self, form: DebateForm) -> str | None:
        """Explain why debates of this form give no pairs; `None` if they can."""
        names = [role.name for role in form.protocol().roles]
        if self.role not in names:
            return f"role: found {self.role!r}, expected one of {', '.join(names)} (debate.roles)"
        if not getattr(form, "guided", False):
            return (
                "type: guided_pairs compares guided replies; expected debate.type: actor_critic "
                "with debate.guided: true and debate.continuations"
            )
        return None

    def doubt(self, metrics: Mapping[str, float]) -> str | None:
        """Explain that guidance did not work, or not clearly; `None` if it did.

        It works where states after replies guided to the right answer are worth more than states
        after natural replies, and these more than states after replies guided to a wrong answer,
        each by more than two standard errors of the difference, as if the two were independent. All
        three are means over the same states.
        """
        measured = []
        for name, key in _VALUE_ORDER:
            if key in metrics:
                standard_error = metrics.get(f"{key}_standard_error", 0.0)
                measured.append((name, metrics[key], standard_error))
        is_clear = True
        for (_, higher, higher_error), (_, lower, lower_error) in pairwise(measured):
            standard_error = (higher_error**2 + lower_error**2) ** 0.5
            if not higher - lower > 2 * standard_error:
                is_clear = False
        if is_clear:
            return None
        values = ", ".join(f"{name} {value:.3f} ({error:.3f})" for name, value, error in measured)
        return (
            f"what states are worth to the debate does not clearly fall in this order: {values}, "
            "standard errors in brackets; expected each clearly above the next, or replies do not "
            "follow their guidance (docs/offline.md)"
        )

    def take(self, transcripts: Sequence[Transcript]) -> ExampleSet:
        """Select the pairs of debates with guided branches.

        A debate without guidance in both ways is left out whole: pairs of a single way would
        teach a critic to say the same of every answer.
        """
        example_set = ExampleSet()
        pairs: list[Pair] = []
        for transcript, states in zip(transcripts, state_values(transcripts), strict=True):
            right_answer = transcript.question.answer
            if not (right_answer or "").strip():
                example_set.leave_out("no_right_answer")
                continue
            guides = {branch.guide for turn in transcript.turns for branch in turn.branches}
            if guides <= {right_answer}:
                example_set.leave_out("no_wrong_answer")
                continue
            state_of = {(state.key, state.guide): state for state in states}
            for turn in transcript.turns:
                if role_of(transcript.protocol, turn.agent).name == self.role and turn.branches:
                    pairs += self._pairs_of_state(transcript, turn, state_of, example_set)
        for pair in composed(pairs):
            guided = str(pair.example.meta["guided"])
            example_set.keep(pair.example, _PAIR_KINDS[guided])
        return example_set

    def _pairs_of_state(
        self,
        transcript: Transcript,
        turn: Turn,
        state_of: dict[tuple[TurnKey, str | None], StateValue],
        example_set: ExampleSet,
    ) -> list[Pair]:
        """Select the pairs of a state, or count why there are no pairs."""
        natural = _ValuedReply(turn, state_of[turn.key, None])
        to_right = None
        to_wrong = None
        for branch in turn.branches:
            reply = _ValuedReply(branch.turn, state_of[turn.key, branch.guide])
            if branch.guide == transcript.question.answer:
                to_right = reply
            else:
                to_wrong = reply
        if to_right is None or to_wrong is None:
            example_set.leave_out("no_value")
            return []
        ordered = (to_right, natural, to_wrong)
        if any(reply.state.value is None for reply in ordered):
            example_set.leave_out("no_value")
            return []
        for (_, metric), reply in zip(_VALUE_ORDER, ordered, strict=True):
            example_set.measure(metric.removeprefix("offline/"), reply.state.value or 0.0)

        # Algorithm 1 tries the pair with the reply guided to the right answer first.
        candidates = {"chosen": (to_right, natural), "rejected": (natural, to_wrong)}
        if self.compare == "guided":
            candidates = {"both": (to_right, to_wrong)}
        pairs: list[Pair] = []
        reaches_threshold = False
        for guided, (chosen, rejected) in candidates.items():
            gain = (chosen.state.value or 0.0) - (rejected.state.value or 0.0)
            if gain < self.threshold - _TOLERANCE:
                continue
            if pairs and self.pairs_per_state == "first":
                continue
            reaches_threshold = True
            example = _pair_example(transcript, turn, chosen, rejected)
            if example is None:
                continue
            meta = {**example.meta, "guided": guided, "gain": gain}
            meta |= _value_meta("chosen", chosen.state) | _value_meta("rejected", rejected.state)
            pair = Pair(
                transcript=transcript,
                chosen=chosen.turn,
                rejected=rejected.turn,
                example=replace(example, meta=meta),
                reviewed=_reviewed_turn(transcript, turn),
            )
            pairs.append(pair)
        if not pairs:
            example_set.leave_out("no_answer" if reaches_threshold else "below_threshold")
        return pairs


def _reviewed_turn(transcript: Transcript, turn: Turn) -> Turn | None:
    """Find the reviewed answer of a turn: an actor's last answer, or the answer read by a critic.

    `None` for a first answer, and for a critic of several actors.
    """
    is_actor = gives_answers(transcript.protocol, turn.agent)
    # A critic speaks in the round of the answer that it reviews, an actor in the round after.
    reviewed_round = turn.round - is_actor
    candidates = []
    for other in transcript.turns:
        if other.round != reviewed_round or not gives_answers(transcript.protocol, other.agent):
            continue
        if not is_actor or other.agent == turn.agent:
            candidates.append(other)
    return candidates[0] if len(candidates) == 1 else None


def _pair_example(
    transcript: Transcript, natural: Turn, chosen: _ValuedReply, rejected: _ValuedReply
) -> Example | None:
    # A failed reply may be rejected, but must not be learned.
    if chosen.turn.reply is None or rejected.turn.reply is None:
        return None
    if turn_failed(transcript, chosen.turn):
        return None
    return example_of(transcript, natural, chosen.turn.reply, rejected.turn.reply)


def _value_meta(name: str, state: StateValue) -> dict[str, object]:
    return {
        f"{name}_value": state.value,
        f"{name}_standard_error": state.standard_error,
        f"{name}_rollouts": state.rollouts,
    }
