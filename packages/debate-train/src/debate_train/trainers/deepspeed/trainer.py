"""DeepSpeed ZeRO (Rajbhandari et al. 2020): sharded optimizer state, gradients, parameters."""

from typing import TYPE_CHECKING, Literal

from debate_train.losses import Loss
from debate_train.models.loaded_model import LoadedModel
from debate_train.trainers.deepspeed.settings import DeepSpeedSettings

if TYPE_CHECKING:
    from debate_train.trainers.deepspeed.session import DeepSpeedSession


class DeepSpeedTrainer(DeepSpeedSettings):
    """DeepSpeed in one or several processes."""

    type: Literal["deepspeed"] = "deepspeed"

    def open(self, loaded: LoadedModel, loss: Loss, total_steps: int) -> "DeepSpeedSession":
        """Return a trainer of this model; the reference policy is the model as it is now."""
        from debate_train.trainers.deepspeed.session import DeepSpeedSession

        return DeepSpeedSession(self, loaded, loss, total_steps)
