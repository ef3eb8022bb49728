"""The running vllm_server engine."""

import asyncio
import logging
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import torch

from debate_protocol.types import Reply
from debate_rollout.engine import (
    Capability,
    EndpointError,
    EngineConfigError,
    Request,
    RetriesExhaustedError,
    Weights,
    needs_extra,
    of_adapter,
    overflow,
)
from debate_rollout.engines.endpoints import HttpEngine
from debate_rollout.engines.vllm import BACKEND, BATCH_INVARIANT, serving_arguments
from debate_rollout.engines.vllm.control import (
    ServerControl,
    ServerProcess,
    UnreachableError,
    are_raw,
    free_port,
    is_healthy,
    server_command,
)
from debate_rollout.engines.vllm.model import ServedModel, finish_of, write_weights

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from debate_rollout.engines.vllm import VllmServerEngine
    from debate_rollout.engines.vllm.nccl import NcclTransfer


_LOG = logging.getLogger(__name__)


class VllmServer(HttpEngine):
    """Samples from a vLLM server over HTTP, as `VllmSampler` does in this process."""

    def __init__(
        self,
        config: "VllmServerEngine",
        model: "PreTrainedModel | str",
        tokenizer: "PreTrainedTokenizerFast",
        template_kwargs: Mapping[str, object],
    ) -> None:
        self._config = config
        self._served = ServedModel(config, model, tokenizer, template_kwargs, config.shared_folder)
        self.renderer = self._served.renderer
        self._process: ServerProcess | None = None
        self._clients: list[httpx.AsyncClient] = []
        self._nccl: NcclTransfer | None = None
        self._slots = asyncio.Semaphore(config.max_connections)
        self._turnstile = asyncio.Lock()
        self._sent: dict[object, str] = {}
        self._adapters: dict[str, str] = {}
        self._folders: dict[str, Path] = {}
        super().__init__("vllm_server")
        try:
            if config.url is None:
                self._connect(*self._start(model))
            else:
                self._connect(config.url, os.environ.get(config.api_key_env))
        except BaseException:
            self.close()
            raise

    def load(self, weights: Weights) -> None:
        """Serve these weights and drop every prefix that old ones made; see `VllmSampler.load`.

        Raises:
            WeightsError: When names or shapes do not fit; nothing is changed then.
            EndpointError: When the server does not answer, or refreshes no weights.
        """
        self._check_alive()
        refresh = self._load_adapter if weights.kind == "lora" else self._load_full
        what = f"refreshing the weights of {self._url}"
        self.run(refresh(weights), self._config.load_timeout_s, what)

    def close(self) -> None:
        """End a server that was started here, and remove the files; a crash leaves its log."""
        process = self._process
        ended_itself = process is not None and process.code is not None
        try:
            super().close()
        finally:
            if process is not None:
                process.close()
                if self._config.log_file is None and not ended_itself:
                    process.log.unlink(missing_ok=True)
            self._served.close()

    async def _disconnect(self) -> None:
        for client in self._clients:
            await client.aclose()

    def _start(self, model: "PreTrainedModel | str") -> tuple[str, str]:
        with needs_extra("starting a vLLM server", "vllm"):
            from debate_rollout.engines.vllm.sampler import engine_arguments
        config, key = self._config, secrets.token_hex(16)
        transfer = BACKEND if config.transfer == "file" else "nccl"
        ours = serving_arguments(config, self._served.dtype, self._served.window, transfer)
        arguments = engine_arguments(ours, config.vllm_args)
        environment = {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            "VLLM_API_KEY": key,
        }
        if config.batch_invariant and torch.cuda.is_available():
            environment[BATCH_INVARIANT] = "1"
        if config.devices is not None:
            environment["CUDA_VISIBLE_DEVICES"] = config.devices
        port = config.port or free_port()
        url = f"http://127.0.0.1:{port}"
        named = config.log_file or f"{tempfile.gettempdir()}/vllm-server-{os.getpid()}-{port}.log"
        command = server_command(self._served.on_disk(model), port, arguments)
        self._process = ServerProcess(command, environment, Path(named))

        self._process.wait(lambda: is_healthy(url), config.start_timeout_s)
        return url, key

    def _control_of(self, url: str, headers: Mapping[str, str]) -> ServerControl:
        # vLLM drops idle connections after 5 s: ours end first, or a request meets a closing one.
        limits = httpx.Limits(max_connections=None, keepalive_expiry=2.0)
        timeout = httpx.Timeout(None, connect=10.0)
        client = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=timeout, limits=limits, trust_env=False
        )
        self._clients.append(client)
        return ServerControl(url, client, self._process)

    def _connect(self, url: str, key: str | None) -> None:
        """Learn what the server serves, and check that it samples as training needs it."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        headers["Accept-Encoding"] = "identity"
        self._url = url
        self._control = self._control_of(url, headers)
        self._controls = [self._control_of(one, headers) for one in self._config.load_urls]
        self._controls = self._controls or [self._control]

        facts = [
            self.run(control.describe(), 60.0, f"looking at {control.url}")
            for control in self._controls
        ]
        self._model, window, label = facts[0]
        self._version = 0
        self.context_window = min(self._served.window or window, window)
        self._served.window = self.context_window
        known: set[Capability] = set(self._config.capabilities)
        if label is None or any(fact[2] is None for fact in facts):
            known -= {"full_weights", "load_in_flight"}
        else:
            self._served.versions = {label: 0}
        self.capabilities = frozenset(known)
        if self._config.transfer == "nccl" and "full_weights" in known:
            from debate_rollout.engines.vllm.nccl import NcclTransfer

            self._nccl = NcclTransfer(url, headers, self._config.load_timeout_s)
        self.run(self._check_log_probabilities(), 120.0, f"sampling from {url}")

    async def _check_log_probabilities(self) -> None:
        prompt = [self._served.end_ids[0] if self._served.end_ids else 0]
        sampling = {"max_tokens": 1, "seed": 0, "logprobs": 8}
        answers = [
            await self._control.ask(self._model, prompt, sampling | {"temperature": temperature})
            for temperature in (1.0, 2.0)
        ]
        if are_raw(*answers):
            raise EngineConfigError(
                f"{self._url}: its log-probabilities are those before the temperature; expected a "
                "server that was started with --logprobs-mode processed_logprobs"
            )

    def _check_alive(self) -> None:
        for control in (self._control, *self._controls):
            control.check_alive()

    async def _reply(self, request: Request) -> Reply:
        self._check_alive()
        if self._served.room(request) < 1:
            return overflow(request, self._version)
        patience_s = self._config.reconnect_timeout_s
        until = time.monotonic() + patience_s
        async with self._slots:
            while True:
                try:
                    return await self._one_try(request)
                except UnreachableError as error:
                    if time.monotonic() >= until:
                        waited = f"{error}; waited {patience_s:g} s for it (reconnect_timeout_s)"
                        raise RetriesExhaustedError(waited) from error
                    problem = error
                _LOG.warning("%s; trying again for up to %g s", problem, patience_s)
                await asyncio.sleep(min(1.0, patience_s))

    async def _one_try(self, request: Request) -> Reply:
        # A refresh holds the turnstile: no request may begin by weights that are half loaded.
        async with self._turnstile:
            pass
        self._check_alive()
        began: int | str = self._served.label
        if "lora" in self.capabilities:
            began = self._version
        model, me = of_adapter(self._adapters, request.ask) or self._model, object()
        self._sent[me] = model
        try:
            sampling = self._served.sampling(request)
            answer = await self._control.ask(model, request.prompt_ids, sampling)
        finally:
            del self._sent[me]
        spans = self._served.spans(answer.labels, began, len(answer.ids))
        finish = finish_of(answer.finish, answer.stop)
        return self._served.reply(request, answer.ids, answer.logps, finish, spans)

    async def _load_full(self, weights: Weights) -> None:
        tensors = self._served.full_weights(weights)
        if "full_weights" not in self.capabilities:
            raise EndpointError(
                f"{self._url}: refreshes no weights (no /weight_info); expected a server that was "
                "started as the README of debate-rollout says, or one that the run starts itself"
            )
        label = self._served.new_label(weights.version)
        async with self._turnstile:
            # Before the load: open requests may end by the new weights while it goes on elsewhere.
            self._served.serve(label, weights.version)
            try:
                await self._load_tensors(tensors, label)
            except BaseException:
                del self._served.versions[label]
                raise
            self._version = weights.version

    async def _load_tensors(self, tensors: "Mapping[str, Tensor]", label: str) -> None:
        if self._nccl is not None:
            async with self._control.paused():
                await asyncio.to_thread(self._nccl.send, tensors, label)
            return
        file = await asyncio.to_thread(write_weights, self._served.folder, label, tensors)
        try:
            await self._on_all(lambda control: control.load_file(file, label))
        finally:
            file.unlink()

    async def _on_all(self, load: Callable[[ServerControl], Awaitable[None]]) -> None:
        loads = (load(control) for control in self._controls)
        for outcome in await asyncio.gather(*loads, return_exceptions=True):
            if outcome is not None:
                raise outcome

    async def _load_adapter(self, weights: Weights) -> None:
        adapters: dict[str, str] = {}
        folders: dict[str, Path] = {}
        for name, (number, folder) in self._served.write_adapters(weights).items():
            adapters[name] = f"adapter-{secrets.token_hex(4)}-{number}"
            folders[adapters[name]] = folder
        async with self._turnstile:
            await self._on_all(lambda control: control.load_adapters(folders))
            self._adapters, self._version = adapters, weights.version
            self._folders |= folders
            unused = self._folders.keys() - {*folders, *self._sent.values()}
            for control in self._controls:
                await control.drop_adapters(unused)
            for name in unused:
                shutil.rmtree(self._folders.pop(name), ignore_errors=True)
