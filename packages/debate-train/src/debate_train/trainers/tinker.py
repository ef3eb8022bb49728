"""The `tinker` trainer: an adapter on a server of the Tinker interface."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import model_validator

from debate_protocol.plugins import Variants
from debate_rollout.engines.tinker import address_problem
from debate_train.batches.row_types import Share
from debate_train.losses import Loss
from debate_train.models import ModelConfig
from debate_train.models.loaded_model import LoadedModel
from debate_train.trainers.optimizers import AdamW, OptimizerBase
from debate_train.trainers.trainer import Trainer, TrainerSettings

SERVED_ALPHA = 32.0
"""LoRA's alpha on every server: the interface has no field for it."""
SERVED_LOSSES: dict[str, Literal["importance_sampling", "ppo"]] = {
    "importance_sampling": "importance_sampling",
    "reinforce": "importance_sampling",
    "sft": "importance_sampling",
    "ppo_clip": "ppo",
    "dapo": "ppo",
    "grpo": "ppo",
}
"""The server's name of each loss. `reinforce` and `sft` are importance sampling at a ratio of 1:
`cross_entropy` takes no weight of a token, or divides it away."""
ADAMS: Variants[OptimizerBase] = Variants(None, OptimizerBase, AdamW)


class TinkerTrainer(TrainerSettings):
    """A LoRA adapter on a server of the Tinker interface.

    The engine `tinker` samples there. This process reads the model's tokenizer and configuration
    alone. The server has no full weights, no optimizer but Adam, no clipping of gradients, no
    weight decay of one adapter alone and no KL term; each is refused here.
    """

    several_processes: ClassVar[bool] = False

    type: Literal["tinker"] = "tinker"
    base_url: str
    """Address of the server, such as http://127.0.0.1:8765. The key is in TINKER_API_KEY alone, and
    is sent to no address of the private network."""
    base_model: str | None = None
    """The server's name of the model; null takes `model.name`, or the path of its folder."""
    optimizer: Annotated[OptimizerBase, ADAMS] = AdamW()
    """The rule of an update: Adam, as `adamw` without weight decay."""
    # What a server decides; none of it is a key here.
    max_grad_norm: ClassVar[float] = float("inf")  # type: ignore[misc]
    tokens_per_micro_batch: ClassVar[int] = 8192  # type: ignore[misc]
    gradient_checkpointing: ClassVar[bool] = False  # type: ignore[misc]
    use_liger_kernel: ClassVar[bool] = False  # type: ignore[misc]
    packing: ClassVar[Share] = "none"  # type: ignore[misc]

    @model_validator(mode="before")
    @classmethod
    def _clips_nothing(cls, given: object) -> object:
        if isinstance(given, Mapping) and "max_grad_norm" in given:
            raise ValueError(
                f"max_grad_norm: found {given['max_grad_norm']}; expected none: servers drop it "
                "without a message"
            )
        return given

    @model_validator(mode="after")
    def _server_can(self) -> Self:
        problem = address_problem(self.base_url)
        if problem is not None:
            raise ValueError(f"base_url: {problem}")
        if getattr(self.optimizer, "weight_decay", 0.0) > 0:
            raise ValueError(
                "optimizer.weight_decay: found more than 0, which decays the other adapters of the "
                "server, too; expected 0"
            )
        return self

    def base_names(self, model: ModelConfig) -> tuple[str, ...]:
        """List possible names of a model on the server."""
        if self.base_model is not None:
            return (self.base_model,)
        source = model.source or ""
        return (source, str(Path(source).resolve()))

    def load_model(self, model: ModelConfig, seed: int) -> LoadedModel:
        """Read the tokenizer and the model's shapes, and name the policy on the server."""
        from debate_train.trainers.tinker_policy import TinkerPolicy

        return TinkerPolicy.of(self, model, seed)

    def open(self, loaded: LoadedModel, loss: Loss, total_steps: int) -> Trainer:
        """Open a session on the policy of the server."""
        from debate_train.trainers.tinker_session import TinkerSession

        return TinkerSession(self, loaded, loss, total_steps)
