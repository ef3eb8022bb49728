"""The interface of engines: token ids in, sampled ids and log-probabilities out.

A batch engine answers a list of requests in a call. A streaming engine also takes single requests
and returns each finished reply, so debates do not wait for each other.
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


T = TypeVar("T")

Script = Callable[[TurnRequest], str]
"""From a turn request to the agent's reply."""


class RolloutError(Exception):
    """Base class of the errors of this package."""


class MissingExtraError(RolloutError, ImportError):
    """An engine without the required libraries."""


class EngineFailure(RolloutError):
    """An engine that failed twice on the same request, or gave it up.

    Attributes:
        finished: Transcripts of the debates finished by `play`.
    """

    finished: tuple[Transcript, ...] = ()


class WeightsError(RolloutError, ValueError):
    """Weights unfit for the served model."""


class NotFiniteError(RolloutError):
    """A model with logits beyond finite numbers: no token can be sampled."""


class EngineConfigError(RolloutError, ValueError):
    """Unusable settings of an engine or of a call."""


class EndpointError(RolloutError):
    """An endpoint refused a request, or keeps failing it."""


class RetriesExhaustedError(EndpointError):
    """An endpoint failed a request at every try."""


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Name the extra to install if an import fails.

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
    "adapters",  # `load` takes several by name; a turn request names its adapter.
    "prefix_cache",  # Shared beginnings of prompts are computed once; `load` drops old ones.
    "sleeps",  # `sleep` frees the device's memory until the next `load`.
    "load_in_flight",  # `load` may be called while requests are open; replies mark what they mix.
]
"""Capabilities of engines; training needs `tokens` and `logps`."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings of a reply. `top_p`, `top_k` and `min_p` at their neutral values in RL."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """A rendered turn request. `prompt_ids` is empty for engines of messages.

    Requests of a `session` extend or share each other's prompts; -1 is outside of sessions.
    """

    turn_request: TurnRequest
    sampling: Sampling
    prompt_ids: tuple[int, ...] = ()
    session: int = -1


@dataclass(frozen=True, slots=True)
class Weights:
    """Parameters for an engine: all of them, or a LoRA adapter's.

    `tensors` maps parameter names as in the trainer's `state_dict()` (peft's names for a LoRA
    adapter) to tensors. `adapter` is peft's LoraConfig as a dict when `kind` is `lora`. `names` are
    the names of several adapters of one configuration, and prefixes of their tensors' names:
    `critic/base_model.model.…`. A turn request without an adapter is answered by the first.
    """

    version: int
    tensors: Mapping[str, Any]
    kind: Literal["full", "lora"] = "full"
    adapter: Mapping[str, object] | None = None
    names: tuple[str, ...] = ()

    def by_adapter(self) -> "dict[str, Weights]":
        """Split the weights by adapter; a single adapter has an empty name.

        Raises:
            WeightsError: The name of a tensor does not begin with the name of an adapter.
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
    """Compute the most tokens of the reply; below 1 when the prompt fills the window.

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
    """Build the reply to a prompt as long as the window."""
    return Reply(
        "",
        finish="context_overflow",
        temperature=request.sampling.temperature,
        weight_version=version,
    )


class Engine(Protocol):
    """Samples replies. The `renderer` of an engine of messages is `None`.

    Calls of methods do not overlap, though threads may differ.
    """

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Capabilities of the opened engine."""
        ...

    @property
    def renderer(self) -> Any:
        """The renderer of this engine's prompts, or `None`."""
        ...

    @property
    def context_window(self) -> int | None:
        """Most tokens of prompt and reply together, or `None` when unbounded."""
        ...

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Sample a reply to each request, in order; replies carry the weight version."""
        ...

    def load(self, weights: Weights) -> None:
        """Serve these weights from the next token on, and drop caches of the old weights.

        After a failed load the old weights serve, or every request fails.
        """
        ...

    def close(self) -> None:
        """Free the engine's resources."""
        ...


def of_adapter(served: Mapping[str, T], turn_request: TurnRequest) -> T | None:
    """Look up the adapter of a turn request; `None` before adapters were loaded.

    Args:
        served: By the names of `Weights.by_adapter`.
        turn_request: Names an adapter; without a name, the first.

    Raises:
        EngineConfigError: The adapter was not loaded.
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
    """An ended request, with reply or error."""

    ticket: int
    outcome: Reply | Exception


class Queue(Protocol):
    """Takes requests at any time and returns each reply when it is done."""

    def submit(self, request: Request) -> int:
        """Start a request and return its ticket at once; tickets are unique.

        An unservable request ends with an exception in `collect`. Only a broken engine raises here.
        """
        ...

    def collect(self, timeout_s: float) -> list[Finished]:
        """Collect the requests ended since the last call, each once.

        Waits for an ended request, at most `timeout_s` seconds; returns at once when no request is
        open. A dead engine ends all open requests with exceptions.
        """
        ...

    def cancel(self, ticket: int) -> None:
        """Give a request up: `collect` never returns it. Ended tickets are ignored."""
        ...


class StreamingEngine(Engine, Queue, Protocol):
    """An engine with a queue; it may have a `CacheRoom` as `room`."""


class SleepingEngine(Engine, Protocol):
    """An engine able to lend its device's memory to a trainer."""

    def sleep(self) -> None:
        """Free the device's memory; requests may follow only after the next `load`."""
        ...


