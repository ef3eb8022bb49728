"""Settings of vLLM: inside this process, or as a server that the run starts or finds."""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from debate_protocol.plugins import did_you_mean
from debate_rollout.engine import (
    Capability,
    EngineConfigError,
    EngineSettings,
    Footprint,
    TrainingSetup,
    needs_extra,
)
from debate_rollout.engines.openai import refuse_other_key

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from debate_rollout.engines.vllm.sampler import VllmSampler
    from debate_rollout.engines.vllm.server import VllmServer


LOWEST_TEMPERATURE = 0.01
"""vLLM 0.32 raises lower temperatures above 0 to this in silence."""
BACKEND = "debate_file"
"""Name of our weight-transfer backend inside vLLM."""
EXTENSION = "debate_rollout.engines.vllm.worker.WorkerExtension"
"""What vLLM's `worker_extension_cls` must be for its workers to know the backend."""
ALLOWED = frozenset(
    ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
     "data_parallel_size_local", "data_parallel_backend", "enable_expert_parallel",
     "prefill_context_parallel_size", "decode_context_parallel_size",
     "distributed_executor_backend", "distributed_timeout_seconds", "disable_custom_all_reduce",
     "all2all_backend", "moe_backend", "linear_backend", "enable_dbo", "numa_bind",
     "max_num_batched_tokens", "enable_chunked_prefill", "long_prefill_token_threshold",
     "scheduling_policy", "async_scheduling", "stream_interval", "kv_cache_dtype",
     "kv_offloading_size", "cpu_offload_gb", "num_gpu_blocks_override", "mamba_cache_dtype",
     "mamba_ssm_cache_dtype", "disable_sliding_window", "disable_hybrid_kv_cache_manager",
     "prefix_caching_hash_algo", "block_size", "attention_backend", "disable_cascade_attn",
     "enable_flashinfer_autotune", "optimization_level", "performance_mode",
     "cudagraph_capture_sizes", "max_cudagraph_capture_size",
     "fully_sharded_loras", "max_cpu_loras", "safetensors_load_strategy", "language_model_only",
     "model_impl", "disable_log_stats")
)  # fmt: skip
"""Arguments of vLLM that recipes set: speed and memory. Others may name code, files or hosts."""
_WORD = re.compile(r"[A-Za-z0-9_-]+")
"""Choices of vLLM's own; import paths and files have other characters."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM 0.32 reserves memory for; adapters of lower ranks are served, too."""
BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"
"""Environment variable of vLLM's kernels that do not depend on the batch."""
ABOUT_STARTING = frozenset(
    ("dtype", "max_batch", "gpu_memory_utilization", "kv_cache_mib",
     "enforce_eager", "vllm_args", "batch_invariant", "port", "devices",
     "start_timeout_s")
)  # fmt: skip
"""Settings that a running server has settled at its start."""
_RUNNING_SHARE = 0.9
"""Share of a GPU that a running server takes by vLLM's default."""


def refuse_raised_temperature(temperature: float) -> None:
    """Refuse a temperature that vLLM raises.

    Raises:
        EngineConfigError: It is above 0 and below the lowest.
    """
    if 0 < temperature < LOWEST_TEMPERATURE:
        raise EngineConfigError(
            f"temperature: found {temperature:g}, which vLLM samples at {LOWEST_TEMPERATURE:g}; "
            f"expected 0, or at least {LOWEST_TEMPERATURE:g}"
        )


