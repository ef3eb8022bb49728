"""The vLLM engine: paged attention, prefix caching and continuous batching in this process."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from debate_rollout.engine import Capability
from debate_rollout.errors import missing_extra

if TYPE_CHECKING:
    from debate_rollout.engines.vllm_sampler import VllmSampler


class VllmEngine(BaseModel):
    """vLLM inside this process, on one device."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["vllm"] = "vllm"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto` serves the type of the checkpoint or model that is opened (vLLM's own `auto` would
    serve float32 checkpoints as bfloat16)."""
    context_window: int | None = Field(None, ge=1)
    """Most tokens of prompt and reply; None takes it from the model's configuration."""
    max_batch: int = Field(256, ge=1)
    """Most replies under way at once."""
    gpu_memory_utilization: float = Field(0.45, gt=0, le=1)
    """Share of the device for weights and cache; the trainer lives in the rest."""
    kv_cache_mib: int | None = Field(None, ge=1)
    """Size of the key-value cache; None fills the share above, or 256 MiB on a CPU."""
    block_size: int | None = Field(None, ge=1)
    """Tokens of a cache block; None is vLLM's choice, or 32 on a CPU."""
    enforce_eager: bool = False
    max_lora_rank: int | None = Field(None, ge=1)
    """Set to serve adapters; at least the rank of the adapter that is trained."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What the opened engine can do."""
        weights: Capability = "full_weights" if self.max_lora_rank is None else "lora"
        return frozenset(("tokens", "logps", "seeds", "prefix_cache", weights))

    def open(
        self, model: Any, tokenizer: Any, template_kwargs: Mapping[str, Any] = {}
    ) -> "VllmSampler":
        """Return the running engine.

        Args:
            model: A local directory, a hub id, or a causal language model, which is written to a
                temporary directory first.
            tokenizer: Its tokenizer.
            template_kwargs: Handed to the chat template, such as `{"enable_thinking": False}`.

        Raises:
            MissingExtraError: When vLLM is not installed.
        """
        try:
            from debate_rollout.engines.vllm_sampler import VllmSampler
        except ImportError as error:
            raise missing_extra("the vllm engine", "vllm", error) from error
        return VllmSampler(self, model, tokenizer, template_kwargs)
