"""Requests to an endpoint over HTTP: a loop in a thread, a hidden key, chat completions."""

import asyncio
import email.utils
import ipaddress
import itertools
import json
import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
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
)

if TYPE_CHECKING:
    from debate_rollout.engines.openai import OpenAIEngine

Result = TypeVar("Result")


class Background:
    """Runs coroutines on its own loop; an engine's `submit`, `collect` and `cancel`."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._tickets = itertools.count()
        self._open: dict[int, Future[Reply]] = {}
        self._ended: queue.SimpleQueue[Finished] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[object, None, Reply]) -> int:
        """Start a request and return its ticket."""
        ticket = next(self._tickets)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._open[ticket] = future
        future.add_done_callback(lambda done: self._ended.put(_finished(ticket, done)))
        return ticket

    def collect(self, timeout_s: float) -> list[Finished]:
        """Return the requests that have ended since the last call, as engines do."""
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
        """Give a request up; `collect` never returns it."""
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

    def close(self, last: Callable[[], Coroutine[object, None, None]] | None = None) -> None:
        """Cancel what is open, run `last` on the loop and end the thread."""
        if not self._thread.is_alive():
            return
        self._open.clear()
        try:
            self.run(_cancel_all(), 30.0, "cancelling requests")
            if last is not None:
                self.run(last(), 30.0, "closing an engine")
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


SHORTEST = 8
"""A shorter key, such as EMPTY, is no secret; and characters that are taken for a part of one."""


class HiddenKey:
    """Blanks one key, and parts of it, in texts; None blanks nothing."""

    def __init__(self, key: str | None) -> None:
        self._key = key if key is not None and len(key) >= SHORTEST else ""
        starts = range(len(self._key) - SHORTEST + 1)
        self._parts = {self._key[k : k + SHORTEST].lower() for k in starts}

    def __call__(self, text: str) -> str:
        """Return the text with `[key]` in place of the key and of its parts, in any case."""
        if not self._key:
            return text
        pieces: list[str] = []
        small, end = text.lower(), 0
        for start in range(len(text) - SHORTEST + 1):
            if small[start : start + SHORTEST] in self._parts:
                if start > end or not pieces:
                    pieces += (text[end:start], "[key]")
                end = start + SHORTEST
        return "".join((*pieces, text[end:]))

    def __repr__(self) -> str:
        """Show nothing of it."""
        return "HiddenKey()"


_SURROGATE = re.compile("[\ud800-\udfff]")
_OVERFLOW = re.compile(
    r"context_length_exceeded|maximum context length|context (?:length|window|size) (?:of|is)"
    r"|exceeds? the (?:available |model's )?context|prompt is too long",
    re.IGNORECASE,
)
_LONGEST_ERROR = 1 << 16


class UnreadableReply(ValueError):
    """A response that is no chat completion."""


def request_body(config: "OpenAIEngine", request: Request) -> bytes:
    """Return the JSON of a request; settings at their neutral values are left to the endpoint."""
    sampling = request.sampling
    messages = [
        {"role": message["role"], "content": _clean(message["content"])}
        for message in request.ask.messages
    ]
    body: dict[str, object] = {**config.extra_body, "model": config.model, "messages": messages}
    fields: dict[str, object] = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
    }
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    if sampling.top_p < 1:
        fields["top_p"] = sampling.top_p
    if sampling.top_k > 0:
        fields["top_k"] = sampling.top_k
    if sampling.min_p > 0:
        fields["min_p"] = sampling.min_p
    for name, value in fields.items():
        if name not in config.leave_out:
            body[config.max_tokens_field if name == "max_tokens" else name] = value
    return json.dumps(body).encode()


def uses_proxies(base_url: str) -> bool:
    """Return whether proxies of the environment are meant: not for an endpoint on this machine."""
    host = urlsplit(base_url).hostname or ""
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost" and not host.endswith(".localhost")


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


def says_overflow(content: bytes) -> bool:
    """Return whether a refused request was refused because its prompt is too long."""
    return _OVERFLOW.search(content[:_LONGEST_ERROR].decode("utf-8", "replace")) is not None


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
MOST_BYTES = 32 << 20
"""A longer response is no reply."""
BYTES_OF_A_TOKEN = 256
"""More than a token of a reply takes in a response, with all that is said about it."""
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

    def __init__(self, config: "OpenAIEngine", key: str | None) -> None:
        self.capabilities = config.capabilities
        self._config = config
        self._url = f"{config.base_url}/chat/completions"
        self._auth = None if key is None else _Bearer(key)
        self._hide = HiddenKey(key)
        self._slots = asyncio.Semaphore(config.max_in_flight)
        self._client = httpx.AsyncClient(
            follow_redirects=False,
            timeout=httpx.Timeout(None, connect=_CONNECT_S),  # A try as a whole is timed.
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
                most = min(MOST_BYTES, (1 << 20) + BYTES_OF_A_TOKEN * request.sampling.max_tokens)
                status, headers, content = await self._post(body, most)
        except TimeoutError:
            late = f"no reply within {self._config.timeout_s:g} s"
            raise _Passing(late, is_silence=True) from None
        except httpx.HTTPError as error:
            raise _Passing(f"{type(error).__name__}: {self._shown(str(error))}") from None
        if not 200 <= status < 300:
            return self._failed(status, headers, content, request)
        try:
            reply = read_reply(content, request)
        except UnreadableReply as error:
            raise _Passing(f"{error}: {self._shown(content)}") from None
        return replace(reply, text=self._hide(reply.text))

    async def _post(self, body: bytes, most: int) -> tuple[int, httpx.Headers, bytes]:
        # A few compressed bytes can hold gigabytes: none are asked for, and none unpacked.
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        async with self._client.stream(
            "POST", self._url, content=body, headers=headers, auth=self._auth
        ) as response:
            is_plain = response.headers.get("content-encoding", "identity") in ("", "identity")
            if response.is_success and not is_plain:
                raise _Passing("a compressed response, which was not asked for")
            content = bytearray()
            async for part in response.aiter_raw():
                content += part
                if len(content) > most:
                    raise _Passing(f"a response of more than {most >> 20} MiB")
            return response.status_code, response.headers, bytes(content)

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
            raise EndpointError(f"{where}: it points to another address; write that in base_url")
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
    return seconds if seconds > 0 else 0.0  # Not a number compares as false.