class VllmSettings(EngineSettings):
    """Settings of the served model and of the device memory it takes."""

    takes_folders: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("vllm",)
    install: ClassVar[str] = "debate-rollout[vllm]"

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto` serves the type of the checkpoint; vLLM's own takes bfloat16 for float32."""
    context_window: int | None = Field(None, ge=1)
    """Most tokens of prompt and reply; None takes it from the model's configuration."""
    max_batch: int = Field(256, ge=1)
    """Most replies under way at once; more wait inside vLLM."""
    gpu_memory_utilization: float = Field(0.45, gt=0, le=1)
    """Share of the device for weights and cache; the trainer lives in the rest."""
    kv_cache_mib: int | None = Field(None, ge=1)
    """Size of the key-value cache; None fills the share above, or 256 MiB on a CPU."""
    enforce_eager: bool = False
    """Run without compiling and CUDA graphs, which start slowly; always so on a CPU."""
    max_lora_rank: int | None = Field(None, ge=1, le=LORA_RANKS[-1])
    """Set to serve adapters; at least the rank of the adapters that are trained."""
    vllm_args: dict[str, Any] = Field(default_factory=dict)
    """Further `EngineArgs` of vLLM for speed and memory, such as `tensor_parallel_size`."""
    sleep: bool = False
    """Free the GPU while the trainer works on it (`pipeline.max_staleness: 0`): weights go to CPU
    memory, the cache is dropped."""
    batch_invariant: bool = False
    """Take vLLM's slower kernels that do not depend on the batch; needs a server and a GPU."""

    lowest_temperature: ClassVar[float] = LOWEST_TEMPERATURE
    removed_keys: ClassVar[Mapping[str, str]] = {
        "block_size": "vllm_args.block_size",
        "max_connections": "no such key: 512 requests are sent at once to each server",
        "log_file": "no such key: the log of a server that crashed stays in the temporary folder",
        "load_timeout_s": "no such key: a refresh of weights may take 900 s",
    }

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Capabilities of the opened engine; it loads adapters or full weights, never both."""
        capabilities: set[Capability] = {"tokens", "logps", "seeds", "streams", "prefix_cache"}
        capabilities.add("load_in_flight")
        if self.max_lora_rank:
            capabilities.update(("lora", "adapters"))
        else:
            capabilities.add("full_weights")
        if self.sleep:
            capabilities.add("sleeps")
        return frozenset(capabilities)

    def problems(self, training: TrainingSetup) -> list[str]:
        """List why it cannot serve a trainer."""
        served_rank = self.max_lora_rank
        trained_rank = training.lora_rank
        if trained_rank is None and served_rank is not None:
            return [
                f"max_lora_rank: found {served_rank}, but model.lora is null and every parameter "
                "is trained; expected null"
            ]
        if trained_rank is not None and (served_rank is None or served_rank < trained_rank):
            return [
                f"max_lora_rank: found {served_rank or 'null'}; expected at least model.lora.rank, "
                f"which is {trained_rank}"
            ]
        return []

    def footprint(self, weight_bytes: int, gpu_bytes: float) -> Footprint:
        """Compute its share of GPUs that also train."""
        reserved_bytes = self.gpu_memory_utilization * gpu_bytes
        split = self._size("tensor_parallel_size") * self._size("pipeline_parallel_size")
        return Footprint(
            gpus=self.data_parallel_size * split,
            shares=True,
            reserved=reserved_bytes,
            replicas=self.data_parallel_size,
            split=split,
            room=reserved_bytes,
        )

    def for_checkpoint(self, dtype: str) -> Self:
        """Fill in the trainer's dtype for `auto`."""
        if self.dtype != "auto":
            return self
        return self.model_copy(update={"dtype": dtype})

    @property
    def data_parallel_size(self) -> int:
        """Engines of one server, each with the whole model."""
        return self._size("data_parallel_size")

    def _size(self, name: str) -> int:
        size = self.vllm_args.get(name, 1)
        return size if isinstance(size, int) and size > 0 else 1

    @field_validator("vllm_args")
    @classmethod
    def _are_for_speed_and_memory(cls, arguments: dict[str, object]) -> dict[str, object]:
        # Recipes are data: other arguments or values could name code for vLLM to run.
        for name, value in arguments.items():
            if name not in ALLOWED:
                raise ValueError(
                    f"{name}: not for speed or memory alone; expected a setting of the engine, or "
                    f"one of {', '.join(sorted(ALLOWED))}{did_you_mean(name, ALLOWED)}"
                )
            for item in value if isinstance(value, list) else [value]:
                is_word = isinstance(item, str) and _WORD.fullmatch(item)
                if not is_word and not isinstance(item, bool | int | float | None):
                    raise ValueError(
                        f"{name}: found {item!r}; expected a number, true or false, or a word of "
                        "a-z"
                    )
        return arguments


def serving_arguments(
    settings: VllmSettings, dtype: str, window: int | None, transfer: str = BACKEND
) -> dict[str, object]:
    """List the arguments that this package sets, by the names of vLLM's `EngineArgs`.

    Args:
        settings: the engine's.
        dtype: number type to serve in.
        window: most tokens of prompt and reply.
        transfer: backend that receives new weights.
    """
    kv_cache_bytes = None if settings.kv_cache_mib is None else settings.kv_cache_mib << 20
    arguments: dict[str, object] = {
        "dtype": dtype,
        "max_model_len": window,
        "max_num_seqs": settings.max_batch,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "kv_cache_memory_bytes": kv_cache_bytes,
        "block_size": settings.vllm_args.get("block_size"),
        "enforce_eager": settings.enforce_eager,
        "enable_prefix_caching": True,
        # After the temperature, as the trainer computes them.
        "logprobs_mode": "processed_logprobs",
        # A checkpoint's own sampling defaults would change requests in silence.
        "generation_config": "vllm",
        "seed": 0,
        "weight_transfer_config": {"backend": transfer},
        "worker_extension_cls": EXTENSION,
    }
    if settings.sleep:
        arguments["enable_sleep_mode"] = True
    if settings.max_lora_rank is not None:
        arguments["enable_lora"] = True
        arguments["max_lora_rank"] = min(r for r in LORA_RANKS if r >= settings.max_lora_rank)
        arguments["max_loras"] = 2
    return {name: value for name, value in arguments.items() if value is not None}


def on_cpu(arguments: Mapping[str, object]) -> dict[str, object]:
    """Adapt the arguments of `serving_arguments` to a CPU."""
    cpu_arguments = dict(arguments)
    cpu_arguments.pop("gpu_memory_utilization", None)
    cpu_arguments.pop("enable_sleep_mode", None)  # Sleep frees no memory of a CPU.
    cpu_arguments.setdefault("kv_cache_memory_bytes", 256 << 20)
    cpu_arguments.setdefault("block_size", 32)
    # On a CPU vLLM 0.32 dies of a seeded request with a prompt that is split over steps.
    cpu_arguments["enable_chunked_prefill"] = False
    cpu_arguments["enforce_eager"] = True  # Compiling for a CPU needs a C++ compiler.
    return cpu_arguments


class VllmEngine(VllmSettings):
    """vLLM inside this process, stepped while replies are awaited; weights pass in memory."""

    one_in_process: ClassVar[bool] = True

    type: Literal["vllm"] = "vllm"

    def problems(self, training: TrainingSetup) -> list[str]:
        """List why it cannot serve a trainer."""
        problems = super().problems(training)
        if training.processes > 1:
            problems.append(
                f"type: found vllm in {training.processes} processes, whose group vLLM would take "
                "for its own; expected vllm_server"
            )
        return problems

    @model_validator(mode="after")
    def _keeps_this_process_as_it_is(self) -> "VllmEngine":
        if self.batch_invariant:
            raise ValueError(
                "batch_invariant: found true, by which vLLM would replace torch's operations under "
                "the trainer, too; expected type: vllm_server"
            )
        if self._size("data_parallel_size") > 1:
            raise ValueError(
                "vllm_args.data_parallel_size: expected 1 in one process, or type: vllm_server"
            )
        return self

    def open(
        self,
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerFast",
        template_kwargs: Mapping[str, object] = {},
    ) -> "VllmSampler":
        """Open the engine; a model in memory is written to a temporary directory."""
        with needs_extra("the vllm engine", "vllm"):
            from debate_rollout.engines.vllm.sampler import VllmSampler
        return VllmSampler(self, model, tokenizer, template_kwargs)


def _server_url(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"found {url!r}; expected http://HOST:PORT or https://…")
    if "@" in url:
        raise ValueError("found a user name in it; expected the key in `api_key_env` only")
    return url.rstrip("/").removesuffix("/v1")


def _server_address(url: str) -> tuple[str, int]:
    """Compute host and port of a server, equal for all names of this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    # A server that is named twice would get each request for new weights twice.
    if host in ("127.0.0.1", "::1", "0.0.0.0"):
        host = "localhost"
    return host, parts.port or (443 if parts.scheme == "https" else 80)


ServerUrl = Annotated[str, AfterValidator(_server_url)]


class VllmServerEngine(VllmSettings):
    """An OpenAI-compatible vLLM server, with token ids in and out."""

    libraries: ClassVar[tuple[str, ...]] = ("vllm", "httpx")

    type: Literal["vllm_server"] = "vllm_server"
    url: ServerUrl | None = None
    """A running server, such as `http://10.0.0.7:8000`; None starts one for this run."""
    urls: tuple[ServerUrl, ...] = ()
    """Running servers that share the debates; each debate stays with one. In place of `url`."""
    servers: int = Field(1, ge=1)
    """Servers that are started for this run, each on its share of `devices`."""
    min_servers: int = Field(1, ge=1)
    """While fewer serve, requests wait, at most `reconnect_timeout_s`; then the run ends."""
    load_urls: tuple[ServerUrl, ...] = ()
    """The servers behind `url` where that is a router; each is loaded past it."""
    port: int | None = Field(None, ge=1, le=65535)
    """Port on 127.0.0.1 of the server that is started; None takes a free one."""
    devices: str | None = None
    """Devices of the server that is started, as in CUDA_VISIBLE_DEVICES; None: those that train."""
    transfer: Literal["file", "nccl", "ipc"] = "file"
    """How full weights reach the server; adapters always go through files. `nccl`: from GPU to GPU;
    `ipc`: a server on the GPU of rank 0 reads them there."""
    shared_folder: str | None = None
    """Where those files are written; the server must see it under the same path."""
    start_timeout_s: float = Field(900.0, gt=0)
    """Seconds within which the server must answer after its start."""
    reconnect_timeout_s: float = Field(300.0, ge=0)
    """Longest that a request is tried again while no server answers."""
    api_key_env: str = "VLLM_API_KEY"
    """Environment variable of a running server's key; another name must fit the host."""
    api_key_host: str | None = None
    """The host that gets the key all the same; it must be that of `url`."""

    @property
    def running(self) -> tuple[str, ...]:
        """Addresses of running servers, by default of `DEBATE_VLLM_URLS` in the environment."""
        if self.urls:
            return self.urls
        if self.url is not None:
            return (self.url,)
        return tuple(os.environ.get("DEBATE_VLLM_URLS", "").split())

    @property
    def count(self) -> int:
        """Servers that share the debates."""
        return len(self.running) or self.servers

    def missing_library(self) -> str | None:
        """Name a missing library; a running server needs no vLLM here."""
        return None if self.running else super().missing_library()

    def sent_key(self) -> str | None:
        """Say to which servers the key of an environment variable is sent."""
        if not self.running:
            return None
        receivers = ", ".join((*self.running, *self.load_urls))
        return f"the value of {self.api_key_env}, if set, is sent to {receivers}"

    def footprint(self, weight_bytes: int, gpu_bytes: float) -> Footprint:
        """Compute its share of the GPUs; without `devices` it shares the training GPUs."""
        server_footprint = super().footprint(weight_bytes, gpu_bytes)
        if not self.running and self.devices is None:
            return server_footprint
        share = _RUNNING_SHARE if self.running else self.gpu_memory_utilization
        return replace(
            server_footprint,
            gpus=self.count * server_footprint.gpus,
            replicas=self.count * server_footprint.replicas,
            shares=False,
            reserved=0.0,
            room=share * gpu_bytes,
        )

    def server(self, model: str, dtype: str) -> list[str] | None:
        """Write the command of a server for another machine, without its port."""
        from debate_rollout.engines.vllm.server_process import server_command

        if self.running:
            return None
        served_dtype = dtype if self.dtype == "auto" else self.dtype
        our_arguments = serving_arguments(self, served_dtype, self.context_window)
        return server_command(model, {**self.vllm_args, **our_arguments}, "0.0.0.0")

    def for_checkpoint(self, dtype: str) -> Self:
        """Leave the dtype to a running server: its start has settled it."""
        return self if self.running else super().for_checkpoint(dtype)

    def open(
        self,
        model: "PreTrainedModel | str",
        tokenizer: "PreTrainedTokenizerFast",
        template_kwargs: Mapping[str, object] = {},
    ) -> "VllmServer":
        """Start the server, or connect to a running one.

        Raises:
            EngineConfigError: When the server does not run as training needs it.
            EndpointError: When it does not start or answer.
        """
        with needs_extra("the vllm_server engine", "vllm"):
            from debate_rollout.engines.vllm.server import VllmServer
        return VllmServer(self, model, tokenizer, template_kwargs)

    @model_validator(mode="after")
    def _leaves_a_running_server_alone(self) -> Self:
        start_settings = sorted({*ABOUT_STARTING, "servers"} & self.model_fields_set)
        if (self.url or self.urls) and start_settings:
            raise ValueError(
                f"{start_settings[0]}: set together with url or urls, whose servers have settled "
                "it; expected one"
            )
        if self.api_key_env != "VLLM_API_KEY":
            for url in (*self.running, *self.load_urls):
                refuse_other_key(self.api_key_env, url, self.api_key_host)
        if self.load_urls and (self.url is None or self.transfer != "file"):
            raise ValueError(
                "load_urls: expected url, the router in front of them, and transfer: file"
            )
        return self

    @model_validator(mode="after")
    def _servers_are_several(self) -> Self:
        if self.url is not None and self.urls:
            raise ValueError("urls: set together with url; expected one")
        urls_by_server: dict[tuple[str, int], str] = {}
        for url in self.urls:
            address = _server_address(url)
            if address in urls_by_server:
                raise ValueError(
                    f"urls: found {urls_by_server[address]} and {url}, which are one server; "
                    "expected each once"
                )
            urls_by_server[address] = url
        # A job's environment may name more servers than the one that would be started.
        if self.min_servers > self.count and (self.running or self.servers > 1):
            raise ValueError(f"min_servers: found {self.min_servers} of {self.count}")
        if self.count > 1 and self.transfer != "file":
            raise ValueError(f"transfer: found {self.transfer} with several servers; expected file")
        has_gpu_apart = bool(self.running) or self.devices is not None
        if has_gpu_apart and (self.sleep or self.transfer == "ipc"):
            setting = "sleep: found true" if self.sleep else "transfer: found ipc"
            raise ValueError(
                f"{setting} with url, urls or devices; expected a server on the GPU that trains"
            )
        if self.transfer == "nccl" and self.sleep:
            raise ValueError("transfer: found nccl, which joins two GPUs, with sleep; expected ipc")
        if self.count > 1 and self.port is not None:
            raise ValueError("port: found one for several servers; expected none")
        if self.devices is not None:
            num_devices = len(self.devices.split(","))
            gpus_per_server = super().footprint(0, 0.0).gpus
            too_few = num_devices < self.servers * gpus_per_server
            if too_few or num_devices % self.servers > 0:
                raise ValueError(
                    f"devices: found {self.devices} for {self.servers} servers, each of "
                    f"{gpus_per_server} GPUs"
                )
        return self
