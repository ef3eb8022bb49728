"""The running openai engine: requests, retries, and no trace of the key."""

import asyncio
import email.utils
import itertools
import logging
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx

from debate_protocol.types import Reply
from debate_rollout.engine import Finished, Request, Weights, generate_by_streaming
from debate_rollout.engines.background import Background
from debate_rollout.engines.openai.hidden_key import HiddenKey
from debate_rollout.engines.openai.messages import (
    UnreadableReply,
    read_reply,
    request_body,
    says_overflow,
    uses_proxies,
)
from debate_rollout.errors import EndpointError, EngineConfigError, RetriesExhaustedError

if TYPE_CHECKING:
    from debate_rollout.engines.openai.settings import OpenAISettings

_LOG = logging.getLogger(__name__)
_CONNECT_S = 10.0
"""Longest wait for a connection."""
_SILENT_TRIES = 2
"""Tries of a request that end without a reply in time: each costs `timeout_s`."""
MOST_BYTES = 32 << 20
"""A longer response is no reply."""
BYTES_OF_A_TOKEN = 256
"""More than a token of a reply takes in a response, with all that is said about it."""
_SHOWN = 300
"""Characters of a response that an error shows."""
_PASSING = frozenset((408, 409, 425, 429))
"""Statuses below 500 that may be gone at the next try."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What the endpoint counted, over all replies so far."""

    replies: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    retries: int = 0


class _Passing(Exception):
    """A failure that may be gone at the next try."""

    def __init__(self, message: str, pause_s: float = 0.0, is_silence: bool = False) -> None:
        super().__init__(message)
        self.pause_s = pause_s
        self.is_silence = is_silence


class _Bearer(httpx.Auth):
    """Adds the key as the request leaves; nothing shows it."""

    def __init__(self, key: str) -> None:
        def add(request: httpx.Request) -> None:
            request.headers["Authorization"] = f"Bearer {key}"

        self._add = add

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        self._add(request)
        yield request


