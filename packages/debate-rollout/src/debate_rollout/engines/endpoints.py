"""Requests to an endpoint over HTTP: a loop in a thread, a hidden key, chat completions."""

import asyncio
import itertools
import json
import logging
import queue
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import httpx

from debate_protocol.types import Finish, Reply
from debate_rollout.engine import (
    EndpointError,
    EngineConfigError,
    Finished,
    Request,
    RetriesExhaustedError,
    RolloutError,
    Weights,
    generate_by_streaming,
    overflow,
)
from debate_rollout.engines.openai import is_near

if TYPE_CHECKING:
    from debate_rollout.engines.openai import OpenAIEngine

Result = TypeVar("Result")


class HttpEngine(ABC):
    """An engine whose replies are coroutines, on an event loop in a thread of its own.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._tickets = itertools.count()
        self._open: dict[int, Future[Reply]] = {}
        self._ended: queue.SimpleQueue[Finished] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @abstractmethod
    async def _reply(self, request: Request) -> Reply:
        """Return the reply to a request."""

    @abstractmethod
    async def _disconnect(self) -> None:
        """Close connections, when all requests have ended."""

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply a request, in order."""
        return generate_by_streaming(self, requests)

    def submit(self, request: Request) -> int:
        """Take a request and return its ticket."""
        if self._loop.is_closed():
            raise EndpointError("the engine is closed")
        ticket = next(self._tickets)
        future = asyncio.run_coroutine_threadsafe(self._reply(request), self._loop)
        self._open[ticket] = future
        future.add_done_callback(lambda done: self._ended.put(_finished(ticket, done)))
        return ticket

    def collect(self, timeout_s: float) -> list[Finished]:
        """Wait until a request has ended or the time is over."""
        deadline = time.monotonic() + timeout_s
        found: list[Finished] = []
        while self._open and not found:
            try:
                ended = [self._ended.get(timeout=max(0.0, deadline - time.monotonic()))]
            except queue.Empty:
                break
            while not self._ended.empty():
                ended.append(self._ended.get_nowait())
            # A cancelled request ends, too, but its ticket is no longer open.
            found = [one for one in ended if self._open.pop(one.ticket, None) is not None]
        return found

    def cancel(self, ticket: int) -> None:
        """Give a request up; its connection is closed."""
        future = self._open.pop(ticket, None)
        if future is not None:
            future.cancel()

    def run(self, work: Coroutine[object, None, Result], timeout_s: float, what: str) -> Result:
        """Wait for a coroutine.

        Raises:
            RolloutError: When it takes longer than `timeout_s`; `what` says what it was.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError as error:
            if future.done():
                raise
            future.cancel()
            raise RolloutError(f"{what}: not done after {timeout_s:g} s") from error

    def close(self) -> None:
        """Cancel what is open, close all connections and end the thread."""
        if not self._thread.is_alive():
            return
        self._open.clear()
        try:
            self.run(_cancel_all(), 30.0, "cancelling requests")
            self.run(self._disconnect(), 30.0, "closing an engine")
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(30.0)
            self._loop.close()


def _finished(ticket: int, done: Future[Reply]) -> Finished:
    try:
        return Finished(ticket, done.result())
    except CancelledError:
        return Finished(ticket, RolloutError("the request was cancelled"))
    except Exception as error:
        return Finished(ticket, error)


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def key_hider(key: str | None) -> Callable[[str], str]:
    """Return what puts `[key]` in place of a key; one as short as EMPTY is no secret and stays."""
    if key is None or len(key) < 8:
        return lambda text: text
    pattern = re.compile(re.escape(key), re.IGNORECASE)
    return lambda text: pattern.sub("[key]", text)


_SURROGATE = re.compile("[\ud800-\udfff]")
_OVERFLOW = re.compile(
    r"context_length_exceeded|maximum context length|context (?:length|window|size) (?:of|is)"
    r"|exceeds? the (?:available |model's )?context|prompt is too long",
    re.IGNORECASE,
)


class UnreadableReply(ValueError):
    """A response that is no chat completion."""


def request_body(config: "OpenAIEngine", request: Request) -> bytes:
    """Return the JSON of a request; settings at their neutral values are left to the endpoint."""
    sampling = request.sampling
    messages = [
        {"role": message["role"], "content": _clean(message["content"])}
        for message in request.turn_request.messages
    ]
    body: dict[str, object] = {**config.extra_body, "model": config.model, "messages": messages}
    changes = {
        "stop": sampling.stop != (),
        "top_p": sampling.top_p < 1,
        "top_k": sampling.top_k > 0,
        "min_p": sampling.min_p > 0,
    }
    for name, value in asdict(sampling).items():
        if changes.get(name, True) and name not in config.leave_out:
            body[config.max_tokens_field if name == "max_tokens" else name] = value
    return json.dumps(body).encode()


def read_reply(content: bytes, request: Request) -> Reply:
    """Return the reply, with the prompt and completion tokens that the endpoint counted.

    Raises:
        UnreadableReply: When this is no chat completion.
    """
    try:
        said = json.loads(content)
    except (ValueError, RecursionError):
        raise UnreadableReply("a response that is no JSON") from None
    try:
        choice = said["choices"][0]
        content_of_it = choice["message"].get("content")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise UnreadableReply("a response without choices[0].message") from None
    text, finish = _ended(_clean(_text_of(content_of_it)), choice, request)
    used = said.get("usage")
    counts = used if isinstance(used, dict) else {}
    names = ("prompt_tokens", "completion_tokens")
    read, sampled = (n if isinstance(n := counts.get(k), int) and n > 0 else 0 for k in names)
    return Reply(
        text,
        finish=finish,
        temperature=request.sampling.temperature,
        counted=(read, sampled) if read or sampled else None,
    )


def _ended(text: str, choice: dict[str, object], request: Request) -> tuple[str, Finish]:
    """Return the text, and why it ended: endpoints say `stop` of end tokens and stop strings."""
    reason = choice.get("finish_reason")
    if reason == "content_filter":
        return "", "end"
    if reason == "length":
        return text, "length"
    stops = request.sampling.stop
    if any(stop and text.endswith(stop) for stop in stops):
        return text, "stop"
    by = choice.get("stop_reason")  # vLLM and others say which stop string it was.
    if isinstance(by, str) and by in stops:
        return text + by, "stop"
    names_stop = "stop_reason" in choice
    return text, "stop" if stops and not names_stop and reason == "stop" else "end"


def _text_of(content: object) -> str:
    """Return the text of a message; some endpoints give it in parts, and none for a refusal."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def _clean(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot write."""
    return _SURROGATE.sub("�", text)


