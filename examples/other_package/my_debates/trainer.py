"""A learning rate that falls with the root of the step, as that of the first transformers."""

from typing import Literal

from pydantic import Field

from debate_train.trainers import TorchTrainer


class RootTrainer(TorchTrainer):
    """Trains as `torch` does; after the warm-up the rate is times √(scale / (scale + step))."""

    type: Literal["root"] = "root"
    scale: int = Field(10, ge=1)

    def rate_factor(self, step: int, total_steps: int) -> float:
        """Return what the learning rate is multiplied by at a step, from 0."""
        warm = min(1.0, (step + 1) / max(1, self.warmup_steps))
        return warm * (self.scale / (self.scale + step)) ** 0.5