class OpenAISampler:
    """Asks an endpoint for replies, many at once, each as soon as there is room."""

    renderer = None
    context_window: int | None = None

    def __init__(self, config: "OpenAISettings", key: str | None) -> None:
        self.capabilities = config.capabilities
        self.usage = Usage()
        self._config = config
        self._url = f"{config.base_url}/chat/completions"
        self._auth = None if key is None else _Bearer(key)
        self._hide = HiddenKey(key)
        self._slots = asyncio.Semaphore(config.max_in_flight)
        self._client = httpx.AsyncClient(
            follow_redirects=False,
            timeout=httpx.Timeout(None, connect=_CONNECT_S),  # a try as a whole is timed
            trust_env=uses_proxies(config.base_url),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
        )
        self._background = Background("openai")
        self._closed = False
        self._said = ""

    def __repr__(self) -> str:
        return f"OpenAISampler({self._config.model!r} at {self._config.base_url})"

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply a request, in order.

        Endpoints cut the stop string off. Replies have text only; what the endpoint refuses to
        say is empty, and a prompt that it finds too long has finish `context_overflow`.
        """
        return generate_by_streaming(self, requests)

    def submit(self, request: Request) -> int:
        """Take a request and return its ticket."""
        if self._closed:
            raise EndpointError(f"{self._url}: the engine is closed")
        return self._background.submit(self._reply(request))

    def collect(self, timeout_s: float) -> list[Finished]:
        """Wait until a request has ended or the time is over."""
        return self._background.collect(timeout_s)

    def cancel(self, ticket: int) -> None:
        """Give a request up; its connection is closed."""
        self._background.cancel(ticket)

    def load(self, weights: Weights) -> None:
        """Refuse: an endpoint serves its own weights."""
        raise EngineConfigError("the openai engine serves what its endpoint serves: no weights")

    def close(self) -> None:
        """Cancel what is open and close all connections."""
        if not self._closed:
            self._closed = True
            self._background.close(self._client.aclose)

    async def _reply(self, request: Request) -> Reply:
        body, silent = request_body(self._config, request), 0
        for tries in itertools.count(1):
            try:
                async with self._slots:
                    return await self._in_time(body, request)
            except _Passing as error:
                pause = max(error.pause_s, self._backoff(tries))
                silent += error.is_silence
                if tries > self._config.retries or silent == _SILENT_TRIES:
                    why = f"{error}; gave up after try {tries}"
                    raise RetriesExhaustedError(f"{self._url}: {why}") from None
                if pause > self._config.longest_pause_s:
                    raise RetriesExhaustedError(
                        f"{self._url}: {error}; it asks for a pause of {pause:.0f} s, longer than "
                        f"longest_pause_s ({self._config.longest_pause_s:g})"
                    ) from None
                self._say_retry(error, pause, tries + 1)
            self.usage = replace(self.usage, retries=self.usage.retries + 1)
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    def _say_retry(self, error: Exception, pause: float, tries: int) -> None:
        """Log a retry; many requests that fail alike at once are one line."""
        of = self._config.retries + 1
        said = f"{urlsplit(self._url).netloc}: {error}; try {tries} of {of} in {pause:g} s"
        if said != self._said:
            self._said = said
            _LOG.warning("%s", said)

    def _backoff(self, tries: int) -> float:
        # Bounded before it is doubled: a large number of tries is no large number.
        doubled: float = self._config.backoff_s * 2.0 ** min(tries - 1, 30)
        return min(doubled, self._config.longest_pause_s)

    async def _in_time(self, body: bytes, request: Request) -> Reply:
        try:
            async with asyncio.timeout(self._config.timeout_s):
                most = min(MOST_BYTES, (1 << 20) + BYTES_OF_A_TOKEN * request.sampling.max_tokens)
                status, headers, content = await self._post(body, most)
        except TimeoutError:
            late = f"no reply within {self._config.timeout_s:g} s"
            raise _Passing(late, is_silence=True) from None
        except httpx.TransportError as error:
            said = self._shown(str(error))
            raise _Passing(f"{type(error).__name__}: {said}") from None
        except httpx.HTTPError as error:
            raise _Passing(f"unreadable response: {type(error).__name__}") from None
        if 200 <= status < 300:
            return self._read(content, request)
        return self._failed(status, headers, content, request)

    async def _post(self, body: bytes, most: int) -> tuple[int, httpx.Headers, bytes]:
        # A few compressed bytes can hold gigabytes: none are asked for, and none unpacked.
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        async with self._client.stream(
            "POST", self._url, content=body, headers=headers, auth=self._auth
        ) as response:
            encoding = response.headers.get("content-encoding", "identity").strip().lower()
            if encoding not in ("", "identity"):
                if response.is_success:
                    raise _Passing("a compressed response, which was not asked for")
                return response.status_code, response.headers, b"(compressed)"
            content = bytearray()
            async for part in response.aiter_raw():
                content += part
                if len(content) > most:
                    raise _Passing(f"a response of more than {most >> 20} MiB")
            return response.status_code, response.headers, bytes(content)

    def _read(self, content: bytes, request: Request) -> Reply:
        try:
            reply, prompt_tokens, completion_tokens = read_reply(content, request)
        except UnreadableReply as error:
            raise _Passing(f"{error}: {self._shown(content)}") from None
        self.usage = replace(
            self.usage,
            replies=self.usage.replies + 1,
            prompt_tokens=self.usage.prompt_tokens + prompt_tokens,
            completion_tokens=self.usage.completion_tokens + completion_tokens,
        )
        return replace(reply, text=self._hide(reply.text))

    def _failed(
        self, status: int, headers: httpx.Headers, content: bytes, request: Request
    ) -> Reply:
        where = f"{self._url}: status {status}"
        if status in _PASSING or status >= 500:
            raise _Passing(f"status {status}: {self._shown(content)}", _asked_pause(headers))
        if status in (401, 403):  # Its text may repeat the key, or a part of it.
            name = self._config.api_key_env
            said = "no key was sent" if name is None else f"the key in {name} was refused"
            raise EndpointError(f"{where}: {said} for model {self._config.model!r}")
        if 300 <= status < 400:
            raise EndpointError(
                f"{where}: it points to another address, which is not followed; "
                "write the final one in base_url"
            )
        if says_overflow(content):
            temperature = request.sampling.temperature
            return Reply("", finish="context_overflow", temperature=temperature)
        raise EndpointError(f"{where} for model {self._config.model!r}: {self._shown(content)}")

    def _shown(self, content: bytes | str) -> str:
        """Return the start of a response, without the key and without control characters."""
        text = content.decode("utf-8", "replace") if isinstance(content, bytes) else content
        text = self._hide(text).strip()
        return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


def _asked_pause(headers: httpx.Headers) -> float:
    """Return the seconds of Retry-After, given as a number or as a date; 0 without one."""
    text = headers.get("retry-after", "")
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return seconds if seconds > 0 else 0.0  # not a number compares as false
