"""What one training step leaves behind, and what is done with it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from debate_protocol.types import Transcript
from debate_rewards.credits import Score
from debate_train.advantages import Baselines
from debate_train.row_types import Batch


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


class Keeper(Protocol):
    """What is done with each step."""

    @property
    def baselines(self) -> Baselines:
        """The running baselines that the phase's last complete step left."""
        ...

    def learning(self) -> AbstractContextManager[None]:
        """Keep from the trainer what would leave a step half made."""
        ...

    def sample(self, step: Step) -> None:
        """Write what is kept of the debates of a step that is about to be trained."""
        ...

    def trained(self, step: Step) -> None:
        """Count a step whose update is made, whatever becomes of it afterwards."""
        ...

    def record(self, step: Step) -> None:
        """Write the metrics of a step that has been trained."""
        ...

    def after(self, step: Step) -> None:
        """Look, save or stop where it is time to; the engine serves the step's weights."""
        ...
