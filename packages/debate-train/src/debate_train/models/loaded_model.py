"""A model in memory, and the adapter that is trained on it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from debate_protocol.config import Config

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


AdapterName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=64)]


class Lora(Config):
    """Low-rank adapters (Hu et al. 2021) on every linear layer, through peft."""

    rank: int = Field(32, ge=1)
    """Rank r of the adapters' matrices."""
    alpha: float = Field(64.0, gt=0)
    """Adapters are scaled by alpha / rank."""
    dropout: Literal[0] = 0
    """Fixed at 0: with dropout the trained policy is not the sampled one."""
    adapters: tuple[AdapterName, ...] = ()
    """Names of several adapters on the one model, alike but for their values: roles of the debate
    name theirs (`debate.roles.NAME.adapter`; the first speaks for those that name none). Empty is
    one adapter for all."""

    @field_validator("adapters")
    @classmethod
    def _each_has_its_name(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"found {name!r} {names.count(name)} times; expected each once")
            if name == "default":
                raise ValueError(f"found {name!r}, which an adapter without a name is called")
        return names


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its tokenizer and where an engine in another process finds both."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerFast"
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    path: str | None = None
    lora: Lora | None = None
    training: tuple[str, ...] = ()
    """Of adapters with names those that are trained now; empty for all."""
    again: "Callable[[], PreTrainedModel] | None" = None
    """Loads the model once more, as it was before any training."""
