"""What one training step leaves behind."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from debate_protocol.types import Transcript
from debate_rewards.credits import Score
from debate_train.advantages import Baselines
from debate_train.batches.row_types import Batch


@dataclass(frozen=True, slots=True)
class Step:
    """What one step left behind. `number` counts from 0 over the whole run."""

    number: int
    transcripts: Sequence[Transcript]
    scores: Sequence[Score]
    batch: Batch
    metrics: dict[str, float]
    baselines: Baselines = field(default_factory=dict)
    """The running baselines after this step."""
    began: float = 0.0
    """When it began, in seconds of `time.perf_counter`."""
