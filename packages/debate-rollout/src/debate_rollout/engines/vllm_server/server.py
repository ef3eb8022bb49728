"""The running vllm_server engine."""

import asyncio
import os
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from debate_protocol.types import Reply
from debate_rollout.engine import (
    Capability,
    Finished,
    Request,
    Weights,
    generate_by_streaming,
    of_adapter,
)
from debate_rollout.engines.background import Background
from debate_rollout.engines.vllm.model import ServedModel, finish_of
from debate_rollout.engines.vllm.settings import BACKEND, serving_arguments
from debate_rollout.engines.vllm_server.calls import is_healthy
from debate_rollout.engines.vllm_server.control import ServerControl
from debate_rollout.engines.vllm_server.process import ServerProcess, free_port, server_command
from debate_rollout.engines.vllm_server.wire import PATHS, Answer, Wire, are_raw, body, read
from debate_rollout.errors import EndpointError, EngineConfigError, missing_extra

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from debate_rollout.engines.vllm_server.nccl import NcclTransfer
    from debate_rollout.engines.vllm_server.settings import VllmServerSettings


class VllmServer:
    """Samples from a vLLM server over HTTP."""

    def __init__(
        self,
        config: "VllmServerSettings",
        model: "PreTrainedModel | str",
        tokenizer: "PreTrainedTokenizerFast",
        template_kwargs: Mapping[str, object],
    ) -> None:
        self._config = config
        self._served = ServedModel(config, model, tokenizer, template_kwargs, config.shared_folder)
        self.renderer = self._served.renderer
        self._process: ServerProcess | None = None
        self._client: httpx.AsyncClient | None = None
        self._nccl: NcclTransfer | None = None
        self._slots = asyncio.Semaphore(config.max_connections)
        self._turnstile = asyncio.Lock()
        self._sent: dict[object, str] = {}
        self._adapters: dict[str, str] = {}
        self._background = Background("vllm_server")
        try:
            if config.url is None:
                self._connect(*self._start(model))
            else:
                self._connect(config.url, os.environ.get(config.api_key_env))
        except BaseException:
            self.close()
            raise

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply a request, in order; see `VllmSampler.generate`."""
        return generate_by_streaming(self, requests)

    def submit(self, request: Request) -> int:
        """Take a request and return its ticket."""
        return self._background.submit(self._reply(request))

    def collect(self, timeout_s: float) -> list[Finished]:
        """Wait until a request has ended or the time is over."""
        return self._background.collect(timeout_s)

    def cancel(self, ticket: int) -> None:
        """Give a request up; the server stops working on it when the connection closes."""
        self._background.cancel(ticket)

    def load(self, weights: Weights) -> None:
        """Serve these weights and drop every prefix that old ones made; see `VllmSampler.load`.

        A server that does not report weight versions (no `--enable-scale-out`) first ends its open
        requests.

        Raises:
            WeightsError: When names or shapes do not fit; nothing is changed then.
            EndpointError: When the server does not answer, or refreshes no weights.
        """
        self._control.check_alive()
        refresh = self._load_adapter if weights.kind == "lora" else self._load_full
        what = f"refreshing the weights of {self._url}"
        self._background.run(refresh(weights), self._config.load_timeout_s, what)

    def close(self) -> None:
        """End a server that was started here, and remove the files; a crash leaves its log."""

        async def last() -> None:
            if self._client is not None:
                await self._client.aclose()

        process = self._process
        ended_itself = process is not None and process.code is not None
        try:
            self._background.close(last)
        finally:
            if process is not None:
                process.close()
                if self._config.log_file is None and not ended_itself:
                    process.log.unlink(missing_ok=True)
            self._served.close()

    def _start(self, model: "PreTrainedModel | str") -> tuple[str, str]:
        try:
            from debate_rollout.engines.vllm.start import engine_arguments, environment_of
        except ImportError as error:
            raise missing_extra("starting a vLLM server", "vllm", error) from error
        config, key = self._config, secrets.token_hex(16)
        transfer = BACKEND if config.transfer == "file" else "nccl"
        ours = serving_arguments(config, self._served.dtype, self._served.window, transfer)
        arguments = engine_arguments(ours, config.vllm_args)
        environment = {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            "VLLM_API_KEY": key,
            **environment_of(config),
        }
        if config.devices is not None:
            environment["CUDA_VISIBLE_DEVICES"] = config.devices
        port = config.port or free_port()
        url = f"http://127.0.0.1:{port}"
        named = config.log_file or f"{tempfile.gettempdir()}/vllm-server-{os.getpid()}-{port}.log"
        command = server_command(self._served.on_disk(model), port, arguments)
        self._process = ServerProcess(command, environment, Path(named))

        self._process.wait(lambda: is_healthy(url), config.start_timeout_s)
        return url, key

    def _connect(self, url: str, key: str | None) -> None:
        """Learn what the server serves, and check that it samples as training needs it."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        headers["Accept-Encoding"] = "identity"
        # vLLM drops idle connections after 5 s: ours end first, or a request meets a closing one.
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=64, keepalive_expiry=2.0
        )
        self._url = url
        self._client = httpx.AsyncClient(
            base_url=url, headers=headers, limits=limits, timeout=None, trust_env=False
        )
        self._control = ServerControl(url, self._client, self._process)
        facts = self._background.run(self._control.describe(), 60.0, f"looking at {url}")
        self._model, self._version = facts.model, 0
        self._wire: Wire = "tokens" if facts.reports_versions else "completions"
        self.context_window = min(self._served.window or facts.window, facts.window)
        self._served.window = self.context_window
        known: set[Capability] = set(self._config.capabilities)
        if facts.version is None:
            known -= {"full_weights", "load_in_flight"}
        elif facts.version != "default":
            self._served.versions[facts.version] = 0
        if not facts.reports_versions:
            known -= {"load_in_flight"}
        self.capabilities = frozenset(known)
        if self._config.transfer == "nccl" and "full_weights" in known:
            from debate_rollout.engines.vllm_server.nccl import NcclTransfer

            self._nccl = NcclTransfer(url, headers, self._config.load_timeout_s)
        self._background.run(self._check_log_probabilities(), 120.0, f"sampling from {url}")

    async def _check_log_probabilities(self) -> None:
        prompt = [self._served.end_ids[0] if self._served.end_ids else 0]
        sampling = {"max_tokens": 1, "seed": 0, "logprobs": 8}
        answers = [
            await self._ask(self._model, prompt, sampling | {"temperature": temperature})
            for temperature in (1.0, 2.0)
        ]
        if are_raw(*answers):
            raise EngineConfigError(
                f"{self._url}: its log-probabilities are those before the temperature; expected a "
                "server that was started with --logprobs-mode processed_logprobs"
            )

    async def _reply(self, request: Request) -> Reply:
        self._control.check_alive()
        if self._served.room(request) < 1:
            return self._served.overflow(request, self._version)
        async with self._slots:
            async with self._turnstile:
                pass  # a refresh holds it
            version, me = self._version, object()
            model = of_adapter(self._adapters, request.ask) or self._model
            self._sent[me] = model
            try:
                answer = await self._ask(model, request.prompt_ids, self._served.sampling(request))
            finally:
                del self._sent[me]
        return self._reading(request, answer, version)

    def _reading(self, request: Request, answer: Answer, version: int) -> Reply:
        one_version = not answer.labels or "lora" in self.capabilities
        spans = (
            [(version, 0, len(answer.ids))] if one_version else self._served.spans(answer.labels)
        )
        finish = finish_of(answer.finish, answer.stop)
        return self._served.reply(request, answer.ids, answer.logps, finish, spans)

    async def _ask(self, model: str, prompt: Sequence[int], sampling: dict[str, object]) -> Answer:
        sent = body(self._wire, model, prompt, sampling)
        return read(self._wire, await self._control.post(PATHS[self._wire], sent))

    async def _load_full(self, weights: Weights) -> None:
        tensors = self._served.full_weights(weights)
        if "full_weights" not in self.capabilities:
            raise EndpointError(
                f"{self._url}: refreshes no weights (no /weight_info); expected a server that was "
                "started as the README of debate-rollout says, or one that the run starts itself"
            )
        async with self._turnstile:
            while self._sent and "load_in_flight" not in self.capabilities:
                await asyncio.sleep(0.01)
            async with self._control.paused():
                if self._nccl is not None:
                    await asyncio.to_thread(self._nccl.send, tensors, str(weights.version))
                else:
                    await self._control.load_file(self._served.folder, tensors, weights.version)
                self._served.versions[str(weights.version)] = weights.version
                self._version = weights.version

    async def _load_adapter(self, weights: Weights) -> None:
        adapters = {}
        for name, (number, folder) in self._served.write_adapters(weights).items():
            adapters[name] = f"adapter-{secrets.token_hex(4)}-{number}"
            await self._control.load_adapter(adapters[name], folder)
        self._adapters, self._version = adapters, weights.version
        await self._control.drop_adapters({*adapters.values(), *self._sent.values()})
