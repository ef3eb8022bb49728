"""The transformers engine: any Hugging Face causal model, on a CPU or one GPU."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field

from debate_rollout.engine import Capability, missing_extra
from debate_rollout.engine_settings import EngineSettings, Footprint, Place
from debate_rollout.engines.devices import Device

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from debate_rollout.engines.transformers_sampler import TransformersSampler


class TransformersSettings(EngineSettings):
    """What a recipe says of it."""

    type: Literal["transformers"] = "transformers"
    max_batch: int = Field(128, ge=1)
    """Most replies sampled side by side; lower it when memory runs out."""
    device: Device = "auto"
    """`auto` takes a CUDA device where there is one, else the CPU."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto` keeps the type of the model that is opened."""
    context_window: int | None = Field(None, ge=1)
    """Most tokens of prompt and reply; None takes it from the model's configuration."""
    copy_model: bool = True
    """Serve a copy. False serves the opened model itself, which nobody else may then change."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What the opened engine can do."""
        return frozenset(("tokens", "logps", "seeds", "full_weights", "lora", "adapters"))

    @property
    def in_trainer(self) -> bool:
        """Whether it computes on the device that trains."""
        return self.device in ("auto", "cpu")

    def named_device(self) -> str:
        """Return the device it is to run on."""
        return self.device

    def problems(self, place: Place) -> list[str]:
        """Return what keeps it from serving a trainer."""
        if self.copy_model:
            return []
        return [
            "copy_model: found false, but training changes the model that would be served; "
            "expected true"
        ]

    def footprint(self, weight_bytes: int, gpu_bytes: float) -> Footprint:
        """Return the copy of the weights that it serves."""
        return Footprint(reserved=float(weight_bytes) if self.device != "cpu" else 0.0)

    def alone(self) -> Self:
        """Return the settings that serve the model itself."""
        return self.model_copy(update={"copy_model": False})


class TransformersEngine(TransformersSettings):
    """Batched generation with a key-value cache; the default without vLLM."""

    def open(
        self,
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerFast",
        template_kwargs: Mapping[str, object] = {},
    ) -> "TransformersSampler":
        """Return the running engine.

        Args:
            model: A causal language model with its weights.
            tokenizer: Its tokenizer.
            template_kwargs: Handed to the chat template, such as `{"enable_thinking": False}`.

        Raises:
            MissingExtraError: When torch and transformers are not installed.
        """
        try:
            from debate_rollout.engines.transformers_sampler import TransformersSampler
        except ImportError as error:
            raise missing_extra("the transformers engine", "transformers", error) from error
        return TransformersSampler(self, model, tokenizer, template_kwargs)
