"""Preference pairs of guided debates: what brought a debate nearer to the right answer."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, Literal

from pydantic import Field

from debate_protocol.forms import DebateForm
from debate_protocol.roles import role_of
from debate_protocol.types import Transcript, Turn, TurnKey
from debate_rewards.rewards.partial_trajectory import StateValue, state_values
from debate_train.offline.example import Completion, Example
from debate_train.offline.offline_set import OfflineSettings, Taken, Teaches

_CLOSE = 1e-9
"""Differences of shares of roll-outs are compared with the threshold up to this rounding."""
_ORDER = (
    ("guided to the right answer", "offline/value_guided_right"),
    ("natural", "offline/value_natural"),
    ("guided to a wrong answer", "offline/value_guided_wrong"),
)
"""What states after replies should be worth, from most to least."""


class GuidedPairs(OfflineSettings):
    """Pairs of a role's natural reply and a guided one to the same prompt, by their values.

    With values r of the states after the natural reply z, after the reply z_y guided to the right
    answer and after z_!y guided to a wrong one, the pair of a state is (z_y over z) where
    r(z_y) − r(z) ≥ `threshold`, else (z over z_!y) where r(z) − r(z_!y) ≥ `threshold`, else none.
    The prompt is always the natural one: guidance is in no example.

    Source: ACC-Debate (paper), eq. 4 and Algorithm 1. Its threshold ε is not printed.
    """

    teaches: ClassVar[Teaches] = "pairs"

    type: Literal["guided_pairs"] = "guided_pairs"
    role: str
    """Whose replies are compared: `actor` or `critic`."""
    threshold: float = Field(0.25, gt=0, le=1)
    """Least difference of values."""
    pairs_per_state: Literal["first", "both"] = "first"
    """`first` as in the algorithm's else-if; `both` takes both pairs where both differ enough."""

    def problem(self, form: DebateForm) -> str | None:
        """Return why debates of this form give no pairs, None where they may."""
        rules = form.protocol()
        names = [role.name for role in rules.roles]
        if self.role not in names:
            return f"role: found {self.role!r}, expected one of {', '.join(names)} (debate.roles)"
        if not getattr(form, "guided", False):
            return (
                "type: guided_pairs compares guided replies; expected debate.type: actor_critic "
                "with debate.guided: true and debate.continuations"
            )
        return None

    def doubt(self, metrics: Mapping[str, float]) -> str | None:
        """Return in words that guidance did not work, or that it is not shown to.

        It works where states after replies guided to the right answer are worth more than those
        after natural ones, and these more than those after replies guided to a wrong answer, each
        by more than two standard errors of the difference, as if the two were independent.
        """
        found = [
            (name, metrics[key], metrics.get(f"{key}_standard_error", 0.0))
            for name, key in _ORDER
            if key in metrics
        ]
        doubts = [
            f"{better} is {'not above' if one <= other else 'not clearly above'} {worse}"
            for (better, one, error), (worse, other, its) in pairwise(found)
            if one - other <= 2 * (error**2 + its**2) ** 0.5
        ]
        if not doubts:
            return None
        values = ", ".join(f"{name} {value:.3f} ({error:.3f})" for name, value, error in found)
        return (
            f"{' and '.join(doubts)} in what states are worth to the debate: {values}, standard "
            "errors in brackets; expected them in this falling order, or replies do not follow "
            "their guidance (docs/offline.md)"
        )

    def take(self, transcripts: Sequence[Transcript]) -> Taken:
        """Return the pairs of debates with guided branches."""
        taken = Taken()
        for transcript, states in zip(transcripts, state_values(transcripts), strict=True):
            valued = {(state.key, state.guide): state for state in states}
            for turn in transcript.turns:
                if role_of(transcript.protocol, turn.agent).name == self.role and turn.branches:
                    self._compare(transcript, turn, valued, taken)
        return taken

    def _compare(
        self,
        transcript: Transcript,
        turn: Turn,
        valued: dict[tuple[TurnKey, str | None], StateValue],
        taken: Taken,
    ) -> None:
        natural = valued[turn.key, None]
        right = transcript.question.answer
        kept, differs = False, False
        if natural.value is not None:
            taken.measure("value_natural", natural.value)
        for toward in (True, False):
            guided = next((b for b in turn.branches if (b.guide == right) == toward), None)
            state = None if guided is None else valued[turn.key, guided.guide]
            if state is not None and state.value is not None:
                taken.measure("value_guided_right" if toward else "value_guided_wrong", state.value)
            if guided is None or state is None or state.value is None or natural.value is None:
                continue
            gain = state.value - natural.value if toward else natural.value - state.value
            if gain < self.threshold - _CLOSE or (kept and self.pairs_per_state == "first"):
                continue
            differs = True
            pair = (guided.turn, turn) if toward else (turn, guided.turn)
            values = (state, natural) if toward else (natural, state)
            example = _pair(transcript, turn, pair, values, gain)
            if example is None:
                continue
            taken.keep(example, "toward_right" if toward else "away_from_wrong")
            kept = True
        if not kept:
            valueless = natural.value is None
            why = "no_value" if valueless else "no_answer" if differs else "below_threshold"
            taken.leave_out(why)


def _pair(
    transcript: Transcript,
    natural: Turn,
    pair: tuple[Turn, Turn],
    values: tuple[StateValue, StateValue],
    gain: float,
) -> Example | None:
    """Return a pair under the natural prompt, None where one of the two cannot be learned from.

    That is a chosen reply that failed, or two that are the same.
    """
    chosen, rejected = pair
    asked, better, worse = natural.reply, chosen.reply, rejected.reply
    if asked is None or better is None or worse is None or chosen.failure is not None:
        return None
    if not better.token_ids or not worse.token_ids or better.token_ids == worse.token_ids:
        return None
    meta = {
        "question": transcript.question.id,
        "debate": transcript.id,
        "role": role_of(transcript.protocol, natural.agent).name,
        "round": natural.round,
        "guided": "chosen" if chosen is not natural else "rejected",
        "gain": gain,
    }
    for name, state in zip(("chosen", "rejected"), values, strict=True):
        meta |= {
            f"{name}_value": state.value,
            f"{name}_standard_error": state.standard_error,
            f"{name}_rollouts": state.rollouts,
        }
    return Example(
        prompt=natural.prompt or (),
        prompt_ids=asked.prompt_ids,
        chosen=Completion.of(better),
        rejected=Completion.of(worse),
        agent=natural.agent,
        adapter=role_of(transcript.protocol, natural.agent).adapter,
        weight_version=asked.weight_version,
        meta=meta,
    )
