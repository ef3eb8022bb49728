"""Losses: what an update lowers, over the sampled tokens of a pack."""

from typing import Annotated

from pydantic import Field

from debate_train.losses.loss_inputs import LossInputs, Normalise
from debate_train.losses.preferences import Dpo
from debate_train.losses.token_losses import (
    Dapo,
    Grpo,
    ImportanceSampling,
    Kl,
    PpoClip,
    Reinforce,
    Sft,
)

Loss = Annotated[
    ImportanceSampling | Reinforce | PpoClip | Dapo | Grpo | Dpo | Sft,
    Field(discriminator="type"),
]

__all__ = [
    "Dapo",
    "Dpo",
    "Grpo",
    "ImportanceSampling",
    "Kl",
    "Loss",
    "LossInputs",
    "Normalise",
    "PpoClip",
    "Reinforce",
    "Sft",
]