_LOG = logging.getLogger(__name__)
_CONNECT_S = 10.0
"""Longest wait for a connection."""
_SILENT_TRIES = 2
"""Tries of a request that end without a reply in time: each costs `timeout_s`."""
_SHOWN = 300
"""Characters of a response that an error shows."""
_PASSING = frozenset((408, 409, 425, 429))
"""Statuses below 500 that may be gone at the next try."""


class _Passing(Exception):
    """A failure that may be gone at the next try."""

    def __init__(self, message: str, pause_s: float = 0.0, is_silence: bool = False) -> None:
        super().__init__(message)
        self.pause_s = pause_s
        self.is_silence = is_silence


class OpenAISampler(HttpEngine):
    """Asks an endpoint for replies, many at once, each as soon as there is room.

    Endpoints cut the stop string off. Replies have text only; what the endpoint refuses to say is
    empty, and a prompt that it finds too long has finish `context_overflow`.
    """

    renderer = None
    context_window: int | None = None

    def __init__(self, config: "OpenAIEngine", key: str | None) -> None:
        self.capabilities = config.capabilities
        self._config = config
        self._url = f"{config.base_url}/chat/completions"
        self._hide = key_hider(key)
        self._slots = asyncio.Semaphore(config.max_in_flight)
        authorization = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._client = httpx.AsyncClient(
            headers={"Content-Type": "application/json", **authorization},
            follow_redirects=False,
            timeout=httpx.Timeout(None, connect=_CONNECT_S),  # A try as a whole is timed.
            trust_env=not is_near(urlsplit(config.base_url).hostname or ""),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
        )
        self._said = ""
        super().__init__("openai")

    def __repr__(self) -> str:
        return f"OpenAISampler({self._config.model!r} at {self._config.base_url})"

    def load(self, weights: Weights) -> None:
        """Refuse: an endpoint serves its own weights."""
        raise EngineConfigError("the openai engine serves what its endpoint serves: no weights")

    async def _disconnect(self) -> None:
        await self._client.aclose()

    async def _reply(self, request: Request) -> Reply:
        body, silent, longest = request_body(self._config, request), 0, self._config.longest_pause_s
        for tries in itertools.count(1):
            try:
                async with self._slots:
                    return await self._in_time(body, request)
            except _Passing as error:
                # The exponent is bounded: a large number of tries is no large number.
                doubled = self._config.backoff_s * 2.0 ** min(tries - 1, 30)
                pause = max(error.pause_s, min(doubled, longest))
                silent += error.is_silence
                if tries > self._config.retries or silent == _SILENT_TRIES:
                    why = f"{error}; gave up after try {tries}"
                    raise RetriesExhaustedError(f"{self._url}: {why}") from None
                if pause > longest:
                    why = f"{error}; asks {pause:.0f} s, longer than longest_pause_s ({longest:g})"
                    raise RetriesExhaustedError(f"{self._url}: {why}") from None
                self._say_retry(error, pause, tries + 1)
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    def _say_retry(self, error: Exception, pause: float, tries: int) -> None:
        """Log a retry; many requests that fail alike at once are one line."""
        of = self._config.retries + 1
        said = f"{urlsplit(self._url).netloc}: {error}; try {tries} of {of} in {pause:g} s"
        if said != self._said:
            self._said = said
            _LOG.warning("%s", said)

    async def _in_time(self, body: bytes, request: Request) -> Reply:
        try:
            async with asyncio.timeout(self._config.timeout_s):
                response = await self._client.post(self._url, content=body)
        except TimeoutError:
            late = f"no reply within {self._config.timeout_s:g} s"
            raise _Passing(late, is_silence=True) from None
        except httpx.HTTPError as error:
            raise _Passing(f"{type(error).__name__}: {self._shown(str(error))}") from None
        if not response.is_success:
            return self._failed(response, request)
        try:
            reply = read_reply(response.content, request)
        except UnreadableReply as error:
            raise _Passing(f"{error}: {self._shown(response.text)}") from None
        return replace(reply, text=self._hide(reply.text))

    def _failed(self, response: httpx.Response, request: Request) -> Reply:
        status = response.status_code
        where, said = f"{self._url}: status {status}", self._shown(response.text)
        if status in _PASSING or status >= 500:
            raise _Passing(f"status {status}: {said}", _asked_pause(response.headers))
        if status in (401, 403):  # Its text may repeat a part of the key.
            name = self._config.api_key_env
            said = "no key was sent" if name is None else f"the key in {name} was refused"
            raise EndpointError(f"{where}: {said} for model {self._config.model!r}")
        if 300 <= status < 400:
            raise EndpointError(f"{where}: it points to another address; write that in base_url")
        if _OVERFLOW.search(response.text):
            return overflow(request)
        raise EndpointError(f"{where} for model {self._config.model!r}: {said}")

    def _shown(self, text: str) -> str:
        """Return the start of a response, without the key and without control characters."""
        text = self._hide(text).strip()
        return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


def _asked_pause(headers: httpx.Headers) -> float:
    """Return the seconds of Retry-After; 0 without one, and where it is a date."""
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return 0.0
    return seconds if seconds > 0 else 0.0  # Not a number compares as false.
