"""Trainers: they step on rows of tokens and hand out weights."""

from typing import Annotated

from pydantic import Field

from debate_train.trainers.deepspeed_trainer import DeepSpeedTrainer
from debate_train.trainers.torch_trainer import TorchTrainer
from debate_train.trainers.trainer import Trainer

TrainerConfig = Annotated[TorchTrainer | DeepSpeedTrainer, Field(discriminator="type")]

__all__ = ["DeepSpeedTrainer", "TorchTrainer", "Trainer", "TrainerConfig"]
