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
    every: int = Field(50, ge=1)
    """Steps between two looks, from the phase's `steps` on."""
    max_steps: int = Field(1000, ge=1)
    """The phase ends here even if the criterion is not met."""
    if_missed: Literal["skip_rest", "go_on"] = "skip_rest"
    """What happens to the phases after one that missed its criterion."""

    def next_look(self, steps: int, done: int) -> int:
        """Return at how many steps of the phase, `done` or more, it is next looked at."""
        looks = max(0, -(-(done - steps) // self.every))
        return min(steps + looks * self.every, self.max_steps)

    def is_due(self, steps: int, done: int) -> bool:
        """Return whether it is looked at after so many steps of a phase of `steps`."""
        return done >= self.max_steps or self.next_look(steps, done) == done
