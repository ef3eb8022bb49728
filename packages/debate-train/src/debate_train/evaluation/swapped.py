"""Judges asked about the same first turns in both orders."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Literal, Protocol, runtime_checkable

from debate_protocol.forms import DebateForm
from debate_protocol.types import Transcript
from debate_train.evaluation.changes import DebateChanges
from debate_train.evaluation.mode import ModeSettings, Plays, Values

_ROWS = {
    "judge/accuracy": "judge accuracy over both orders",
    "judge/both_orders": "judge right in both orders",
    "judge/consistent": "same verdict in both orders",
    "judge/first_shown": "",
    "judge/pairs_in_both": "",
}


@runtime_checkable
class _Reseating(Protocol):
    """A form whose agents can exchange their seats."""

    def reseated(self) -> DebateForm:
        """Return the debate of two rounds in whose second round they do."""
        ...


class SwappedJudging(DebateChanges, ModeSettings):
    """Whether judges' verdicts depend on the order and numbers of the turns that they compare.

    The first two rounds of a debate are held twice with the same first turns, the second time with
    the agents' seats reversed. `debate_rewards.metrics.swapped` defines the figures. Without the
    exchange the turns are those of the mode `debate`, where that has the same form.
    """

    type: Literal["swapped_judging"] = "swapped_judging"

    def plays(self, form: DebateForm) -> Sequence[Plays]:
        """Return the debate of two rounds, and the same with the agents in reversed seats.

        Raises:
            ValueError: In this form agents cannot exchange their seats.
        """
        debated = self.form(form)
        if not isinstance(debated, _Reseating):
            raise ValueError(
                f"debate: found type {debated.type}, whose agents have no seats to exchange; "
                "expected type simultaneous"
            )
        plain = debated.changed({"max_rounds": 2})
        return Plays(plain), Plays(debated.reseated(), what="debates in reversed seats")

    def figures(self, form: DebateForm) -> Mapping[str, str]:
        """Return the names of all figures with their rows."""
        return _ROWS

    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        """Return the figures of each question."""
        from debate_rewards.metrics.swapped import swapped_judging

        found: dict[str, dict[str, list[float]]] = {}
        for plain, reseated in zip(*played, strict=True):
            for name, (total, weight) in swapped_judging(plain, reseated).items():
                found.setdefault(name, {}).setdefault(plain.question.id, []).append(total / weight)
        return {name: {q: fmean(each) for q, each in of.items()} for name, of in found.items()}
