"""A vLLM server: its process, its health, prompts and new weights over HTTP."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from debate_protocol.orphans import end_with_parent
from debate_rollout.engine import EndpointError, RolloutError, WeightsError
from debate_rollout.engines.endpoints import key_hider
from debate_rollout.engines.vllm.refresh_errors import OLD_WEIGHTS_SERVE, refresh_error

TAIL_CHARACTERS = 3000
_CACHE = re.compile(r'^vllm:cache_config_info\{.*kv_cache_size_tokens="(\d+)"', re.MULTILINE)
_GRACE_S = 10.0


def server_command(
    model: str, arguments: Mapping[str, object], host: str = "127.0.0.1"
) -> list[str]:
    """Return the command line of a server, without its port."""
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model,
        "--host", host, "--enable-scale-out", "--uvicorn-log-level", "warning",
    ]  # fmt: skip
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            command.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, dict):
            command += [f"--{flag}", json.dumps(value)]
        elif isinstance(value, list | tuple):
            command += [f"--{flag}", *map(str, value)]
        elif value is not None:
            command += [f"--{flag}", str(value)]
    return command


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class ServerProcess:
    """A running server and its log."""

    def __init__(
        self, command: list[str], environment: Mapping[str, str], log: Path, mode: str = "wb"
    ) -> None:
        self.log = log
        self._made_by = (command, environment, log)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open(mode) as file:
            self._keeper = subprocess.Popen(
                [sys.executable, "-m", "debate_rollout.engines.vllm.control", *command],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,  # an interrupt of the run is not one of the server
            )

    def again(self) -> "ServerProcess":
        """Return the server started once more; its log goes on."""
        return ServerProcess(*self._made_by, mode="ab")

    @property
    def code(self) -> int | None:
        """Exit code, None while it runs."""
        return self._keeper.poll()

    def ends_within(self, seconds: float) -> None:
        """Wait for its end, at most so long."""
        with suppress(subprocess.TimeoutExpired):
            self._keeper.wait(seconds)

    def wait(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait until the server is ready.

        Raises:
            EndpointError: When it ends first, or takes longer.
        """
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            if self.code is not None:
                raise EndpointError(self.obituary("ended while it started"))
            if time.monotonic() > deadline:
                raise EndpointError(self.obituary(f"was not ready after {timeout_s:g} s"))
            time.sleep(0.2)

    def obituary(self, what: str) -> str:
        """Return an error message with the end of the log."""
        code = "" if self.code is None else f" (exit code {self.code})"
        text = self.log.read_text(encoding="utf-8", errors="replace")[-TAIL_CHARACTERS:]
        return f"the vLLM server {what}{code}; the end of its log, {self.log}:\n{text.strip()}"

    def close(self) -> None:
        """End the server and everything it started."""
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        try:
            self._keeper.wait(2 * _GRACE_S)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()


