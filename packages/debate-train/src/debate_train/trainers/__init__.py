"""Trainers: they step on rows of tokens and hand out weights."""

from typing import Annotated

from debate_protocol.plugins import Variants
from debate_train.trainers.deepspeed import DeepSpeedTrainer
from debate_train.trainers.tinker import TinkerTrainer
from debate_train.trainers.trainer import Sharding, TorchTrainer, Trainer, TrainerSettings

TRAINERS: Variants[TrainerSettings] = Variants(
    "debate_train.trainers", TrainerSettings, TorchTrainer, DeepSpeedTrainer, TinkerTrainer
)
"""All trainers, those of other installed packages included."""

TrainerChoice = Annotated[TrainerSettings, TRAINERS]
"""Any trainer; recipes choose by `type`."""

__all__ = [
    "TRAINERS",
    "DeepSpeedTrainer",
    "Sharding",
    "TinkerTrainer",
    "TorchTrainer",
    "Trainer",
    "TrainerChoice",
    "TrainerSettings",
]
