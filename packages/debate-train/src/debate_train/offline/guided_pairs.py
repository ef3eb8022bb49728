"""Preference pairs of guided debates: what brought a debate nearer to the right answer."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
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

_CLOSE = 1e-9
"""Differences of shares of roll-outs are compared with the threshold up to this rounding."""
_ORDER = (
    ("guided to the right answer", "offline/value_guided_right"),
    ("natural", "offline/value_natural"),
    ("guided to a wrong answer", "offline/value_guided_wrong"),
)
"""What states after replies should be worth, from most to least."""
_KEPT = {"chosen": "toward_right", "rejected": "away_from_wrong", "both": "right_over_wrong"}
"""Which replies of a pair are guided, and what such pairs are counted as."""
_Said = tuple[Turn, StateValue]
"""A reply and the state that it leads to."""


class GuidedPairs(OfflineSettings):
    """Pairs of a role's natural reply and a guided one to the same prompt, by their values.

    With values r of the states after the natural reply z, after the reply z_y guided to the right
    answer and after z_!y guided to a wrong one, the pair of a state is (z_y over z) where
    r(z_y) − r(z) ≥ `threshold`, else (z over z_!y) where r(z) − r(z_!y) ≥ `threshold`, else none.
    With `compare: guided` it is (z_y over z_!y) where r(z_y) − r(z_!y) ≥ `threshold`, else none.
    The prompt is always the natural one: guidance is in no example.

    Source: ACC-Debate (paper), eq. 4 and Algorithm 1, which do not print the threshold ε;
    `compare: guided` is what the authors' published code takes, with ε = .6.
    """

    teaches: ClassVar[Teaches] = "pairs"

    type: Literal["guided_pairs"] = "guided_pairs"
    role: str
    """Whose replies are compared: `actor` or `critic`."""
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
        by more than two standard errors of the difference, as if the two were independent. All
        three are means over the same states.
        """
        found = [
            (name, metrics[key], metrics.get(f"{key}_standard_error", 0.0))
            for name, key in _ORDER
            if key in metrics
        ]
        if all(
            one - other > 2 * (error**2 + its**2) ** 0.5
            for (_, one, error), (_, other, its) in pairwise(found)
        ):
            return None
        values = ", ".join(f"{name} {value:.3f} ({error:.3f})" for name, value, error in found)
        return (
            f"what states are worth to the debate does not clearly fall in this order: {values}, "
            "standard errors in brackets; expected each clearly above the next, or replies do not "
            "follow their guidance (docs/offline.md)"
        )

    def take(self, transcripts: Sequence[Transcript]) -> ExampleSet:
        """Return the pairs of debates with guided branches.

        A debate that was not guided both ways is left out whole: those of one way alone would
        teach a critic to say the same of every answer.
        """
        taken, pairs = ExampleSet(), list[Pair]()
        for transcript, states in zip(transcripts, state_values(transcripts), strict=True):
            valued = {(state.key, state.guide): state for state in states}
            guides = {branch.guide for turn in transcript.turns for branch in turn.branches}
            is_known = bool((transcript.question.answer or "").strip())
            if not is_known or guides <= {transcript.question.answer}:
                taken.leave_out("no_wrong_answer" if is_known else "no_right_answer")
                continue
            for turn in transcript.turns:
                if role_of(transcript.protocol, turn.agent).name == self.role and turn.branches:
                    pairs += self._compared(transcript, turn, valued, taken)
        for pair in composed(pairs):
            taken.keep(pair.example, _KEPT[str(pair.example.meta["guided"])])
        return taken

    def _compared(
        self,
        transcript: Transcript,
        turn: Turn,
        valued: dict[tuple[TurnKey, str | None], StateValue],
        taken: ExampleSet,
    ) -> list[Pair]:
        """Return the pairs of one state, or count why it has none."""
        right = transcript.question.answer
        said = {b.guide == right: (b.turn, valued[turn.key, b.guide]) for b in turn.branches}
        toward, natural, away = said.get(True), (turn, valued[turn.key, None]), said.get(False)
        if (
            toward is None
            or away is None
            or None in (values := [state.value for _, state in (toward, natural, away)])
        ):
            taken.leave_out("no_value")
            return []
        for (_, name), value in zip(_ORDER, values, strict=True):
            taken.measure(name.removeprefix("offline/"), value or 0.0)
        compared = {"both": (toward, away)}
        if self.compare == "natural":
            compared = {"chosen": (toward, natural), "rejected": (natural, away)}
        found, differs = list[Pair](), False
        for guided, pair in compared.items():
            gain = (pair[0][1].value or 0.0) - (pair[1][1].value or 0.0)
            if gain < self.threshold - _CLOSE or (found and self.pairs_per_state == "first"):
                continue
            differs = True
            example = _example(transcript, turn, pair, {"guided": guided, "gain": gain})
            if example is not None:
                reviewed = _reviewed(transcript, turn)
                found.append(Pair(transcript, pair[0][0], pair[1][0], example, reviewed))
        if not found:
            taken.leave_out("no_answer" if differs else "below_threshold")
        return found


def _reviewed(transcript: Transcript, turn: Turn) -> Turn | None:
    """Return the answer that a turn is about: an actor's own last one, or that a critic reads.

    None for a first answer, and where a critic reads those of several actors.
    """
    is_actor = gives_answers(transcript.protocol, turn.agent)
    round = turn.round - is_actor
    found = [
        one
        for one in transcript.turns
        if one.round == round and gives_answers(transcript.protocol, one.agent)
    ]
    own = [one for one in found if one.agent == turn.agent] if is_actor else found
    return own[0] if len(own) == 1 else None


def _example(
    transcript: Transcript, natural: Turn, pair: tuple[_Said, _Said], more: dict[str, object]
) -> Example | None:
    """Return a pair under the natural prompt, None where its chosen reply failed."""
    (chosen, _), (rejected, _) = pair
    if chosen.reply is None or rejected.reply is None or turn_failed(transcript, chosen):
        return None
    example = example_of(transcript, natural, chosen.reply, rejected.reply)
    for name, (_, state) in zip(("chosen", "rejected"), pair, strict=True):
        more |= {
            f"{name}_value": state.value,
            f"{name}_standard_error": state.standard_error,
            f"{name}_rollouts": state.rollouts,
        }
    return None if example is None else replace(example, meta={**example.meta, **more})
