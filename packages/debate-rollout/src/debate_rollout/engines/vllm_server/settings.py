"""The vllm_server engine: a vLLM server that the run starts, or one that runs already."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, field_validator, model_validator

from debate_rollout.engine import missing_extra
from debate_rollout.engine_settings import Footprint, Place
from debate_rollout.engines.openai import refuse_other_key
from debate_rollout.engines.vllm.settings import VllmSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from debate_rollout.engines.vllm_server.server import VllmServer


ABOUT_STARTING = frozenset(
    ("dtype", "max_batch", "gpu_memory_utilization", "kv_cache_mib", "block_size",
     "enforce_eager", "vllm_args", "batch_invariant", "port", "devices", "log_file",
     "start_timeout_s")
)  # fmt: skip
"""Settings that a server which is already running has settled."""


_RUNNING_SHARE = 0.9
"""Of a GPU, that a running server takes unless it was started with another share."""


class VllmServerSettings(VllmSettings):
    """What a recipe says of it."""

    type: Literal["vllm_server"] = "vllm_server"
    url: str | None = None
    """A running server, such as `http://10.0.0.7:8000`; None starts one for this run."""
    load_urls: tuple[str, ...] = ()
    """The servers behind `url` where that is a router: each is loaded with new weights, past the
    router. None where `url` is the server itself."""
    port: int | None = Field(None, ge=1, le=65535)
    """Port on 127.0.0.1 of the server that is started; None takes a free one."""
    devices: str | None = None
    """Devices of the server that is started, as in CUDA_VISIBLE_DEVICES."""
    transfer: Literal["file", "nccl"] = "file"
    """How full weights reach the server: a file that both sides see, or NCCL from this process's
    CUDA device. Adapters always go through files."""
    shared_folder: str | None = None
    """Where those files are written, on a disk that the server sees under the same path; None is
    the temporary directory of this machine."""
    max_connections: int = Field(512, ge=1)
    """Most requests that are sent at once; more wait here."""
    log_file: str | None = None
    """Log of the server that is started; None keeps one in the directory for
    temporary files, and removes it unless the server crashed."""
    start_timeout_s: float = Field(900.0, gt=0)
    """Seconds within which the server must answer after its start."""
    load_timeout_s: float = Field(900.0, gt=0)
    """Longest that one refresh of weights may take."""
    reconnect_timeout_s: float = Field(300.0, ge=0)
    """Longest wait for a server that no longer answers. One that has started again gets its
    weights again, where they come through files, and requests are sent again."""
    api_key_env: str = "VLLM_API_KEY"
    """Environment variable that holds the key of a running server, if it wants one; another name
    must fit the host, as those of `type: openai`."""
    api_key_host: str | None = None
    """The host that gets the key all the same; it must be that of `url`."""

    def needed_libraries(self) -> tuple[str, ...]:
        """A server that runs elsewhere needs nothing here but an HTTP client."""
        return ("vllm", "httpx") if self.url is None else ("httpx",)

    def problems(self, place: Place) -> list[str]:
        """Return what keeps it from serving a trainer."""
        found = super().problems(place)
        if self.url is not None or self.transfer != "nccl" or place.gpu is None:
            return found
        served = list(place.gpus[: self.workers()])
        if self.devices is not None:
            served = [name.strip() for name in self.devices.split(",")]
        if place.gpu in served:
            found.append(
                f"devices: found {self.devices or 'null'}, so the server starts on GPU "
                f"{place.gpu}, from which the trainer sends weights, and NCCL refuses two "
                "processes on one GPU; expected other GPUs, or transfer: file"
            )
        return found

    def sent_key(self) -> str | None:
        """Return which variable's value is sent where."""
        if self.url is None:
            return None
        return f"the value of {self.api_key_env}, if set, is sent to " + ", ".join(
            (self.url, *self.load_urls)
        )

    def warnings(self, place: Place) -> list[str]:
        """Return what would be better otherwise."""
        if self.url is not None:
            return []
        if self.devices is None:
            return self.idle_gpus(place.processes, f"{place.processes} processes")
        return self.idle_gpus(len(self.devices.split(",")), f"devices: {self.devices}")

    def own_gpus(self, ranks: int, gpus: int) -> list[str]:
        """Return that GPUs must be named for the server that is started."""
        if self.url is not None or self.devices is not None:
            return []
        own = ",".join(str(gpu) for gpu in range(ranks, gpus))
        return [
            "the server starts on GPUs that ranks are on: rollout.engine.devices: found none; "
            f"expected its own, such as '{own}', or a url"
        ]

    def footprint(self, weight_bytes: int, gpu_bytes: float) -> Footprint:
        """Return its share of GPUs of its own."""
        share = self.gpu_memory_utilization if self.url is None else _RUNNING_SHARE
        found = super().footprint(weight_bytes, gpu_bytes)
        return replace(found, shares=False, reserved=0.0, room=share * gpu_bytes)

    def for_checkpoint(self, dtype: str) -> Self:
        """A running server serves in the dtype that it was started with."""
        return super().for_checkpoint(dtype) if self.url is None else self

    @field_validator("url")
    @classmethod
    def _is_a_url(cls, found: str | None) -> str | None:
        return None if found is None else _server_url(found)

    @field_validator("load_urls")
    @classmethod
    def _are_urls(cls, found: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(_server_url, found))

    @model_validator(mode="after")
    def _leaves_a_running_server_alone(self) -> Self:
        settled = sorted(ABOUT_STARTING & self.model_fields_set)
        if self.url is not None and settled:
            raise ValueError(
                f"{settled[0]}: set together with url, but a running server has settled it; "
                "expected one of the two"
            )
        if self.api_key_env != "VLLM_API_KEY":
            for url in (self.url, *self.load_urls) if self.url else ():
                refuse_other_key(self.api_key_env, url, self.api_key_host)
        if self.load_urls and (self.url is None or self.transfer == "nccl"):
            raise ValueError(
                "load_urls: expected url, the router in front of them, and transfer: file (NCCL "
                "reaches one server)"
            )
        return self


def _server_url(found: str) -> str:
    if not found.startswith(("http://", "https://")):
        raise ValueError(f"found {found!r}; expected http://HOST:PORT or https://…")
    if "@" in found:
        raise ValueError("found a user name in it; expected the key in `api_key_env` only")
    return found.rstrip("/").removesuffix("/v1")


class VllmServerEngine(VllmServerSettings):
    """An OpenAI-compatible vLLM server, with token ids in and out."""

    def open(
        self,
        model: "PreTrainedModel | str",
        tokenizer: "PreTrainedTokenizerFast",
        template_kwargs: Mapping[str, object] = {},
    ) -> "VllmServer":
        """Start the server, or connect to it, and return the engine.

        Args:
            model: What the server serves: a local directory, a hub id, or a causal language model
                (written to a temporary directory for a server that is started).
            tokenizer: Its tokenizer.
            template_kwargs: Handed to the chat template, such as `{"enable_thinking": False}`.

        Raises:
            MissingExtraError: When httpx is not installed, or vLLM for a server to start.
            EngineConfigError: When the server does not run as training needs it.
            EndpointError: When it does not start or answer.
        """
        try:
            from debate_rollout.engines.vllm_server.server import VllmServer
        except ImportError as error:
            raise missing_extra("the vllm_server engine", "vllm", error) from error
        return VllmServer(self, model, tokenizer, template_kwargs)
