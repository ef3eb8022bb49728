"""What is kept of a run, and when: the recipe's keys `checkpoint` and `recording`."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from debate_protocol.config import Config

if TYPE_CHECKING:
    from debate_train.checkpointing.checkpoints import Best


class KeepBest(Config):
    """Which checkpoint is kept besides the last ones."""

    metric: str
    """Name as in the evaluation on the dev split, such as eval/majority/accuracy."""
    mode: Literal["max", "min"] = "max"
    """Whether the largest or the smallest value is best."""

    def is_better(self, value: float, best: "Best | None") -> bool:
        """Return whether a value is better than the best so far; equal ones are not."""
        if best is None or best.metric != self.metric:
            return True
        return value > best.value if self.mode == "max" else value < best.value


class Checkpointing(Config):
    """When the run can be resumed from."""

    every: int = Field(0, ge=0)
    """Steps between checkpoints; 0 counts minutes alone."""
    every_minutes: float = Field(15.0, ge=0)
    """Minutes after which a step is followed by a checkpoint; 0 counts steps alone. They are also
    written at the end of phases, on interrupts, and when a run fails between two updates."""
    keep_last: int = Field(2, ge=1)
    """How many of the last checkpoints are kept."""
    keep_best: KeepBest | None = None
    """Whenever a look at the dev split is the best so far, a checkpoint is written and kept."""


class Recording(Config):
    """What the run directory keeps of rollouts."""

    every: int = Field(10, ge=1)
    """Steps between two recorded samples."""
    debates: int = Field(4, ge=0)
    """Debates in each sample: their transcripts, and their tokens with credits."""
