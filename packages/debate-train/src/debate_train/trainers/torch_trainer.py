"""One process, any device: the trainer that always runs."""

import sys
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import model_validator

from debate_rollout.engines.devices import Device
from debate_train.losses import Loss
from debate_train.models.loaded_model import LoadedModel
from debate_train.trainers.trainer import TrainerSettings

if TYPE_CHECKING:
    from debate_train.trainers.torch_session import TorchTrainerSession


class TorchTrainer(TrainerSettings):
    """Plain PyTorch in this process."""

    adapters_at_once: ClassVar[int] = sys.maxsize

    type: Literal["torch"] = "torch"
    device: Device = "auto"
    """Where the model is trained; `auto` takes a CUDA device where there is one, else the CPU."""

    def named_device(self) -> str:
        """Return the device to train on."""
        return self.device

    def open(self, loaded: LoadedModel, loss: Loss, total_steps: int) -> "TorchTrainerSession":
        """Return a trainer of this model; the reference policy is the model as it is now."""
        from debate_train.trainers.torch_session import TorchTrainerSession

        return TorchTrainerSession(self, loaded, loss, total_steps)

    @model_validator(mode="after")
    def _optimizer_is_ours(self) -> "TorchTrainer":
        if self.optimizer.needs_deepspeed:
            raise ValueError(
                f"optimizer: found DeepSpeed's {self.optimizer.label} with trainer.type torch; "
                "expected trainer.type deepspeed, or another optimizer"
            )
        return self
