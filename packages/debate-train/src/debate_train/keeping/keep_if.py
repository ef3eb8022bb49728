"""What must not have fallen for the weights of a phase to be kept."""

from collections.abc import Iterator, Mapping

from pydantic import Field

from debate_protocol.config import Config
from debate_protocol.plugins import did_you_mean


class KeepIf(Config):
    """What must not have fallen on the dev split for the weights of a phase to be kept."""

    metric: str
    """Name as in the evaluation, such as eval/majority/accuracy."""
    since: str | None = None
    """The phase at whose start it is measured first, and whose start comes back if it has fallen;
    None is the phase itself, an earlier one takes back all phases from that one on."""
    tolerance: float = Field(0.0, ge=0)
    """How far it may fall."""

    def described(self, phase: str) -> str:
        """Return what it asks of a phase, in one sentence."""
        less = f" less {self.tolerance:g}" if self.tolerance else ""
        return (
            f"kept only if {self.metric} on the dev split is not below what it is at the start of "
            f"{self.since or phase}{less}; else the weights of that start come back"
        )

    def keeps(self, start: Mapping[str, float], end: Mapping[str, float]) -> bool:
        """Return whether the measure at the end is not below that at the start.

        Without a case at the start nothing can have fallen; without one at the end it has.
        """
        least = start.get(self.metric)
        if least is None:
            return True
        return self.metric in end and end[self.metric] >= least - self.tolerance


def since_problems(rules: Mapping[str, KeepIf | None]) -> Iterator[str]:
    """Yield what is wrong with the phases that the rules of phases, in order, name."""
    names = list(rules)
    for place, (name, rule) in enumerate(rules.items()):
        known = names[: place + 1]
        if rule is not None and rule.since is not None and rule.since not in known:
            yield (
                f"phases.{name}.keep_if.since: found {rule.since!r}; expected this phase or one "
                f"before it: {', '.join(known)}{did_you_mean(rule.since, known)}"
            )
