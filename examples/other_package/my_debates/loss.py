"""Clipped importance weights (MiniMax-M1, 2025, eq. 4): no token is without a gradient."""

from typing import Literal

from pydantic import Field
from torch import Tensor

from debate_train.losses import Aggregation, LossInputs, TokenLoss


class Cispo(TokenLoss):
    """-sg(min(ρ, 1 + high))·A·log p, with ρ the ratio to the sampler."""

    type: Literal["cispo"] = "cispo"
    aggregation: Aggregation = "token_mean_batch"
    clip_high: float = Field(0.28, gt=0)

    def per_action(self, x: LossInputs) -> Tensor:
        """Return the loss of each action, shape (A,), before weights and penalty."""
        ratio_A = (x.logps_A - x.old_logps_A).exp().clamp(max=1 + self.clip_high)
        return -ratio_A.detach() * x.advantages_A * x.logps_A
