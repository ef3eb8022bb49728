"""What a recipe says of the transformers engine."""

from typing import Literal, Self

from pydantic import Field

from debate_rollout.engine import Capability
from debate_rollout.engine_settings import EngineSettings, Footprint, Place
from debate_rollout.engines.devices import Device


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
