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
    ServerProcess,
    UnreachableError,
    are_raw,
    free_port,
    is_healthy,
    server_command,
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
from debate_rollout.engines.vllm.settings import BACKEND, BATCH_INVARIANT, serving_arguments
from debate_rollout.pacing import CacheRoom

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from debate_rollout.engines.vllm.device_transfer import DeviceTransfer
    from debate_rollout.engines.vllm.settings import VllmServerEngine


_LOG = logging.getLogger(__name__)
_LOOK_S = 0.5
"""Between two looks at a server that is down."""
_ALIVE = {
    "SO_KEEPALIVE": 1,
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 25_000,
}
"""A machine that has lost its power or its network closes nothing: its kernel is asked, so that
requests to it fail after 25 s and not never."""


class VllmServer(HttpEngine):
    """Samples from vLLM servers over HTTP, as `VllmSampler` does in this process.

    Of several servers one that fails gives its requests to the others. It serves again when it is
    healthy and has the current weights; one that the run started and that has ended is started
    again.
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
        self._behind: list[PooledServer] = []
        self._device_transfer: DeviceTransfer | None = None
        self._slots = asyncio.Semaphore(config.max_connections * config.count)
        self._turnstile, self._loading = asyncio.Lock(), asyncio.Lock()
        self._nurses: set[asyncio.Task[None]] = set()
        self._sent: dict[object, str] = {}
        self._adapters: dict[str, str] = {}
        self._folders: dict[str, Path] = {}
        self._file: Path | None = None
        self._sleeps = False
        super().__init__("vllm_server")
        try:
            self._connect(model)
        except BaseException:
            self.close()
            raise

    def load(self, weights: Weights) -> None:
        """Serve these weights and drop every prefix that old ones made; see `VllmSampler.load`.

        Raises:
            WeightsError: When names or shapes do not fit; nothing is changed then.
            EndpointError: When no server answers, or it refreshes no weights.
        """
        self._check_alive()
        if self._sleeps:
            free_cache()
            self.run(self._on_all(ServerControl.wake), self._config.load_timeout_s, "waking vLLM")
            self._sleeps = False
        refresh = self._load_adapter if weights.kind == "lora" else self._load_full
        what = f"refreshing the weights of {self._urls}"
        self.run(refresh(weights), self._config.load_timeout_s, what)

    def sleep(self) -> None:
        """Free the memory of the servers' devices until the next `load`."""
        self._check_alive()
        self.run(self._on_all(ServerControl.sleep), self._config.load_timeout_s, "vLLM's sleep")
        self._sleeps = True

    def close(self) -> None:
        """End servers that were started here, and remove the files; a crash leaves its log."""
        started = [one.process for one in self._pool.members if one.process is not None]
        ended = [process.code is not None for process in started]
        try:
            super().close()
        finally:
            for process, ended_itself in zip(started, ended, strict=True):
                process.close()
                if self._config.log_file is None and not ended_itself:
                    process.log.unlink(missing_ok=True)
            self._served.close()

    async def _disconnect(self) -> None:
        for member in (*self._pool.members, *self._behind):
            await member.client.aclose()

    @property
    def _urls(self) -> str:
        return ", ".join(member.control.url for member in self._pool.members)

    @property
    def _loaded(self) -> list[PooledServer]:
        """The servers that are loaded: behind a router each of those there."""
        return self._behind or self._pool.up

    def _start(self, model: str, key: str, number: int) -> tuple[str, ServerProcess]:
        """Start one server; return its URL and its process, which is not ready."""
        from debate_rollout.engines.vllm.sampler import engine_arguments

        config = self._config
        transfer = BACKEND if config.transfer == "file" else config.transfer
        ours = serving_arguments(config, self._served.dtype, self._served.window, transfer)
        arguments = engine_arguments(ours, config.vllm_args)
        environment = {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            "VLLM_API_KEY": key,
        }
        if config.transfer == "ipc":  # By which vLLM reads the handles that this process pickles.
            environment["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
        if config.batch_invariant and torch.cuda.is_available():
            environment[BATCH_INVARIANT] = "1"
        if config.devices is not None:
            devices = config.devices.split(",")
            each = len(devices) // config.servers
            own = devices[number * each : (number + 1) * each]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(own)
        port = config.port or free_port()
        named = config.log_file or f"{tempfile.gettempdir()}/vllm-server-{os.getpid()}-{port}.log"
        log = Path(named) if config.servers == 1 else Path(named).with_suffix(f".{number}.log")
        command = [*server_command(model, arguments), "--port", str(port)]
        return f"http://127.0.0.1:{port}", ServerProcess(command, environment, log)

    def _member(
        self, url: str, key: str | None, process: ServerProcess | None = None
    ) -> PooledServer:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        headers["Accept-Encoding"] = "identity"
        # vLLM drops idle connections after 5 s: ours end first, or a request meets a closing one.
        limits = httpx.Limits(max_connections=None, keepalive_expiry=2.0)
        timeout = httpx.Timeout(None, connect=10.0)
        alive = [
            (socket.IPPROTO_TCP if name.startswith("TCP") else socket.SOL_SOCKET, option, value)
            for name, value in _ALIVE.items()
            if (option := getattr(socket, name, None)) is not None
        ]
        transport = httpx.AsyncHTTPTransport(limits=limits, socket_options=alive, trust_env=False)
        client = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=timeout, transport=transport, trust_env=False
        )
        member = PooledServer(client, ServerControl(url, client, process, self._passing), process)
        if process is not None:
            member.sessions = [0] * self._config.data_parallel_size
        return member

    @property
    def _passing(self) -> tuple[int, ...]:
        return PASSING if self._config.count > 1 else GATEWAY

    def _connect(self, model: "PreTrainedModel | str") -> None:
        """Start or find the servers, and check that they sample as training needs it."""
        config, key = self._config, os.environ.get(self._config.api_key_env)
        members: list[PooledServer] = []
        self._pool = Pool(members, config.min_servers)
        for url in config.running:
            members.append(self._member(url, key))
            if len(config.running) > 1:  # Several are started by somebody, and not all at once.
                wait_until(partial(is_healthy, url), config.start_timeout_s, url)
        if not members:
            with needs_extra("starting a vLLM server", "vllm"):
                import vllm  # noqa: F401
            key, path = secrets.token_hex(16), self._served.on_disk(model)
            for number in range(config.servers):
                url, process = self._start(path, key, number)
                members.append(self._member(url, key, process))
            for member in members:
                url, process = member.control.url, cast(ServerProcess, member.process)
                process.wait(partial(is_healthy, url), config.start_timeout_s)
        self._behind = [self._member(url, key) for url in config.load_urls]
        looked = [
            self.run(one.control.describe(), 60.0, f"looking at {one.control.url}")
            for one in self._loaded
        ]
        names, window, _ = looked[0]
        self._model, self._version = names[0], 0
        self.context_window = min(self._served.window or window, window)
        self._served.window = self.context_window
        known, labels = set(config.capabilities), {one[2] for one in looked}
        if None in labels:
            known -= {"full_weights", "load_in_flight"}
        self.capabilities = frozenset[Capability](known)
        if config.transfer != "file" and "full_weights" in known:
            from debate_rollout.engines.vllm.device_transfer import DeviceTransfer

            url, headers = members[0].control.url, dict(members[0].client.headers)
            self._device_transfer = DeviceTransfer(
                config.transfer, url, headers, config.load_timeout_s
            )
        caches = [
            self.run(member.control.cache_tokens(), 60.0, f"looking at {member.control.url}")
            for member in members
        ]
        self.room = CacheRoom(sum(caches)) if all(caches) else None
        for member in members:
            check = self._check_log_probabilities(member.control)
            self.run(check, 120.0, f"sampling from {member.control.url}")
        if labels - {None, UNLOADED}:
            self._take_back(model)

    def _take_back(self, model: "PreTrainedModel | str") -> None:
        """Load the start's weights into servers that have those of another run."""
        if "full_weights" not in self.capabilities:
            found = f"{self._urls}: has another run's weights"
            raise EngineConfigError(f"{found}; expected the base, for adapters: start it again")
        if isinstance(model, str):
            from transformers import AutoModelForCausalLM

            model = AutoModelForCausalLM.from_pretrained(
                model, dtype="auto", trust_remote_code=False
            )
        self.load(Weights(0, model.state_dict()))

    async def _check_log_probabilities(self, control: ServerControl) -> None:
        prompt = [self._served.end_ids[0] if self._served.end_ids else 0]
        sampling = {"max_tokens": 1, "seed": 0, "logprobs": 8}
        answers = [
            await control.request_turn(self._model, prompt, sampling | {"temperature": temperature})
            for temperature in (1.0, 2.0)
        ]
        if are_raw(*answers):
            raise EngineConfigError(
                f"{control.url}: its log-probabilities are those before the temperature; expected "
                "a server that was started with --logprobs-mode processed_logprobs"
            )

    def _check_alive(self) -> None:
        if not self._pool.is_several:
            for member in (*self._pool.members, *self._behind):
                member.control.check_alive()

    async def _reply(self, request: Request) -> Reply:
        self._check_alive()
        if self._served.room(request) < 1:
            return overflow(request, self._version)
        patience_s, waited_s = self._config.reconnect_timeout_s, 0.0
        async with self._slots:
            while True:
                # A refresh holds the turnstile: no request may begin by weights half loaded.
                async with self._turnstile:
                    pass
                self._check_alive()
                member = process = None
                try:
                    member, engine = self._pool.pick(request.session)
                    process = member.process
                    return await self._one_try(member, engine, request)
                except (EndpointError, OtherWeightsError) as error:
                    is_alone = isinstance(error, OtherWeightsError) and not self._pool.is_several
                    if is_alone or not (member is None or member.is_lost_by(error, process)):
                        raise
                    if waited_s >= patience_s:
                        waited = f"{error}; waited {patience_s:g} s for it (reconnect_timeout_s)"
                        raise RetriesExhaustedError(waited) from error
                    problem = error
                # A lost server counts for a second, too: a request may end each that it meets.
                waited_s += min(1.0, patience_s)
                if member is not None and self._pool.is_several:
                    self._lose(member, problem)
                    continue
                _LOG.warning("%s; trying again for up to %g s", problem, patience_s)
                await asyncio.sleep(min(1.0, patience_s))

    async def _one_try(self, member: PooledServer, engine: int | None, request: Request) -> Reply:
        began: int | str = self._served.label
        if "lora" in self.capabilities:
            began = self._version
        model, me = of_adapter(self._adapters, request.turn_request) or self._model, object()
        began_s = time.monotonic()
        sampling = self._served.sampling(request)
        self._sent[me] = model
        member.open += 1
        try:
            asking = asyncio.ensure_future(
                member.control.request_turn(model, request.prompt_ids, sampling, engine)
            )
            # Not awaited itself: closing its connection would let a second try begin before.
            await asyncio.wait({asking})
            answer = asking.result()
        except asyncio.CancelledError:
            asking.cancel()
            is_old = time.monotonic() - began_s > self._config.reconnect_timeout_s
            if is_old and self._pool.is_several:  # Until it is seen to answer, others are asked.
                self._lose(member, TimeoutError())
            raise
        finally:
            member.open -= 1
            del self._sent[me]
        spans = self._served.spans(answer.labels, began, len(answer.ids))
        finish = finish_of(answer.finish, answer.stop)
        return self._served.reply(request, answer.ids, answer.logps, finish, spans)

    def _lose(self, member: PooledServer, error: Exception) -> None:
        """Ask a server nothing more until it is healthy and has the current weights."""
        if not member.is_up:
            return
        member.is_up = False
        text = (str(error) or f"{member.control.url}: no answer in time").splitlines()[0]
        _LOG.warning("%s; its requests go to the %d others", text, len(self._pool.up))
        nurse = asyncio.create_task(self._nurse(member))
        self._nurses.add(nurse)
        nurse.add_done_callback(self._nurses.discard)

    async def _nurse(self, member: PooledServer) -> None:
        while not member.is_up:
            await asyncio.sleep(_LOOK_S)
            if member.process is not None and member.process.code is not None:
                member.process = member.process.again()
            url = member.control.url
            control = ServerControl(url, member.client, member.process, PASSING)
            try:
                async with asyncio.timeout(self._config.load_timeout_s / 4), self._loading:
                    await self._bring_up(control)
                    member.control, member.is_up = control, True
            except (TimeoutError, RolloutError) as error:
                _LOG.debug("%s is not back: %s", url, error)
        _LOG.warning("%s serves again", member.control.url)

    async def _bring_up(self, control: ServerControl) -> None:
        """Give a server the weights that the others have, where it does not have them."""
        names, _, label = await control.describe()
        await self._check_log_probabilities(control)
        missing = set(self._adapters.values()) - {*names}
        await control.load_adapters({name: self._folders[name] for name in missing})
        if label is not None and label != self._served.label and self._file is not None:
            await control.load_file(self._file, self._served.label)

    async def _load_full(self, weights: Weights) -> None:
        tensors = self._served.full_weights(weights)
        if "full_weights" not in self.capabilities:
            raise EndpointError(
                f"{self._urls}: refreshes no weights (no /weight_info); expected a server that was "
                "started as the README of debate-rollout says, or one that the run starts itself"
            )
        label = self._served.new_label(weights.version)
        async with self._loading, self._turnstile:
            # Before the load: open requests may end by the new weights while it goes on elsewhere.
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
        written = await asyncio.to_thread(write_weights, self._served.folder, label, tensors)
        try:
            await self._on_all(lambda control: control.load_file(written, label))
        except BaseException:
            written.unlink()
            raise
        # A server of several that comes back is given the last file.
        kept = written if self._pool.is_several else None
        replaced = self._file if self._pool.is_several else written
        self._file = kept
        if replaced is not None:
            replaced.unlink()

    async def _on_all(self, load: Callable[[ServerControl], Awaitable[None]]) -> None:
        members = self._loaded
        # One of several that hangs leaves the others a tenth of the time.
        limit_s = 0.9 * self._config.load_timeout_s if self._pool.is_several else None
        loads = [asyncio.wait_for(load(member.control), limit_s) for member in members]
        found = await asyncio.gather(*loads, return_exceptions=True)
        for member, error in zip(members, found, strict=True):
            if error is None:
                continue
            if isinstance(error, WeightsError) or not self._pool.is_several:
                raise error
            if not isinstance(error, RolloutError | TimeoutError):
                raise error
            # Even if none is left: each is given these weights when it is back.
            self._lose(member, error)

    async def _load_adapter(self, weights: Weights) -> None:
        adapters: dict[str, str] = {}
        folders: dict[str, Path] = {}
        for name, (number, folder) in self._served.write_adapters(weights).items():
            adapters[name] = f"adapter-{secrets.token_hex(4)}-{number}"
            folders[adapters[name]] = folder
        async with self._loading, self._turnstile:
            await self._on_all(lambda control: control.load_adapters(folders))
            self._adapters, self._version = adapters, weights.version
            self._folders |= folders
            unused = self._folders.keys() - {*folders, *self._sent.values()}
            for member in self._loaded:
                with suppress(UnreachableError):
                    await member.control.drop_adapters(unused)
            for name in unused:
                shutil.rmtree(self._folders.pop(name), ignore_errors=True)
            self._pool.forget_sessions()
