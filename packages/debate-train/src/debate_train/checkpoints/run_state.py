"""The progress of a run as checkpoints record it, and when checkpoints are written."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from debate_protocol.plugins import Config

# A state is read back exactly, or refused: no text becomes a number, and no field is ignored.
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Best:
    """The best checkpoint so far by a metric of the dev split."""

    step: int
    metric: str
    value: float
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


class KeepBest(Config):
    """Choice of a checkpoint to keep besides the last.

    Args:
        metric: Name as in the evaluation on the dev split, such as eval/majority/accuracy.
        mode: Whether the largest or the smallest value is best.
    """

    metric: str
    mode: Literal["max", "min"] = "max"

    def is_better(self, value: float, best: Best | None) -> bool:
        """Say whether a value is better than the best so far; an equal value is not."""
        if best is None or best.metric != self.metric:
            return True
        if self.mode == "max":
            return value > best.value
        return value < best.value


class Checkpointing(Config):
    """When the run can be resumed from.

    Args:
        every: Steps between checkpoints; 0 counts minutes alone.
        every_minutes: Minutes after which a step is followed by a checkpoint; 0 counts steps alone.
        keep_last: How many of the last checkpoints are kept.
        keep_best: Whenever an evaluation on the dev split is the best so far, a checkpoint is kept.
    """

    every: int = Field(0, ge=0)
    every_minutes: float = Field(15.0, ge=0)
    keep_last: int = Field(2, ge=1)
    keep_best: KeepBest | None = None


@dataclass(slots=True)
class RunState:
    """Progress of a run: the part of a checkpoint beside the trainer's files."""

    phase: int = 0
    """Number of the phase, from 0."""
    phase_start: int = 0
    """Steps done in the whole run when the phase began."""
    step: int = 0
    """Steps done in the whole run; also the weight version that engines serve."""
    rows: int = 0
    """Rows of metrics so far."""
    exit_criteria: dict[str, bool] = field(default_factory=dict)
    """For each phase that has ended and has an exit criterion: whether it met it."""
    before: dict[str, Any] | None = None
    """Measures on the test split when the last phase began."""
    last_eval: tuple[str, int, dict[str, float]] | None = None
    """The last evaluation of the dev split: phase, step, means by name."""
    eval_pending: bool = False
    """Whether the evaluation of the dev split after the last step is still to be made."""
    best: Best | None = None
    starts: dict[str, tuple[int, dict[str, float]]] = field(default_factory=dict)
    """For phases that may be taken back: the step to go back to, and means on the dev split there.
    Their checkpoints are kept."""
    kept: dict[str, bool] = field(default_factory=dict)
    """For each phase that has ended and could be taken back: whether it was kept."""
    held_out_start: list[float] = field(default_factory=list)
    """Log-probabilities of the phase's held-out replies at its start."""
    held_out: dict[str, dict[str, float]] = field(default_factory=dict)
    """For each phase that has ended and held out pairs: its accuracies on them."""
    baselines: dict[str, float] = field(default_factory=dict)
    """Running baselines of the advantage after the phase's last step, by name."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each part so far."""
    metrics_sha256: str = ""
    """Of the rows of metrics so far."""
    records: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the recorded samples of rollouts, by path in the run directory."""
    __pydantic_config__: ClassVar[ConfigDict] = STRICT