def streaming(engine: Engine) -> StreamingEngine | None:
    """Cast the engine to a streaming engine; `None` if it does not stream."""
    return cast(StreamingEngine, engine) if "streams" in engine.capabilities else None


def generate_by_streaming(engine: Queue, requests: Sequence[Request]) -> list[Reply]:
    """Answer a batch by `submit` and `collect`: `generate` of a streaming engine.

    Outcomes of earlier open requests are taken and lost: a driver either submits or calls this,
    not both at once.

    Raises:
        Exception: The first error of a request; the other requests are cancelled then.
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


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """The trainer beside an engine.

    Attributes:
        processes: Number of training processes.
        lora_rank: Rank of the trained adapter; `None` if every parameter is trained.
    """

    processes: int = 1
    lora_rank: int | None = None


@dataclass(frozen=True, slots=True)
class Footprint:
    """GPUs and memory of an engine; by default unknown.

    Attributes:
        gpus: Number of sampling GPUs.
        shares: Whether these GPUs also train.
        reserved: Bytes of the GPU shared with rank 0.
        replicas: Copies of the weights.
        split: Number of GPUs for the weights of a copy.
        room: Bytes of each GPU for weights and cache; `None` if not fixed.
    """

    gpus: int = 0
    shares: bool = True
    reserved: float = 0.0
    replicas: int = 1
    split: int = 1
    room: float | None = None


class EngineSettings(Config):
    """The base class of all engines' settings."""

    is_sampled: ClassVar[bool] = True
    """Whether replies are sampled; False if the source of the questions writes them."""
    takes_folders: ClassVar[bool] = False
    """Whether `open` takes a folder or hub id rather than a model in memory."""
    lowest_temperature: ClassVar[float] = 0.0
    """Positive temperatures below this are refused, as the engine would raise them in silence."""
    only_temperature: ClassVar[float | None] = None
    """The temperature above 0 that it samples at; None for any."""
    serves_trainer: ClassVar[str | None] = None
    """The type of the only trainer whose weights it loads; None for any that exports tensors."""
    one_in_process: ClassVar[bool] = False
    """Whether a process can have only one such engine."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Modules that must be importable."""
    install: ClassVar[str] = ""
    """The requirement that installs them, as for pip."""

    type: str = ""
    """The engine's name in recipes."""

    @property
    @abstractmethod
    def capabilities(self) -> frozenset[Capability]:
        """Capabilities of the opened engine, as far as known before."""

    @abstractmethod
    def open(self, model: Any, tokenizer: Any, template_kwargs: Mapping[str, Any] = {}) -> Engine:
        """Open the engine.

        Args:
            model: A causal language model with weights; a folder or hub id if the engine takes
                them; `None` for an engine without a model.
            tokenizer: The model's tokenizer; `None` for an engine of messages.
            template_kwargs: Passed to the chat template, such as `{"enable_thinking": False}`.

        Raises:
            MissingExtraError: When required libraries are not installed.
            EngineConfigError: When the settings cannot be used here.
        """

    @property
    def needs_model(self) -> bool:
        """Whether opening takes a model and a tokenizer."""
        return True

    def script(self, demonstrate: Callable[..., str]) -> Script | None:
        """Build the agents' replies from the questions' demonstrations; `None` to sample."""
        return None

    def window(self) -> int | None:
        """Read the most tokens of prompt and reply from these settings; `None` without a limit."""
        return getattr(self, "context_window", None)

    def named_device(self) -> str:
        """Read the device from these settings, by default `auto`."""
        return getattr(self, "device", "auto")

    def missing_library(self) -> str | None:
        """Name libraries to install before it can be opened here."""
        absent = [name for name in self.libraries if find_spec(name) is None]
        if not absent:
            return None
        return (
            f"needs {' and '.join(absent)}, not installed here; expected "
            f"`{install_command(self.install)}`"
        )

    def problems(self, training: TrainingSetup) -> list[str]:
        """List why it cannot serve a trainer, each with the key at fault."""
        return []

    def sent_key(self) -> str | None:
        """Name the environment variable sent to a host, and the host; `None` if no key is sent."""
        return None

    def footprint(self, weight_bytes: int, gpu_bytes: float) -> Footprint:
        """Compute GPUs and memory, for the bytes of the weights and of a GPU."""
        return Footprint()

    def server(self, model: str, dtype: str) -> list[str] | None:
        """Write the command of a server for sampling; `None` for an engine without servers.

        Args:
            model: Path or hub id.
            dtype: Dtype of the checkpoint.
        """
        return None

    def for_checkpoint(self, dtype: str) -> Self:
        """Adapt the settings to serve a checkpoint in the trainer's dtype."""
        return self

    def alone(self) -> Self:
        """Adapt the settings to a model without other users: no copy is needed."""
        return self
