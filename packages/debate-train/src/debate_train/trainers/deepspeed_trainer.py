"""DeepSpeed ZeRO (Rajbhandari et al. 2020): sharded optimizer state, gradients, parameters."""

from typing import TYPE_CHECKING, Any, Literal

from debate_train.losses import Loss
from debate_train.models import LoadedModel
from debate_train.trainers.trainer import OptimizerSettings

if TYPE_CHECKING:
    from debate_train.trainers.deepspeed_session import DeepSpeedSession


class DeepSpeedTrainer(OptimizerSettings):
    """DeepSpeed in this process."""

    type: Literal["deepspeed"] = "deepspeed"
    zero_stage: Literal[0, 1, 2] = 2
    """What is sharded: nothing (0), optimizer state (1), gradients too (2)."""
    offload_optimizer: bool = False
    """Keep optimizer state in CPU memory."""
    bf16: bool = False
    """Train in bfloat16 with float32 master weights; set it where the model's dtype is bfloat16."""

    def open(self, loaded: LoadedModel, loss: Loss, total_steps: int) -> "DeepSpeedSession":
        """Return a trainer of this model; the reference policy is the model as it is now."""
        from debate_train.trainers.deepspeed_session import DeepSpeedSession

        return DeepSpeedSession(self, loaded, loss, total_steps)

    def deepspeed_config(self) -> dict[str, Any]:
        """Return the configuration as DeepSpeed reads it."""
        zero: dict[str, Any] = {"stage": self.zero_stage}
        if self.offload_optimizer:
            zero["offload_optimizer"] = {"device": "cpu"}
        return {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": self.max_grad_norm,
            # Micro-batches vary in number: backward is called for each, step once.
            "managed_gradient_accumulation": False,
            "zero_optimization": zero,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "bf16": {"enabled": self.bf16},
            "steps_per_print": 10**9,
        }