def keep(command: list[str]) -> int:
    """Run a command until it ends or standard input closes; return its exit code."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        # This process may be killed, too, and nobody else knows the server. No thread runs yet.
        preexec_fn=partial(end_with_parent, os.getpid(), signal.SIGTERM),
    )

    def end(*_: object) -> None:
        _signal_group(child.pid, signal.SIGTERM)
        killer = threading.Timer(_GRACE_S, _signal_group, (child.pid, signal.SIGKILL))
        killer.daemon = True
        killer.start()

    def end_with_the_run() -> None:
        while os.read(0, 4096):  # not sys.stdin, whose lock would outlive the interpreter
            pass
        end()

    signal.signal(signal.SIGTERM, end)
    threading.Thread(target=end_with_the_run, daemon=True).start()
    code = child.wait()
    _signal_group(child.pid, signal.SIGKILL)  # what it left behind
    return code if code >= 0 else 128 - code


def _signal_group(group: int, which: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, which)


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]))


def is_healthy(url: str) -> bool:
    """Return whether a server answers and is ready."""
    try:
        return httpx.get(f"{url}/health", timeout=5.0, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def wait_until(is_ready: Callable[[], bool], timeout_s: float, url: str) -> None:
    """Wait for a server that somebody else starts.

    Raises:
        EndpointError: It takes longer.
    """
    deadline = time.monotonic() + timeout_s
    while not is_ready():
        if time.monotonic() > deadline:
            raise EndpointError(f"{url}: not healthy after {timeout_s:g} s")
        time.sleep(0.5)


class ServerCalls:
    """The four calls that vLLM's trainer side makes, over HTTP."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        self._client = httpx.Client(
            base_url=url, headers=headers, timeout=timeout_s, trust_env=False
        )

    def init_weight_transfer_engine(self, init_info: dict[str, object]) -> None:
        """Let the workers meet this process."""
        self._post("/init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        """Open a refresh."""
        self._post("/start_weight_update", {})

    def update_weights(self, update_info: object) -> None:
        """Let the workers receive."""
        self._post("/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Close a refresh."""
        self._post("/finish_weight_update", {"weight_version": weight_version})

    def workers(self) -> int:
        """Return how many workers the server has."""
        return int(self._client.get("/get_world_size").raise_for_status().json()["world_size"])

    def name_version(self, label: str) -> None:
        """Label the weights that are served."""
        self._post("/update_weight_version", {"new_version": label})

    def _post(self, path: str, json: Mapping[str, object]) -> None:
        self._client.post(path, json=json).raise_for_status()


GENERATE = "/inference/v1/generate"
"""vLLM's own endpoint, which reports the weights that sampled each token."""


@dataclass(frozen=True, slots=True)
class ServerReply:
    """One reply; `labels` are (weight version, start, end), none where the server reports none."""

    ids: tuple[int, ...]
    logps: tuple[float, ...]
    finish: str | None
    stop: str | int | None
    labels: tuple[tuple[str, int, int], ...] = ()
    likeliest: tuple[float, ...] = ()
    """Log-probabilities of the likeliest first tokens, largest first, where they were asked for."""


def read(answer: Any) -> ServerReply:
    """Return what the JSON of a response says.

    Raises:
        RolloutError: When it has no token ids or log-probabilities.
    """
    try:
        (choice,) = answer["choices"]
        places = choice["logprobs"]["content"]
        first = [float(one["logprob"]) for one in places[0]["top_logprobs"]] if places else []
        labels = tuple(
            (str(one["version"]), int(one["start"]), int(one["end"]))
            for one in choice.get("weight_versions") or ()
        )
        return ServerReply(
            ids=tuple(int(token) for token in choice["token_ids"]),
            logps=tuple(float(one["logprob"]) for one in places),
            finish=choice["finish_reason"],
            stop=choice["stop_reason"],
            labels=labels,
            likeliest=tuple(sorted(first, reverse=True)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RolloutError(
            f"{GENERATE}: found {str(answer)[:200]!r} ({type(error).__name__}: {error}); "
            "expected what vLLM 0.32 answers: one choice with token_ids and log-probabilities"
        ) from error


def are_raw(at_one: ServerReply, at_two: ServerReply) -> bool:
    """Return whether log-probabilities are those before the temperature.

    Args:
        at_one: Answer to a prompt at temperature 1, with its likeliest first tokens.
        at_two: Answer to the same prompt at temperature 2.

    After the temperature, the gap between two tokens at 2 is half of that at 1.
    """
    gaps = [one.likeliest[0] - one.likeliest[3] for one in (at_one, at_two)]
    return gaps[0] > 1e-4 and gaps[1] > 0.75 * gaps[0]


_SHOWN = 1000
"""Characters of a response that an error shows."""
GATEWAY = (502, 503, 504)
"""Statuses of a router whose server does not answer."""


class UnreachableError(EndpointError):
    """A server that does not answer; it may come back."""


class ServerControl:
    """Talks to one server; all coroutines run on the engine's loop.

    Args:
        url: Of the server.
        client: Sends to it.
        process: It, where it was started here.
        passing: Statuses of a server that may come back.
    """

    def __init__(
        self,
        url: str,
        client: httpx.AsyncClient,
        process: ServerProcess | None,
        passing: Collection[int] = GATEWAY,
    ) -> None:
        self.url = url
        self._client = client
        self._process = process
        self._passing = passing
        self._broken: str | None = None
        key = client.headers.get("Authorization", "").removeprefix("Bearer ")
        self._hide = key_hider(key or None)

    @property
    def is_broken(self) -> bool:
        """Whether a refresh failed half-way."""
        return self._broken is not None

    def check_alive(self) -> None:
        """Raise what no request can succeed after.

        Raises:
            EndpointError: When the server has ended, or a refresh of its weights failed half-way.
        """
        if self._broken is not None:
            raise EndpointError(self._broken)
        if self._process is not None and self._process.code is not None:
            raise EndpointError(self._process.obituary("has ended"))

    async def describe(self) -> tuple[list[str], int, str | None]:
        """Return what it serves, the base model first; its window; the label of its weights."""
        found = (await self._call("GET", "/v1/models"))["data"]
        names, window = [str(one["id"]) for one in found], int(found[0]["max_model_len"])
        return names, window, await self._label()

    async def cache_tokens(self) -> int:
        """Return how many tokens the caches of its engines hold, 0 where it does not say."""
        with suppress(EndpointError):
            return sum(map(int, _CACHE.findall(str(await self._call("GET", "/metrics")))))
        return 0

    async def request_turn(
        self,
        model: str,
        prompt: Sequence[int],
        sampling: Mapping[str, object],
        engine: int | None = None,
    ) -> ServerReply:
        """Return the answer to a prompt, by one of the server's data-parallel engines or any.

        Raises:
            EndpointError: When the server has ended, cannot be reached, or refuses it.
        """
        sent = {"model": model, "token_ids": list(prompt), "sampling_params": dict(sampling)}
        headers = {} if engine is None else {"X-data-parallel-rank": str(engine)}
        return read(await self._call("POST", GENERATE, sent, headers))

    async def _label(self) -> str | None:
        """Return the label of the weights, None from a server that refreshes none."""
        try:
            return str((await self._call("GET", "/weight_info"))["weight_version"])
        except UnreachableError:
            raise
        except EndpointError:
            return None

    async def load_file(self, file: Path, label: str) -> None:
        """Serve the weights of a file.

        Raises:
            WeightsError: When they do not fit; what was served before goes on.
            EndpointError: When they cannot be loaded.
        """
        async with self.paused():
            await self._call("POST", "/start_weight_update")
            try:
                for only_check in (True, False):
                    update = {"path": str(file), "only_check": only_check}
                    await self._call("POST", "/update_weights", {"update_info": update})
                await self._call("POST", "/finish_weight_update", {"weight_version": label})
            except EndpointError as error:
                with suppress(EndpointError):
                    await self._call("POST", "/finish_weight_update", {})
                raise refresh_error(error, only_check) from error

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Hold all requests where they are; afterwards drop what old weights computed of them.

        A failure that may have changed some weights ends the service.
        """
        await self._call("POST", "/pause?mode=keep")
        try:
            yield
            # Open requests are computed again by the new weights from their first token.
            reset = await self._call("POST", "/reset_prefix_cache?reset_running_requests=true")
            if not reset["success"]:
                raise RolloutError(f"{self.url} kept its prefix cache, which old weights made")
        except WeightsError:
            raise
        except BaseException as error:
            self._broken = f"{self.url}: {error or type(error).__name__}"
            raise
        finally:
            await self._resume()

    async def _resume(self) -> None:
        try:
            await self._call("POST", "/resume")
        except EndpointError as error:  # Requests would wait for ever.
            self._broken = self._broken or f"{error}; all requests are held since a refresh"

    async def sleep(self) -> None:
        """Move the weights to CPU memory and drop the cache."""
        await self._call("POST", "/sleep?level=1")

    async def wake(self) -> None:
        """Take both back."""
        await self._call("POST", "/wake_up")

    async def load_adapters(self, folders: Mapping[str, Path]) -> None:
        """Serve adapters by their names.

        Raises:
            WeightsError: When one does not fit.
        """
        for name, folder in folders.items():
            sent = {"lora_name": name, "lora_path": str(folder)}
            try:
                await self._call("POST", "/v1/load_lora_adapter", sent)
            except EndpointError as error:
                self.check_alive()
                raise WeightsError(f"{error}; {OLD_WEIGHTS_SERVE}") from error

    async def drop_adapters(self, names: Iterable[str]) -> None:
        """Unload adapters."""
        for name in names:
            await self._call("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    async def _call(
        self,
        method: str,
        path: str,
        json: object = None,
        # A server that fails may answer, and then close: the next call must not meet that.
        headers: Mapping[str, str] = {"Connection": "close"},
    ) -> Any:
        try:
            found = await self._client.request(method, path, json=json, headers=headers)
        except httpx.TransportError as error:
            await self._notice_the_end()
            raise UnreachableError(
                f"{self.url}{path}: cannot be reached ({type(error).__name__}: {error})"
            ) from error
        if found.status_code != 200:
            raise (UnreachableError if found.status_code in self._passing else EndpointError)(
                f"{self.url}{path}: found status {found.status_code}, expected 200: "
                f"{self._hide(found.text[: 2 * _SHOWN])[:_SHOWN]}"
            )
        is_json = found.headers.get("content-type", "").startswith("application/json")
        return found.json() if is_json else found.text

    async def _notice_the_end(self) -> None:
        """Raise that the server has ended, if it was started here and ends in these seconds."""
        if self._process is not None:
            await asyncio.to_thread(self._process.ends_within, 5.0)
        self.check_alive()
