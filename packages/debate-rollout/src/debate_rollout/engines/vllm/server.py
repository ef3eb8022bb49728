"""The running vllm_server engine."""

import asyncio
import logging
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import httpx
import torch

from debate_protocol.types import Reply
from debate_rollout.engine import (
    Capability,
    EndpointError,
    EngineConfigError,
    Request,
    RetriesExhaustedError,
    RolloutError,
    Weights,
    WeightsError,
    needs_extra,
    of_adapter,
    overflow,
)
from debate_rollout.engines.endpoints import HttpEngine
from debate_rollout.engines.vllm.control import (
    GATEWAY,
    ServerControl,
    UnreachableError,
    are_raw,
    is_healthy,
    wait_until,
)
from debate_rollout.engines.vllm.model import (
    UNLOADED,
    OtherWeightsError,
    ServedModel,
    finish_of,
    free_cache,
    write_weights,
)
from debate_rollout.engines.vllm.pool import PASSING, Pool, PooledServer
from debate_rollout.engines.vllm.server_process import ServerProcess, free_port, server_command
from debate_rollout.engines.vllm.settings import BACKEND, BATCH_INVARIANT, serving_arguments
from debate_rollout.pacing import CacheRoom

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from debate_rollout.engines.vllm.device_transfer import DeviceTransfer
    from debate_rollout.engines.vllm.settings import VllmServerEngine


_LOG = logging.getLogger(__name__)
# Longest that one refresh of weights may take.
LOAD_TIMEOUT_S = 900.0
# Most requests that are sent at once, for each server; more wait here.
MAX_CONNECTIONS = 512
_RECOVERY_INTERVAL_S = 0.5
"""Between two checks of a server that is down."""
_KEEP_ALIVE = {
    "SO_KEEPALIVE": 1,
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 25_000,
}
"""Options of sockets. A machine without power or network closes no connection: the kernel's probes
make requests to it fail after 25 s instead of never."""


