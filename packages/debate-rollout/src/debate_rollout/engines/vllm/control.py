"""Calls to a vLLM server over HTTP: health, prompts and new weights."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from debate_rollout.engine import EndpointError, RolloutError, WeightsError
from debate_rollout.engines.endpoints import key_hider
from debate_rollout.engines.vllm.refresh_errors import OLD_WEIGHTS_SERVE, refresh_error
from debate_rollout.engines.vllm.server_process import ServerProcess

GENERATE = "/inference/v1/generate"
"""vLLM's endpoint for token ids, with the weights of each sampled token."""
GATEWAY = (502, 503, 504)
"""Statuses of a router when its server does not answer."""
_SHOWN_CHARACTERS = 1000
"""Characters of a response in an error message."""
_CACHE_TOKENS = re.compile(r'^vllm:cache_config_info\{.*kv_cache_size_tokens="(\d+)"', re.MULTILINE)
"""A line of /metrics for each engine of the server."""


class UnreachableError(EndpointError):
    """A server that does not answer; it may come back."""


def is_healthy(url: str) -> bool:
    """Check that a server answers and is ready."""
    try:
        return httpx.get(f"{url}/health", timeout=5.0, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def wait_until(is_ready: Callable[[], bool], timeout_s: float, url: str) -> None:
    """Wait for a server that was not started here.

    Raises:
        EndpointError: It takes longer.
    """
    deadline = time.monotonic() + timeout_s
    while not is_ready():
        if time.monotonic() > deadline:
            raise EndpointError(f"{url}: not healthy after {timeout_s:g} s")
        time.sleep(0.5)


class ServerCalls:
    """The calls of vLLM's trainer side to a server, over HTTP."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        self._client = httpx.Client(
            base_url=url, headers=headers, timeout=timeout_s, trust_env=False
        )

    def init_weight_transfer_engine(self, init_info: dict[str, object]) -> None:
        """Connect the server's workers with this process."""
        self._post("/init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        """Open a refresh."""
        self._post("/start_weight_update", {})

    def update_weights(self, update_info: object) -> None:
        """Make the workers receive."""
        self._post("/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Close a refresh."""
        self._post("/finish_weight_update", {"weight_version": weight_version})

    def workers(self) -> int:
        """Read the number of the server's workers."""
        response = self._client.get("/get_world_size").raise_for_status()
        return int(response.json()["world_size"])

    def name_version(self, label: str) -> None:
        """Label the served weights."""
        self._post("/update_weight_version", {"new_version": label})

    def _post(self, path: str, json: Mapping[str, object]) -> None:
        self._client.post(path, json=json).raise_for_status()


@dataclass(frozen=True, slots=True)
class ServerReply:
    """A reply; `labels` are (weight version, start, end), empty if the server reports none."""

    ids: tuple[int, ...]
    logps: tuple[float, ...]
    finish: str | None
    stop: str | int | None
    labels: tuple[tuple[str, int, int], ...] = ()
    likeliest: tuple[float, ...] = ()
    """Log-probabilities of the likeliest first tokens, largest first, if requested."""


def read(answer: Any) -> ServerReply:
    """Read a reply from the JSON of a response.

    Raises:
        RolloutError: When it has no token ids or log-probabilities.
    """
    try:
        (choice,) = answer["choices"]
        tokens = choice["logprobs"]["content"]
        likeliest: list[float] = []
        if tokens:
            likeliest = [float(token["logprob"]) for token in tokens[0]["top_logprobs"]]
        labels = tuple(
            (str(span["version"]), int(span["start"]), int(span["end"]))
            for span in choice.get("weight_versions") or ()
        )
        return ServerReply(
            ids=tuple(int(token_id) for token_id in choice["token_ids"]),
            logps=tuple(float(token["logprob"]) for token in tokens),
            finish=choice["finish_reason"],
            stop=choice["stop_reason"],
            labels=labels,
            likeliest=tuple(sorted(likeliest, reverse=True)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RolloutError(
            f"{GENERATE}: found {str(answer)[:200]!r} ({type(error).__name__}: {error}); "
            "expected what vLLM 0.32 answers: one choice with token_ids and log-probabilities"
        ) from error


def are_raw(at_1: ServerReply, at_2: ServerReply) -> bool:
    """Check whether log-probabilities are computed before the temperature.

    Args:
        at_1: Reply to a prompt at temperature 1, with its likeliest first tokens.
        at_2: Reply to the same prompt at temperature 2.

    After the temperature, the gap between two tokens at 2 is half of that at 1.
    """
    gap_at_1 = at_1.likeliest[0] - at_1.likeliest[3]
    gap_at_2 = at_2.likeliest[0] - at_2.likeliest[3]
    # Tokens that are equally likely show nothing.
    return gap_at_1 > 1e-4 and gap_at_2 > 0.75 * gap_at_1


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """The models of a server, the base model first, its window, and the label of its weights.

    A server that cannot refresh weights has no label.
    """

    models: list[str]
    context_window: int
    label: str | None


class ServerControl:
    """Calls to a server; all coroutines run on the engine's loop.

    Args:
        url: Address of the server.
        client: Sends the requests.
        process: The server's process if it was started here.
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
        """Refuse requests that can no longer succeed.

        Raises:
            EndpointError: When the server has ended, or a refresh of its weights failed half-way.
        """
        if self._broken is not None:
            raise EndpointError(self._broken)
        if self._process is not None and self._process.code is not None:
            raise EndpointError(self._process.error_message("has ended"))

    async def describe(self) -> ServerDescription:
        """Read which models, context window and weights the server has."""
        models = (await self._call("GET", "/v1/models"))["data"]
        label = None
        try:
            label = str((await self._call("GET", "/weight_info"))["weight_version"])
        except UnreachableError:
            raise
        except EndpointError:
            pass  # A server without this endpoint refreshes no weights.
        return ServerDescription(
            models=[str(model["id"]) for model in models],
            context_window=int(models[0]["max_model_len"]),
            label=label,
        )

    async def cache_tokens(self) -> int:
        """Read the size of the engines' caches in tokens, 0 if not reported."""
        with suppress(EndpointError):
            metrics = str(await self._call("GET", "/metrics"))
            return sum(map(int, _CACHE_TOKENS.findall(metrics)))
        return 0

    async def request_turn(
        self,
        model: str,
        prompt: Sequence[int],
        sampling: Mapping[str, object],
        engine: int | None = None,
    ) -> ServerReply:
        """Sample a reply to a prompt, from one of the server's data-parallel engines or any.

        Raises:
            EndpointError: When the server has ended, cannot be reached, or refuses the prompt.
        """
        body = {"model": model, "token_ids": list(prompt), "sampling_params": dict(sampling)}
        headers = {} if engine is None else {"X-data-parallel-rank": str(engine)}
        return read(await self._call("POST", GENERATE, body, headers))

    async def load_file(self, file: Path, label: str) -> None:
        """Serve the weights of a file.

        Raises:
            WeightsError: When they do not fit; the old weights go on serving.
            EndpointError: When they cannot be loaded.
        """
        async with self.paused():
            await self._call("POST", "/start_weight_update")
            try:
                # All workers check the file before any of them loads it.
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
        """Pause all requests; afterwards drop their caches of old weights.

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
            try:
                await self._call("POST", "/resume")
            except EndpointError as error:
                # Requests would wait for ever. The first failure is the one to report.
                self._broken = self._broken or f"{error}; all requests are held since a refresh"

    async def sleep(self) -> None:
        """Move the weights to CPU memory and drop the cache."""
        await self._call("POST", "/sleep?level=1")

    async def wake(self) -> None:
        """Move the weights back and allocate the cache."""
        await self._call("POST", "/wake_up")

    async def load_adapters(self, folders: Mapping[str, Path]) -> None:
        """Serve adapters by their names.

        Raises:
            WeightsError: When an adapter does not fit.
        """
        for name, folder in folders.items():
            body = {"lora_name": name, "lora_path": str(folder)}
            try:
                await self._call("POST", "/v1/load_lora_adapter", body)
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
        # A server that fails may answer and then close: the next call needs a new connection.
        headers: Mapping[str, str] = {"Connection": "close"},
    ) -> Any:
        try:
            response = await self._client.request(method, path, json=json, headers=headers)
        except httpx.TransportError as error:
            # A server that dies closes its connections some seconds before its process has ended.
            if self._process is not None:
                await asyncio.to_thread(self._process.ends_within, 5.0)
            self.check_alive()
            raise UnreachableError(
                f"{self.url}{path}: cannot be reached ({type(error).__name__}: {error})"
            ) from error
        if response.status_code != 200:
            # Hide the key first: a cut in its middle would leave a part to read.
            text = self._hide(response.text[: 2 * _SHOWN_CHARACTERS])[:_SHOWN_CHARACTERS]
            may_come_back = response.status_code in self._passing
            error_type = UnreachableError if may_come_back else EndpointError
            raise error_type(
                f"{self.url}{path}: found status {response.status_code}, expected 200: {text}"
            )
        content_type = response.headers.get("content-type", "")
        return response.json() if content_type.startswith("application/json") else response.text
