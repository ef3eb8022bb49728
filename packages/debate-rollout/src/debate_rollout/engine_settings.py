"""What the settings of an engine offer before it is opened."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, Protocol, Self

from debate_protocol.plugins import Config
from debate_protocol.types import Ask
from debate_rollout.engine import Capability, Engine

Script = Callable[[Ask], str]
"""What an agent says when it is asked."""


@dataclass(frozen=True, slots=True)
class Place:
    """What an engine shares its machine with.

    Attributes:
        processes: Processes that train.
        lora_rank: Rank of the adapter that is trained, None where every parameter is.
        gpu: Name of the GPU that rank 0 trains on, None where that is not known.
        gpus: Names of the GPUs that a process which is started sees, in order.
    """

    processes: int = 1
    lora_rank: int | None = None
    gpu: str | None = None
    gpus: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Footprint:
    """What an engine takes of the GPUs; by default nothing that is known.

    Attributes:
        gpus: GPUs that it samples on.
        shares: Whether they are those that train.
        reserved: Bytes of the GPU that it shares with rank 0.
        replicas: Copies of the weights.
        split: GPUs that the weights of a copy are split over.
        room: Bytes of each of its GPUs for weights and cache, None where that is not fixed.
    """

    gpus: int = 0
    shares: bool = True
    reserved: float = 0.0
    replicas: int = 1
    split: int = 1
    room: float | None = None


class EngineConfig(Protocol):
    """Settings that open an engine: a pydantic model with a field `type`.

    `EngineSettings` brings all but `type`, `capabilities` and `open`.
    """

    @property
    def type(self) -> str:
        """The name by which recipes choose the engine."""
        ...

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What the opened engine can do, as far as it is known before."""
        ...

    @property
    def is_sampled(self) -> bool:
        """Whether replies are sampled; False where the source of the questions writes them."""
        ...

    @property
    def takes_folders(self) -> bool:
        """Whether it is opened with a folder or hub id rather than with a model in memory."""
        ...

    @property
    def needs_model(self) -> bool:
        """Whether it is opened with a model and its tokenizer, or with neither."""
        ...

    @property
    def in_trainer(self) -> bool:
        """Whether it computes in the process, and on the device, that trains."""
        ...

    @property
    def one_in_process(self) -> bool:
        """Whether it computes in this process, which can hold no other such engine beside it."""
        ...

    def open(self, model: Any, tokenizer: Any, template_kwargs: Mapping[str, Any] = {}) -> Engine:
        """Return the running engine.

        Args:
            model: A causal language model with its weights; a folder or hub id for an engine that
                takes them; None for one that samples from no model.
            tokenizer: Its tokenizer; None for an engine that takes messages.
            template_kwargs: Handed to the chat template, such as `{"enable_thinking": False}`.
        """
        ...

    def script(self, demonstrate: Callable[..., str]) -> Script | None:
        """Return what agents say, made of the questions' demonstrations; None to sample."""
        ...

    def window(self) -> int | None:
        """Return the most tokens of prompt and reply that these settings allow, None for any."""
        ...

    def named_device(self) -> str:
        """Return the device it is to run on, `auto` where none is named."""
        ...

    def missing_library(self) -> str | None:
        """Return what must be installed before it can be opened here, None for nothing."""
        ...

    def problems(self, place: Place) -> list[str]:
        """Return what keeps it from serving a trainer, each with the key that it is about."""
        ...

    def warnings(self, place: Place) -> list[str]:
        """Return what would be better otherwise, each with the key that it is about."""
        ...

    def sent_key(self) -> str | None:
        """Return which environment variable's value is sent where, None where none is."""
        ...

    def own_gpus(self, ranks: int, gpus: int) -> list[str]:
        """Return what must be named for it to have the GPUs that no rank trains on."""
        ...

    def footprint(self, weight_bytes: int, gpu_bytes: float) -> Footprint:
        """Return what it takes, for weights of so many bytes and GPUs of so many."""
        ...

    def for_checkpoint(self, dtype: str) -> Self:
        """Return the settings under which a checkpoint is served in the trainer's dtype."""
        ...

    def alone(self) -> Self:
        """Return the settings for a model that nobody else will change."""
        ...

    def for_adapter(self, rank: int) -> Mapping[str, object]:
        """Return the settings that an adapter of this rank needs, by key."""
        ...


class EngineSettings(Config):
    """What engines share: nothing is known to be needed, taken or wrong."""

    is_sampled: ClassVar[bool] = True
    takes_folders: ClassVar[bool] = False
    libraries: ClassVar[tuple[str, ...]] = ()
    """Modules that must be importable."""
    install: ClassVar[str] = ""
    """What brings them, as pip is given it."""

    @property
    def in_trainer(self) -> bool:
        """Whether it computes in the process, and on the device, that trains."""
        return False

    @property
    def needs_model(self) -> bool:
        """Whether it is opened with a model and its tokenizer."""
        return True

    @property
    def one_in_process(self) -> bool:
        """Whether this process can hold no other such engine beside it."""
        return False

    def script(self, demonstrate: Callable[..., str]) -> Script | None:
        """Return what agents say; None, as replies are sampled."""
        return None

    def window(self) -> int | None:
        """Return the most tokens of prompt and reply that these settings allow."""
        found: int | None = getattr(self, "context_window", None)
        return found

    def named_device(self) -> str:
        """Return the device it is to run on."""
        return "auto"

    def needed_libraries(self) -> tuple[str, ...]:
        """Return the modules that must be importable under these settings."""
        return self.libraries

    def missing_library(self) -> str | None:
        """Return what must be installed before it can be opened here, None for nothing."""
        absent = [name for name in self.needed_libraries() if find_spec(name) is None]
        if not absent:
            return None
        return (
            f"needs {' and '.join(absent)}, not installed here; expected "
            f"`pip install '{self.install}'`"
        )

    def problems(self, place: Place) -> list[str]:
        """Return what keeps it from serving a trainer."""
        return []

    def warnings(self, place: Place) -> list[str]:
        """Return what would be better otherwise."""
        return []

    def sent_key(self) -> str | None:
        """Return which environment variable's value is sent where; by default none is."""
        return None

    def own_gpus(self, ranks: int, gpus: int) -> list[str]:
        """Return what must be named for it to have the GPUs that no rank trains on."""
        return []

    def footprint(self, weight_bytes: int, gpu_bytes: float) -> Footprint:
        """Return what it takes."""
        return Footprint()

    def for_checkpoint(self, dtype: str) -> Self:
        """Return the settings under which a checkpoint is served in the trainer's dtype."""
        return self

    def alone(self) -> Self:
        """Return the settings for a model that nobody else will change."""
        return self

    def for_adapter(self, rank: int) -> Mapping[str, object]:
        """Return the settings that an adapter needs; by default none."""
        return {}
