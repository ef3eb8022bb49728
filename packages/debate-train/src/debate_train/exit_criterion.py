"""What a phase must reach before it ends."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from debate_protocol.config import Config


class ExitCriterion(Config):
    """What a phase must reach, on the dev split, before it may end."""

    renamed: ClassVar[Mapping[str, str]] = {"when_shut": "if_missed"}

    metric: str
    """Name as in the evaluation, such as eval/judge/accuracy."""
    at_least: float
    """The least value of `metric` that meets it."""
    also_at_least: dict[str, float] = Field(default_factory=dict)
    """Further measures, each with the least that is wanted of it: the phase ends when all are
    reached at one look."""
    every: int = Field(50, ge=1)
    """Steps between two looks, from the phase's `steps` on."""
    max_steps: int = Field(1000, ge=1)
    """The phase ends here even if the criterion is not met."""
    if_missed: Literal["skip_rest", "go_on", "fail"] = "skip_rest"
    """What happens to the phases after one that missed its criterion; `fail` ends the run there,
    with a checkpoint and exit code 1."""

    @property
    def wanted(self) -> tuple[tuple[str, float], ...]:
        """Each measure and the least that is wanted of it."""
        return ((self.metric, self.at_least), *self.also_at_least.items())

    def is_met(self, measured: Mapping[str, float | None]) -> bool:
        """Return whether a look reached it; a measure without a single case has not been."""
        return all((measured.get(name) or 0.0) >= least for name, least in self.wanted)

    def compared(self, measured: Mapping[str, float]) -> str:
        """Return each measure at a look and what was wanted of it, in words."""
        return "; ".join(
            f"{name} {measured.get(name, 0.0):.3f}, wanted at least {least}"
            for name, least in self.wanted
        )

    def next_look(self, steps: int, done: int) -> int:
        """Return at how many steps of the phase, `done` or more, it is next looked at."""
        looks = max(0, -(-(done - steps) // self.every))
        return min(steps + looks * self.every, self.max_steps)

    def is_due(self, steps: int, done: int) -> bool:
        """Return whether it is looked at after so many steps of a phase of `steps`."""
        return done >= self.max_steps or self.next_look(steps, done) == done
