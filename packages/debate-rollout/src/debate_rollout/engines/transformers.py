"""The transformers engine: any Hugging Face causal model, on a CPU or one GPU."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, Field

from debate_rollout.engine import Capability, EngineSettings, Footprint, TrainingSetup, needs_extra

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from debate_rollout.engines.transformers_sampler import TransformersSampler


_KINDS = ("cpu", "cuda", "mps", "xpu", "npu", "hpu", "mtia")


_NAME = re.compile(rf"auto|(?:{'|'.join(_KINDS)})(?::\d{{1,3}})?")


def _known(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"found {name!r}; expected auto, or a device such as cpu, cuda or cuda:1 "
            f"({', '.join(_KINDS)})"
        )
    return name


Device = Annotated[str, AfterValidator(_known)]
"""A device that torch may know; whether it is there is asked of `absent_device`."""


def absent_device(name: str) -> str | None:
    """Return why nothing can be put on a device here, `None` where it can; needs torch."""
    if name == "auto":
        return None
    import torch

    try:
        torch.empty(1, device=name)
    except Exception as error:  # Each backend answers with errors of its own.
        lines = str(error).strip().splitlines()
        return lines[0] if lines else type(error).__name__
    return None


class TransformersEngine(EngineSettings):
    """Batched generation with a key-value cache; the default without vLLM."""

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

    def problems(self, training: TrainingSetup) -> list[str]:
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

    def open(
        self,
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerFast",
        template_kwargs: Mapping[str, object] = {},
    ) -> "TransformersSampler":
        """Return the running engine."""
        with needs_extra("the transformers engine", "transformers"):
            from debate_rollout.engines.transformers_sampler import TransformersSampler
        return TransformersSampler(self, model, tokenizer, template_kwargs)
