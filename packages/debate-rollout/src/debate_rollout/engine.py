"""The interface every engine keeps: token ids in, sampled ids and log-probabilities out.

A batch engine answers a list of requests in one call. A streaming engine also takes requests one
by one and hands each reply over when it is done, so that no debate waits for another.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar, cast

from debate_protocol.plugins import Config, install_command
from debate_protocol.types import Reply, Transcript, TurnRequest

__all__ = [
    "Capability",
    "Engine",
    "Finished",
    "Request",
    "Sampling",
    "StreamingEngine",
    "Weights",
    "generate_by_streaming",
    "of_adapter",
    "streaming",
]


class RolloutError(Exception):
    """Anything this package raises on purpose."""


class MissingExtraError(RolloutError, ImportError):
    """An engine whose libraries are not installed."""


class EngineFailure(RolloutError):
    """An engine that failed twice on the same request, or gave it up.

    Attributes:
        finished: Transcripts of the debates that `play` had brought to their ends.
    """

    finished: tuple[Transcript, ...] = ()


class WeightsError(RolloutError, ValueError):
    """Weights that do not fit the served model."""


class NotFiniteError(RolloutError):
    """A model whose logits are not finite, so that nothing can be sampled from it."""


class EngineConfigError(RolloutError, ValueError):
    """Settings of an engine or of a call that cannot work."""


class EndpointError(RolloutError):
    """An endpoint that refuses a request, or keeps failing it."""


class RetriesExhaustedError(EndpointError):
    """An endpoint that kept failing a request, which its engine has tried again in vain."""


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Say which extra to install where an import fails.

    Raises:
        MissingExtraError: When something cannot be imported in this context.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(
            f"{what} needs libraries that cannot be imported ({error}). "
            f"Install them: {install_command(f'debate-rollout[{extra}]')}"
        ) from error


Capability = Literal[
    "tokens",  # Takes prompt ids, and replies hold the sampled ids.
    "logps",  # Replies hold log-probabilities after the temperature.
    "seeds",  # The same request has the same reply.
    "streams",  # The engine is a `StreamingEngine`.
    "full_weights",  # `load` takes all parameters.
    "lora",  # `load` takes an adapter.
    "adapters",  # `load` takes several by name; a request is answered by its ask's adapter.
    "prefix_cache",  # Prompts that begin alike are computed once; `load` drops what is old.
    "sleeps",  # `sleep` frees the device's memory until the next `load`.
    "load_in_flight",  # `load` may be called while requests are open; replies mark what they mix.
]
"""What an engine can do; training needs `tokens` and `logps`."""


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
    """One rendered ask. `prompt_ids` is empty for engines that take messages.

    Requests of one `session` extend or share each other's prompts; -1 belongs to none.
    """

    turn_request: TurnRequest
    sampling: Sampling
    prompt_ids: tuple[int, ...] = ()
    session: int = -1


@dataclass(frozen=True, slots=True)
class Weights:
    """Parameters for an engine: all of them, or a LoRA adapter's.

    `tensors` maps parameter names as in the trainer's `state_dict()` (peft's names for a LoRA
    adapter) to tensors. `adapter` is peft's LoraConfig as a dict when `kind` is `lora`. Of several
    adapters of one configuration `names` are the names, and each stands before those of its
    tensors: `critic/base_model.model.…`; a turn request that names none is answered by the first.
    """

    version: int
    tensors: Mapping[str, Any]
    kind: Literal["full", "lora"] = "full"
    adapter: Mapping[str, object] | None = None
    names: tuple[str, ...] = ()

    def by_adapter(self) -> "dict[str, Weights]":
        """Return the weights of each adapter, of the only one under an empty name.

        Raises:
            WeightsError: A tensor is of none of the adapters that are named.
        """
        if not self.names:
            return {"": self}
        tensors: dict[str, dict[str, object]] = {name: {} for name in self.names}
        for key, tensor in self.tensors.items():
            name, _, tensor_name = key.partition("/")
            if name not in tensors:
                raise WeightsError(
                    f"weights hold {key!r}; expected the name of an adapter before a slash: "
                    + ", ".join(self.names)
                )
            tensors[name][tensor_name] = tensor
        return {
            name: replace(self, tensors=adapter_tensors, names=())
            for name, adapter_tensors in tensors.items()
        }


def room_of(request: Request, window: int | None) -> int:
    """Return how many tokens the reply may have; below 1 when the prompt fills the window.

    Raises:
        EngineConfigError: When the prompt has no ids.
    """
    if not request.prompt_ids:
        raise EngineConfigError("a request's prompt_ids: found none; expected at least one")
    max_tokens = request.sampling.max_tokens
    if window is None:
        return max_tokens
    return min(max_tokens, window - len(request.prompt_ids))


def overflow(request: Request, version: int = 0) -> Reply:
    """Return the reply to a prompt that fills the window."""
    return Reply(
        "",
        finish="context_overflow",
        temperature=request.sampling.temperature,
        weight_version=version,
    )


class Engine(Protocol):
    """Samples replies. An engine that takes messages has `renderer` None.

    Methods are called one at a time, though not always from the same thread.
    """

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What this engine can do, as it was opened."""
        ...

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
        """Serve these weights from the next token on; drops every cache made with the old ones.

        A load that fails leaves the old weights serving, or an engine that fails every request.
        """
        ...

    def close(self) -> None:
        """Free what the engine holds."""
        ...


