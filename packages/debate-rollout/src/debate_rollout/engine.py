"""The interface every engine keeps: token ids in, sampled ids and log-probabilities out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from debate_protocol.types import Ask, Reply


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one reply is sampled. `top_p`, `top_k` and `min_p` at their neutral values in RL."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One rendered ask. `prompt_ids` is empty for engines that take messages."""

    ask: Ask
    sampling: Sampling
    prompt_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Weights:
    """Parameters for an engine: all of them, or a LoRA adapter's.

    `tensors` maps parameter names as in the trainer's `state_dict()` (peft's names for a LoRA
    adapter) to tensors. `adapter` is peft's LoraConfig as a dict when `kind` is `lora`.
    """

    version: int
    tensors: Mapping[str, Any]
    kind: Literal["full", "lora"] = "full"
    adapter: Mapping[str, Any] | None = None


class Engine(Protocol):
    """Samples replies. An engine that takes messages has `renderer` None."""

    @property
    def renderer(self) -> Any:
        """The renderer that makes token ids for this engine, or None."""
        ...

    @property
    def context_window(self) -> int | None:
        """Most tokens of prompt and reply together, or None when unbounded."""
        ...

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply a request, in order; replies carry the weight version."""
        ...

    def load(self, weights: Weights) -> None:
        """Serve these weights from now on; drops every cache made with the old ones."""
        ...

    def close(self) -> None:
        """Free what the engine holds."""
        ...