class VllmServer(HttpEngine):
    """Samples from vLLM servers over HTTP, as `VllmSampler` does in this process.

    If one of several servers fails, the others answer its requests. It serves again when it is
    healthy and has the current weights. A server that the run started is started again if its
    process has ended.
    """

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
        self._pool = Pool([], config.min_servers)
        self._behind_router: list[PooledServer] = []
        self._device_transfer: DeviceTransfer | None = None
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS * config.count)
        # New requests pass through the turnstile, which a load locks.
        self._turnstile = asyncio.Lock()
        # Loads and recoveries exclude each other: a server comes back with the last weights.
        self._load_lock = asyncio.Lock()
        self._recoveries: set[asyncio.Task[None]] = set()
        self._models_in_use: dict[object, str] = {}
        self._adapters: dict[str, str] = {}
        self._adapter_folders: dict[str, Path] = {}
        self._weights_file: Path | None = None
        self._is_asleep = False
        super().__init__("vllm_server")
        try:
            self._connect(model)
        except BaseException:
            self.close()
            raise

    def load(self, weights: Weights) -> None:
        """Serve these weights and drop every prefix of old weights; see `VllmSampler.load`.

        Raises:
            WeightsError: When names or shapes do not fit; nothing is changed then.
            EndpointError: When no server answers, or it refreshes no weights.
        """
        self._check_alive()
        limit_s = LOAD_TIMEOUT_S
        if self._is_asleep:
            free_cache()
            self.run(self._on_all(ServerControl.wake), limit_s, "waking vLLM")
            self._is_asleep = False
        refresh = self._load_adapter if weights.kind == "lora" else self._load_full
        self.run(refresh(weights), limit_s, f"refreshing the weights of {self._urls}")

    def sleep(self) -> None:
        """Free the memory of the servers' devices until the next `load`."""
        self._check_alive()
        limit_s = LOAD_TIMEOUT_S
        self.run(self._on_all(ServerControl.sleep), limit_s, "vLLM's sleep")
        self._is_asleep = True

    def close(self) -> None:
        """End servers that were started here, and remove the files; a crash leaves its log."""
        processes = [server.process for server in self._pool.members if server.process is not None]
        crashed = [process for process in processes if process.code is not None]
        try:
            super().close()
        finally:
            for process in processes:
                process.close()
                if process not in crashed:
                    process.log.unlink(missing_ok=True)
            self._served.close()

    async def _disconnect(self) -> None:
        for server in (*self._pool.members, *self._behind_router):
            await server.client.aclose()

    @property
    def _urls(self) -> str:
        return ", ".join(server.control.url for server in self._pool.members)

    @property
    def _refreshed_servers(self) -> list[PooledServer]:
        """The servers that receive weights: a router passes prompts on, but no weights."""
        return self._behind_router or self._pool.up

    def _connect(self, model: "PreTrainedModel | str") -> None:
        """Start or find the servers, and check that they sample as training needs it."""
        config = self._config
        servers: list[PooledServer] = []
        # The pool shares the list: if a later server fails, `close` ends the earlier ones.
        self._pool = Pool(servers, config.min_servers)
        if config.running:
            key = os.environ.get(config.api_key_env)
            for url in config.running:
                servers.append(self._pooled_server(url, key))
                if len(config.running) > 1:  # Several servers do not start at the same time.
                    wait_until(partial(is_healthy, url), config.start_timeout_s, url)
            self._behind_router = [self._pooled_server(url, key) for url in config.load_urls]
        else:
            self._start_servers(model, servers)

        descriptions = [
            self.run(server.control.describe(), 60.0, f"looking at {server.control.url}")
            for server in self._refreshed_servers
        ]
        labels = {description.label for description in descriptions}
        self._model = descriptions[0].models[0]
        self._version = 0
        server_window = descriptions[0].context_window
        self.context_window = min(self._served.window or server_window, server_window)
        self._served.window = self.context_window
        capabilities = set(config.capabilities)
        if None in labels:
            capabilities -= {"full_weights", "load_in_flight"}
        self.capabilities = frozenset[Capability](capabilities)

        if config.transfer != "file" and "full_weights" in capabilities:
            from debate_rollout.engines.vllm.device_transfer import DeviceTransfer

            self._device_transfer = DeviceTransfer(
                config.transfer,
                servers[0].control.url,
                dict(servers[0].client.headers),
                LOAD_TIMEOUT_S,
            )

        cache_sizes = [
            self.run(server.control.cache_tokens(), 60.0, f"looking at {server.control.url}")
            for server in servers
        ]
        self.room = CacheRoom(sum(cache_sizes)) if all(cache_sizes) else None
        for server in servers:
            check = self._check_log_probabilities(server.control)
            self.run(check, 120.0, f"sampling from {server.control.url}")
        if labels - {None, UNLOADED}:
            self._load_initial_weights(model)

    def _start_servers(self, model: "PreTrainedModel | str", servers: list[PooledServer]) -> None:
        """Start all servers at once, add them to the list and wait until they are ready."""
        with needs_extra("starting a vLLM server", "vllm"):
            import vllm  # noqa: F401
        key = secrets.token_hex(16)
        path = self._served.on_disk(model)
        for number in range(self._config.servers):
            url, process = self._start(path, key, number)
            servers.append(self._pooled_server(url, key, process))
        for server in servers:
            process = cast(ServerProcess, server.process)
            process.wait(partial(is_healthy, server.control.url), self._config.start_timeout_s)

    def _start(self, model: str, key: str, number: int) -> tuple[str, ServerProcess]:
        """Start a server; return the URL and the process, not ready yet."""
        from debate_rollout.engines.vllm.sampler import engine_arguments

        config = self._config
        transfer = BACKEND if config.transfer == "file" else config.transfer
        our_arguments = serving_arguments(config, self._served.dtype, self._served.window, transfer)
        arguments = engine_arguments(our_arguments, config.vllm_args)
        environment = {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            "VLLM_API_KEY": key,
        }
        if config.transfer == "ipc":
            # vLLM then reads the memory handles that this process pickles.
            environment["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
        if config.batch_invariant and torch.cuda.is_available():
            environment[BATCH_INVARIANT] = "1"
        if config.devices is not None:
            devices = config.devices.split(",")
            num_devices = len(devices) // config.servers
            first = number * num_devices
            server_devices = devices[first : first + num_devices]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(server_devices)

        port = config.port or free_port()
        log = Path(tempfile.gettempdir(), f"vllm-server-{os.getpid()}-{port}.log")
        command = [*server_command(model, arguments), "--port", str(port)]
        return f"http://127.0.0.1:{port}", ServerProcess(command, environment, log)

    def _pooled_server(
        self, url: str, key: str | None, process: ServerProcess | None = None
    ) -> PooledServer:
        headers = {"Accept-Encoding": "identity"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        socket_options = [
            (socket.IPPROTO_TCP if name.startswith("TCP") else socket.SOL_SOCKET, option, value)
            for name, value in _KEEP_ALIVE.items()
            # Not all systems have all options.
            if (option := getattr(socket, name, None)) is not None
        ]
        transport = httpx.AsyncHTTPTransport(
            # vLLM drops idle connections after 5 s. Ours end first: a request never meets a
            # connection that is closing.
            limits=httpx.Limits(max_connections=None, keepalive_expiry=2.0),
            socket_options=socket_options,
            trust_env=False,
        )
        client = httpx.AsyncClient(
            base_url=url,
            headers=headers,
            timeout=httpx.Timeout(None, connect=10.0),
            transport=transport,
            trust_env=False,
        )
        server = PooledServer(client, ServerControl(url, client, process, self._passing), process)
        if process is not None:
            server.sessions = [0] * self._config.data_parallel_size
        return server

    @property
    def _passing(self) -> tuple[int, ...]:
        return PASSING if self._config.count > 1 else GATEWAY

    def _load_initial_weights(self, model: "PreTrainedModel | str") -> None:
        """Replace another run's weights by those of the start."""
        if "full_weights" not in self.capabilities:
            raise EngineConfigError(
                f"{self._urls}: has another run's weights; expected the base, for adapters: start "
                "it again"
            )
        if isinstance(model, str):
            from transformers import AutoModelForCausalLM

            model = AutoModelForCausalLM.from_pretrained(
                model, dtype="auto", trust_remote_code=False
            )
        self.load(Weights(0, model.state_dict()))

    async def _check_log_probabilities(self, control: ServerControl) -> None:
        prompt_ids = [self._served.end_ids[0] if self._served.end_ids else 0]
        sampling = {"max_tokens": 1, "seed": 0, "logprobs": 8}
        replies = [
            await control.request_turn(
                self._model, prompt_ids, {**sampling, "temperature": temperature}
            )
            for temperature in (1.0, 2.0)
        ]
        if are_raw(*replies):
            raise EngineConfigError(
                f"{control.url}: its log-probabilities are those before the temperature; expected "
                "a server that was started with --logprobs-mode processed_logprobs"
            )

    def _check_alive(self) -> None:
        # Of several servers, one that has ended is started again.
        if not self._pool.is_several:
            for server in (*self._pool.members, *self._behind_router):
                server.control.check_alive()

    async def _reply(self, request: Request) -> Reply:
        self._check_alive()
        if self._served.room(request) < 1:
            return overflow(request, self._version)
        patience_s = self._config.reconnect_timeout_s
        pause_s = min(1.0, patience_s)
        waited_s = 0.0
        async with self._slots:
            while True:
                # A load locks the turnstile: no request begins with half-loaded weights.
                async with self._turnstile:
                    pass
                self._check_alive()
                server = None
                process = None
                try:
                    server, engine = self._pool.pick(request.session)
                    process = server.process
                    return await self._try_once(server, engine, request)
                except (EndpointError, OtherWeightsError) as error:
                    is_final = isinstance(error, OtherWeightsError) and not self._pool.is_several
                    # Without a server too few are up, and more may come back.
                    if server is not None and not server.is_lost_by(error, process):
                        is_final = True
                    if is_final:
                        raise
                    if waited_s >= patience_s:
                        raise RetriesExhaustedError(
                            f"{error}; waited {patience_s:g} s for it (reconnect_timeout_s)"
                        ) from error
                    problem = error
                # A lost server counts as a second of waiting: a request that ends each server it
                # meets must end, too.
                waited_s += pause_s
                if server is not None and self._pool.is_several:
                    self._lose(server, problem)
                    continue
                _LOG.warning("%s; trying again for up to %g s", problem, patience_s)
                await asyncio.sleep(pause_s)

    async def _try_once(self, server: PooledServer, engine: int | None, request: Request) -> Reply:
        # An adapter stays the same until its replies end; full weights may change within them.
        began: int | str = self._version if "lora" in self.capabilities else self._served.label
        model = of_adapter(self._adapters, request.turn_request) or self._model
        started_s = time.monotonic()
        sampling = self._served.sampling(request)
        sending = asyncio.ensure_future(
            server.control.request_turn(model, request.prompt_ids, sampling, engine)
        )
        use = object()
        self._models_in_use[use] = model
        server.open += 1
        try:
            # Not awaited directly: a cancelled request would first wait for its connection to
            # close, and a second try could begin before.
            await asyncio.wait({sending})
            answer = sending.result()
        except asyncio.CancelledError:
            sending.cancel()
            is_overdue = time.monotonic() - started_s > self._config.reconnect_timeout_s
            if is_overdue and self._pool.is_several:
                # Requests go to other servers until this one is seen to answer.
                self._lose(server, TimeoutError())
            raise
        finally:
            server.open -= 1
            del self._models_in_use[use]
        spans = self._served.spans(answer.labels, began, len(answer.ids))
        finish = finish_of(answer.finish, answer.stop)
        return self._served.reply(request, answer.ids, answer.logps, finish, spans)

    def _lose(self, server: PooledServer, error: Exception) -> None:
        """Send a server no more requests until it is healthy and has the current weights."""
        if not server.is_up:
            return
        server.is_up = False
        text = (str(error) or f"{server.control.url}: no answer in time").splitlines()[0]
        _LOG.warning("%s; its requests go to the %d others", text, len(self._pool.up))
        recovery = asyncio.create_task(self._recover(server))
        # The loop itself keeps only weak references to tasks.
        self._recoveries.add(recovery)
        recovery.add_done_callback(self._recoveries.discard)

    async def _recover(self, server: PooledServer) -> None:
        while not server.is_up:
            await asyncio.sleep(_RECOVERY_INTERVAL_S)
            if server.process is not None and server.process.code is not None:
                server.process = server.process.restart()
            url = server.control.url
            control = ServerControl(url, server.client, server.process, PASSING)
            try:
                async with asyncio.timeout(LOAD_TIMEOUT_S / 4), self._load_lock:
                    await self._load_current_weights(control)
                    server.control = control
                    server.is_up = True
            except (TimeoutError, RolloutError) as error:
                _LOG.debug("%s is not back: %s", url, error)
        _LOG.warning("%s serves again", server.control.url)

    async def _load_current_weights(self, control: ServerControl) -> None:
        """Load the weights of the other servers into a server that does not have them."""
        description = await control.describe()
        await self._check_log_probabilities(control)
        missing = set(self._adapters.values()) - {*description.models}
        await control.load_adapters({name: self._adapter_folders[name] for name in missing})
        if description.label in (None, self._served.label):
            return
        if self._weights_file is not None:
            await control.load_file(self._weights_file, self._served.label)

    async def _load_full(self, weights: Weights) -> None:
        tensors = self._served.full_weights(weights)
        if "full_weights" not in self.capabilities:
            raise EndpointError(
                f"{self._urls}: refreshes no weights (no /weight_info); expected a server that was "
                "started as the README of debate-rollout says, or one that the run starts itself"
            )
        label = self._served.new_label(weights.version)
        async with self._load_lock, self._turnstile:
            # Before the load: a server that has finished it may end an open request by the new
            # weights while other servers still load.
            self._served.serve(label, weights.version)
            try:
                await self._load_tensors(tensors, label)
            except BaseException:
                del self._served.versions[label]
                raise
            self._version = weights.version
            self._pool.forget_sessions()

    async def _load_tensors(self, tensors: "Mapping[str, Tensor]", label: str) -> None:
        if self._device_transfer is not None:
            async with self._pool.members[0].control.paused():
                await asyncio.to_thread(self._device_transfer.send, tensors, label)
            return
        file = await asyncio.to_thread(write_weights, self._served.folder, label, tensors)
        try:
            await self._on_all(lambda control: control.load_file(file, label))
        except BaseException:
            file.unlink()
            raise
        if not self._pool.is_several:
            file.unlink()
            return
        # One of several servers that comes back loads the last file.
        previous_file = self._weights_file
        self._weights_file = file
        if previous_file is not None:
            previous_file.unlink()

    async def _on_all(self, action: Callable[[ServerControl], Awaitable[None]]) -> None:
        """Act on all servers with new weights; of several, a failing server is lost."""
        servers = self._refreshed_servers
        # One of several that hangs leaves the others a tenth of the time.
        limit_s = 0.9 * LOAD_TIMEOUT_S if self._pool.is_several else None
        actions = [asyncio.wait_for(action(server.control), limit_s) for server in servers]
        errors = await asyncio.gather(*actions, return_exceptions=True)
        for server, error in zip(servers, errors, strict=True):
            if error is None:
                continue
            if isinstance(error, WeightsError) or not self._pool.is_several:
                raise error
            if not isinstance(error, RolloutError | TimeoutError):
                raise error
            # Even the last one: each loads these weights when it comes back.
            self._lose(server, error)

    async def _load_adapter(self, weights: Weights) -> None:
        adapters: dict[str, str] = {}
        folders: dict[str, Path] = {}
        for name, (number, folder) in self._served.write_adapters(weights).items():
            # vLLM's name differs for each load: open requests end with the old adapter.
            served_name = f"adapter-{secrets.token_hex(4)}-{number}"
            adapters[name] = served_name
            folders[served_name] = folder
        async with self._load_lock, self._turnstile:
            await self._on_all(lambda control: control.load_adapters(folders))
            self._adapters = adapters
            self._version = weights.version
            self._adapter_folders |= folders
            used_names = {*folders, *self._models_in_use.values()}
            unused_names = self._adapter_folders.keys() - used_names
            for server in self._refreshed_servers:
                with suppress(UnreachableError):
                    await server.control.drop_adapters(unused_names)
            for served_name in unused_names:
                shutil.rmtree(self._adapter_folders.pop(served_name), ignore_errors=True)
            self._pool.forget_sessions()