T = TypeVar("T")


def of_adapter(served: Mapping[str, T], turn_request: TurnRequest) -> T | None:
    """Find what is served under a turn request's adapter; None where none was loaded.

    Args:
        served: By the names of `Weights.by_adapter`.
        ask: Names an adapter, or none for the first.

    Raises:
        EngineConfigError: There is no such adapter among those that were loaded.
    """
    if not served:
        return None
    name = next(iter(served)) if turn_request.adapter is None else turn_request.adapter
    if name not in served:
        loaded = ", ".join(filter(None, served)) or "none with a name"
        raise EngineConfigError(f"adapter: found {name!r}, but weights of {loaded} were loaded")
    return served[name]


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that has ended: its reply, or why there is none."""

    ticket: int
    outcome: Reply | Exception


class Queue(Protocol):
    """Takes requests at any time and hands each reply over when it is done."""

    def submit(self, request: Request) -> int:
        """Take a request and return its ticket at once; no ticket is given twice.

        A request that cannot be served ends with an exception in `collect`; only an engine that
        can serve none raises here.
        """
        ...

    def collect(self, timeout_s: float) -> list[Finished]:
        """Return the requests that have ended since the last call, each once.

        Waits until there is at least one, at most `timeout_s` seconds; returns at once when no
        request is open. An engine that has died ends all open requests with exceptions.
        """
        ...

    def cancel(self, ticket: int) -> None:
        """Give a request up: `collect` never returns it. Tickets that have ended are ignored."""
        ...


class StreamingEngine(Engine, Queue, Protocol):
    """An engine that is a queue, too; it may have a `CacheRoom` as `room`."""


class SleepingEngine(Engine, Protocol):
    """An engine that lends its device's memory to a trainer."""

    def sleep(self) -> None:
        """Free the device's memory; nothing may be asked until the next `load`."""
        ...


def streaming(engine: Engine) -> StreamingEngine | None:
    """Return the engine as one that streams, None if it does not."""
    return cast(StreamingEngine, engine) if "streams" in engine.capabilities else None


def generate_by_streaming(engine: Queue, requests: Sequence[Request]) -> list[Reply]:
    """Answer a batch by `submit` and `collect`: `generate` of a streaming engine.

    Outcomes of requests that were open before are taken and lost: a driver either submits or calls
    this, not both at once.

    Raises:
        Exception: The first that a request ended with; the others are cancelled then.
    """
    index_by_ticket: dict[int, int] = {}
    replies: dict[int, Reply] = {}
    try:
        for index, request in enumerate(requests):
            index_by_ticket[engine.submit(request)] = index
        while index_by_ticket:
            for finished in engine.collect(60.0):
                if finished.ticket not in index_by_ticket:
                    continue
                index = index_by_ticket.pop(finished.ticket)
                if isinstance(finished.outcome, Exception):
                    raise finished.outcome
                replies[index] = finished.outcome
    finally:
        for ticket in index_by_ticket:
            engine.cancel(ticket)
    return [replies[index] for index in range(len(requests))]


