"""The endpoints of a vLLM server beside sampling: what it serves, and new weights for it."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from debate_rollout.engines.openai.hidden_key import HiddenKey
from debate_rollout.engines.vllm.hand_over import OLD_WEIGHTS_SERVE, refresh_error, write_weights
from debate_rollout.engines.vllm_server.process import ServerProcess
from debate_rollout.engines.vllm_server.wire import PATHS, body
from debate_rollout.errors import EndpointError, RolloutError, WeightsError

if TYPE_CHECKING:
    from torch import Tensor

_SHOWN = 1000
"""Characters of a response that an error shows."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says about itself.

    `version` is the label of its weights, None when it refreshes none; `reports_versions` is
    whether its replies name the weights of each token.
    """

    model: str
    window: int
    version: str | None
    reports_versions: bool


class ServerControl:
    """Talks to one server; all coroutines run on the engine's loop."""

    def __init__(self, url: str, client: httpx.AsyncClient, process: ServerProcess | None) -> None:
        self._url = url
        self._client = client
        self._process = process
        self._broken: str | None = None
        key = client.headers.get("Authorization", "").removeprefix("Bearer ")
        self._hide = HiddenKey(key or None)
        self._adapters: dict[str, Path] = {}

    def check_alive(self) -> None:
        """Raise what no request can succeed after.

        Raises:
            EndpointError: When the server has ended, or a refresh of its weights failed half-way.
        """
        if self._broken is not None:
            raise EndpointError(self._broken)
        if self._process is not None and self._process.code is not None:
            raise EndpointError(self._process.obituary("has ended"))

    async def describe(self) -> ServerFacts:
        """Ask the server what it serves."""
        (first, *_) = (await self._call("GET", "/v1/models"))["data"]
        info = await self._client.get("/weight_info")
        one_token = body("tokens", str(first["id"]), [0], {"max_tokens": 1})
        tried = await self._client.post(PATHS["tokens"], json=one_token)
        return ServerFacts(
            model=str(first["id"]),
            window=int(first["max_model_len"]),
            version=str(info.json()["weight_version"]) if info.status_code == 200 else None,
            reports_versions=tried.status_code == 200,
        )

    async def post(self, path: str, json: Mapping[str, object]) -> Any:
        """Return the JSON that answers a request.

        Raises:
            EndpointError: When the server has ended, cannot be reached, or refuses it.
        """
        return await self._call("POST", path, json, keep=True)

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
                raise RolloutError(f"{self._url} kept its prefix cache, which old weights made")
        except WeightsError:
            raise
        except BaseException as error:
            self._broken = f"{self._url}: {error or type(error).__name__}"
            raise
        finally:
            await self._resume()

    async def _resume(self) -> None:
        try:
            await self._call("POST", "/resume")
        except EndpointError as error:  # Requests would wait for ever.
            self._broken = self._broken or f"{error}; all requests are held since a refresh"

    async def load_file(self, folder: Path, tensors: "Mapping[str, Tensor]", version: int) -> None:
        """Hand full weights over in a file, which every worker looks at before any loads it.

        Raises:
            WeightsError: When a worker finds that it does not fit.
        """
        path = await asyncio.to_thread(write_weights, folder, version, tensors)
        try:
            await self._call("POST", "/start_weight_update")
            await self._update(str(path), str(version))
        finally:
            path.unlink(missing_ok=True)

    async def _update(self, path: str, label: str) -> None:
        try:
            for only_check in (True, False):
                update = {"path": path, "only_check": only_check}
                await self._call("POST", "/update_weights", {"update_info": update})
            await self._call("POST", "/finish_weight_update", {"weight_version": label})
        except EndpointError as error:
            with suppress(EndpointError):
                await self._call("POST", "/finish_weight_update", {})
            raise refresh_error(error, only_check) from error

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Serve an adapter under a name that was not used before.

        Raises:
            WeightsError: When the server refuses it.
        """
        try:
            await self._call(
                "POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)}
            )
        except EndpointError as error:
            self.check_alive()
            raise WeightsError(f"{error}; {OLD_WEIGHTS_SERVE}") from error
        self._adapters[name] = folder

    async def drop_adapters(self, used: set[str]) -> None:
        """Unload all adapters of ours but those in use, and remove their files."""
        for name in self._adapters.keys() - used:
            await self._call("POST", "/v1/unload_lora_adapter", {"lora_name": name})
            shutil.rmtree(self._adapters.pop(name), ignore_errors=True)

    async def _call(self, method: str, path: str, json: object = None, keep: bool = False) -> Any:
        # A server that fails may answer, and then close: the next call must not meet that.
        headers = None if keep else {"Connection": "close"}
        try:
            found = await self._client.request(method, path, json=json, headers=headers)
        except httpx.TransportError as error:
            await self._notice_the_end()
            raise EndpointError(
                f"{self._url}{path}: cannot be reached ({type(error).__name__}: {error}); expected "
                "a vLLM server that answers there"
            ) from error
        if found.status_code != 200:
            raise EndpointError(
                f"{self._url}{path}: found status {found.status_code}, expected 200: "
                f"{self._hide(found.text[: 2 * _SHOWN])[:_SHOWN]}"
            )
        is_json = found.headers.get("content-type", "").startswith("application/json")
        return found.json() if is_json else None

    async def _notice_the_end(self) -> None:
        """Raise that the server has ended, if it was started here and ends in these seconds."""
        for _ in range(50 if self._process is not None else 0):
            self.check_alive()
            await asyncio.sleep(0.1)
        self.check_alive()
