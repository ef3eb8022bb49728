"""Losses: what an update lowers, over the sampled tokens of a pack."""

from typing import Annotated

from debate_protocol.plugins import Variants
from debate_train.losses.loss import Aggregation, Dpo, Loss, LossInputs
from debate_train.losses.token_losses import (
    Dapo,
    Grpo,
    ImportanceSampling,
    Kl,
    PpoClip,
    RatioLoss,
    Reinforce,
    Sft,
    TokenLoss,
)

LOSSES: Variants[Loss] = Variants(
    "debate_train.losses",
    Loss,
    ImportanceSampling,
    Reinforce,
    PpoClip,
    Dapo,
    Grpo,
    Dpo,
    Sft,
)
"""All losses, those of other installed packages included."""

LossConfig = Annotated[Loss, LOSSES]
"""Any loss; recipes choose by `type`."""

__all__ = [
    "LOSSES",
    "Dapo",
    "Dpo",
    "Grpo",
    "ImportanceSampling",
    "Kl",
    "Loss",
    "LossConfig",
    "LossInputs",
    "Aggregation",
    "PpoClip",
    "RatioLoss",
    "Reinforce",
    "Sft",
    "TokenLoss",
]