Script = Callable[[TurnRequest], str]
"""What an agent says when it is asked."""


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """What an engine shares its machine with.

    Attributes:
        processes: Processes that train.
        lora_rank: Rank of the adapter that is trained, None where every parameter is.
    """

    processes: int = 1
    lora_rank: int | None = None


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


class EngineSettings(Config):
    """The settings that open an engine; the base class of all of them.

    By default nothing is known to be needed, taken or wrong.
    """

    is_sampled: ClassVar[bool] = True
    """Whether replies are sampled; False where the source of the questions writes them."""
    takes_folders: ClassVar[bool] = False
    """Whether `open` takes a folder or hub id rather than a model in memory."""
    lowest_temperature: ClassVar[float] = 0.0
    """Positive temperatures below this are raised to it in silence, so they are refused."""
    one_in_process: ClassVar[bool] = False
    """Whether this process can hold no other such engine beside it."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Modules that must be importable."""
    install: ClassVar[str] = ""
    """What brings them, as pip is given it."""

    type: str = ""
    """The name by which recipes choose the engine."""

    @property
    @abstractmethod
    def capabilities(self) -> frozenset[Capability]:
        """What the opened engine can do, as far as it is known before."""

    @abstractmethod
    def open(self, model: Any, tokenizer: Any, template_kwargs: Mapping[str, Any] = {}) -> Engine:
        """Return the running engine.

        Args:
            model: A causal language model with its weights; a folder or hub id for an engine that
                takes them; None for one that samples from no model.
            tokenizer: Its tokenizer; None for an engine that takes messages.
            template_kwargs: Handed to the chat template, such as `{"enable_thinking": False}`.

        Raises:
            MissingExtraError: When its libraries are not installed.
            EngineConfigError: When the settings cannot be used here.
        """

    @property
    def needs_model(self) -> bool:
        """Whether it is opened with a model and its tokenizer, or with neither."""
        return True

    def script(self, demonstrate: Callable[..., str]) -> Script | None:
        """Return what agents say, made of the questions' demonstrations; None to sample."""
        return None

    def window(self) -> int | None:
        """Return the most tokens of prompt and reply that these settings allow, None for any."""
        return getattr(self, "context_window", None)

    def named_device(self) -> str:
        """Return the device it is to run on, `auto` where none is named."""
        return getattr(self, "device", "auto")

    def missing_library(self) -> str | None:
        """Return what must be installed before it can be opened here, None for nothing."""
        absent = [name for name in self.libraries if find_spec(name) is None]
        if not absent:
            return None
        return (
            f"needs {' and '.join(absent)}, not installed here; expected "
            f"`{install_command(self.install)}`"
        )

    def problems(self, training: TrainingSetup) -> list[str]:
        """Return what keeps it from serving a trainer, each with the key that it is about."""
        return []

    def sent_key(self) -> str | None:
        """Return which environment variable's value is sent where, None where none is."""
        return None

    def footprint(self, weight_bytes: int, gpu_bytes: float) -> Footprint:
        """Return what it takes, for weights of so many bytes and GPUs of so many."""
        return Footprint()

    def server(self, model: str, dtype: str) -> list[str] | None:
        """Return the command of a server that it could sample from, None where it has none.

        Args:
            model: Path or hub id.
            dtype: Of the checkpoint.
        """
        return None

    def for_checkpoint(self, dtype: str) -> Self:
        """Return the settings under which a checkpoint is served in the trainer's dtype."""
        return self

    def alone(self) -> Self:
        """Return the settings for a model that nobody else will change."""
        return self
