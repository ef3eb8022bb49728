"""A model in memory, and the adapter that is trained on it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from debate_protocol.config import Config

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


class Lora(Config):
    """Low-rank adapters (Hu et al. 2021) on every linear layer, through peft."""

    rank: int = Field(32, ge=1)
    alpha: float = Field(64.0, gt=0)
    dropout: Literal[0] = 0
    """Fixed at 0: with dropout the trained policy is not the sampled one."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its tokenizer and where an engine in another process finds both."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerFast"
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    path: str | None = None
    lora: Lora | None = None
    again: "Callable[[], PreTrainedModel] | None" = None
    """Loads the model once more, as it was before any training."""
