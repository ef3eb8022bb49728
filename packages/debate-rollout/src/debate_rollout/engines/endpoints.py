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
    overflow,
)
from debate_rollout.engines.openai import is_near
from debate_rollout.engines.vllm.settings import LOWEST_TEMPERATURE, refuse_raised_temperature

if TYPE_CHECKING:
    from debate_rollout.engines.openai import OpenAIEngine

Result = TypeVar("Result")

_LOG = logging.getLogger(__name__)
_CONNECT_S = 10.0
# An endpoint that asks for a longer pause ends the request.
LONGEST_PAUSE_S = 60.0
"""Longest wait for a connection."""
_CLOSE_S = 30.0
"""Longest wait for the end of the loop's work, for each step of closing."""
_MOST_SILENT_TRIES = 2
"""Most tries of a request without a reply in time: each costs `timeout_s`."""
_SHOWN_CHARACTERS = 300
"""Length of a response in an error."""
_RETRIED_STATUSES = frozenset((408, 409, 425, 429))
"""Statuses below 500 of failures that pass."""
# A shorter key would be replaced in the middle of ordinary words.
_SHORTEST_SECRET = 8
# Of the pause between tries; without a bound the power overflows.
_MOST_DOUBLINGS = 30
_SURROGATE = re.compile("[\ud800-\udfff]")
_OVERFLOW = re.compile(
    r"context_length_exceeded|maximum (?:context|prompt) length"
    r"|context (?:length|window|size) (?:of|is)|longer than the model's context"
    r"|exceeds? the (?:available |model's )?context|exceeds the maximum number of tokens"
    r"|`inputs` (?:tokens \+|must have)|reduce the length of the messages"
    r"|(?:prompt|input) is too long",
    re.IGNORECASE,
)


class HttpEngine(ABC):
    """An engine with an event loop in a thread, for replies over HTTP.

    Args:
        name: Name of the thread.
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
        """Sample the reply to a request."""

    @abstractmethod
    async def _disconnect(self) -> None:
        """Close connections, when all requests have ended."""

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Sample a reply for each request, in order."""
        return generate_by_streaming(self, requests)

    def submit(self, request: Request) -> int:
        """Start a request and return a ticket."""
        if self._loop.is_closed():
            raise EndpointError("the engine is closed")
        ticket = next(self._tickets)

        def put_outcome(ended: Future[Reply]) -> None:
            outcome: Reply | Exception
            try:
                outcome = ended.result()
            except CancelledError:
                outcome = RolloutError("the request was cancelled")
            except Exception as error:
                outcome = error
            self._ended.put(Finished(ticket, outcome))

        future = asyncio.run_coroutine_threadsafe(self._reply(request), self._loop)
        self._open[ticket] = future
        # It runs in the loop's thread, so it only puts into a queue.
        future.add_done_callback(put_outcome)
        return ticket

    def collect(self, timeout_s: float) -> list[Finished]:
        """Wait until a request has ended or the time is over."""
        deadline = time.monotonic() + timeout_s
        finished: list[Finished] = []
        while self._open and not finished:
            remaining_s = max(0.0, deadline - time.monotonic())
            try:
                ended = [self._ended.get(timeout=remaining_s)]
            except queue.Empty:
                break
            while not self._ended.empty():
                ended.append(self._ended.get_nowait())
            # A cancelled request ends, too, but its ticket is no longer open.
            for outcome in ended:
                if self._open.pop(outcome.ticket, None) is not None:
                    finished.append(outcome)
        return finished

    def cancel(self, ticket: int) -> None:
        """Give a request up and close the connection."""
        future = self._open.pop(ticket, None)
        if future is not None:
            future.cancel()

    def run(self, work: Coroutine[object, None, Result], timeout_s: float, what: str) -> Result:
        """Wait for a coroutine.

        Raises:
            RolloutError: The work, called `what`, takes longer than `timeout_s`.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError as error:
            # A coroutine that has ended raised this itself: no work of ours is overdue.
            if future.done():
                raise
            future.cancel()
            raise RolloutError(f"{what}: not done after {timeout_s:g} s") from error

    def close(self) -> None:
        """Cancel open requests, close all connections and end the thread."""
        if not self._thread.is_alive():
            return
        self._open.clear()

        async def cancel_all() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        try:
            self.run(cancel_all(), _CLOSE_S, "cancelling requests")
            self.run(self._disconnect(), _CLOSE_S, "closing an engine")
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CLOSE_S)
            self._loop.close()


def key_hider(key: str | None) -> Callable[[str], str]:
    """Build a function that replaces a key by `[key]`.

    A key as short as `EMPTY` is no secret, and may occur in ordinary text.
    """
    if key is None or len(key) < _SHORTEST_SECRET:
        return lambda text: text
    pattern = re.compile(re.escape(key), re.IGNORECASE)
    return lambda text: pattern.sub("[key]", text)


class UnreadableReply(ValueError):
    """A response without a chat completion in it."""


def request_body(config: "OpenAIEngine", request: Request) -> bytes:
    """Encode a request as JSON; neutral settings are left out, as some endpoints refuse them."""
    sampling = request.sampling
    messages = [
        {"role": message["role"], "content": _clean(message["content"])}
        for message in request.turn_request.messages
    ]
    settings: dict[str, object] = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
    }
    if sampling.top_p < 1:
        settings["top_p"] = sampling.top_p
    if sampling.top_k > 0:
        settings["top_k"] = sampling.top_k
    if sampling.min_p > 0:
        settings["min_p"] = sampling.min_p
    if sampling.stop:
        settings["stop"] = sampling.stop
    settings["seed"] = sampling.seed
    body: dict[str, object] = {**config.extra_body, "model": config.model, "messages": messages}
    for name, value in settings.items():
        if name not in config.leave_out:
            field = config.max_tokens_field if name == "max_tokens" else name
            body[field] = value
    return json.dumps(body).encode()


def read_reply(content: bytes, request: Request) -> Reply:
    """Parse a chat completion, with the endpoint's count of prompt and completion tokens.

    Raises:
        UnreadableReply: The response is no chat completion.
    """
    try:
        completion = json.loads(content)
    except (ValueError, RecursionError):
        raise UnreadableReply("a response that is no JSON") from None
    try:
        choice = completion["choices"][0]
        message_content = choice["message"].get("content")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise UnreadableReply("a response without choices[0].message") from None
    text, finish = _read_finish(_clean(_content_text(message_content)), choice, request)
    usage = completion.get("usage")
    if not isinstance(usage, dict):
        usage = {}
    num_prompt = _read_count(usage.get("prompt_tokens"))
    num_sampled = _read_count(usage.get("completion_tokens"))
    return Reply(
        text,
        finish=finish,
        temperature=request.sampling.temperature,
        counted=(num_prompt, num_sampled) if num_prompt or num_sampled else None,
    )


def _read_count(count: object) -> int:
    return count if isinstance(count, int) and count > 0 else 0


def serves_vllm(content: bytes) -> bool:
    """Say whether a list of models (`/models`) comes from vLLM."""
    try:
        models = json.loads(content)["data"]
        # vLLM names itself as the owner of all models that it serves.
        return any(model.get("owned_by") == "vllm" for model in models)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return False


def _read_finish(text: str, choice: dict[str, object], request: Request) -> tuple[str, Finish]:
    """Parse the cause of the reply's end, and restore a stop string that was cut off."""
    reason = choice.get("finish_reason")
    # Text before a filter's cut would count as the policy's own answer.
    if reason == "content_filter":
        return "", "end"
    if reason == "length":
        return text, "length"
    stops = request.sampling.stop
    if any(stop and text.endswith(stop) for stop in stops):
        return text, "stop"
    stop_string = choice.get("stop_reason")  # vLLM and others name the stop string here.
    if isinstance(stop_string, str) and stop_string in stops:
        return text + stop_string, "stop"
    # Endpoints say `stop` of end tokens, too. Where they name no stop string, one is assumed.
    if stops and reason == "stop" and "stop_reason" not in choice:
        return text, "stop"
    return text, "end"


def _content_text(content: object) -> str:
    """Join the text of a message."""
    if isinstance(content, str):
        return content
    # A refusal may have no content.
    if not isinstance(content, list):
        return ""
    # Some endpoints send the text in parts, beside parts of other kinds.
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def _clean(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode."""
    return _SURROGATE.sub("�", text)


class _RetriableError(Exception):
    """A failure that may pass until the next try."""

    def __init__(self, message: str, pause_s: float = 0.0, is_silence: bool = False) -> None:
        super().__init__(message)
        self.pause_s = pause_s
        self.is_silence = is_silence


class OpenAISampler(HttpEngine):
    """Samples from an endpoint, with at most `max_in_flight` requests at once.

    Endpoints cut the stop string off. Replies have text only. A refusal of the endpoint's content
    filter is an empty reply; a prompt beyond the context window has finish `context_overflow`.
    """

    renderer = None
    context_window: int | None = None

    def __init__(self, config: "OpenAIEngine", key: str | None) -> None:
        self.capabilities = config.capabilities
        self._config = config
        self._url = f"{config.base_url}/chat/completions"
        # A model may repeat the key, and so may an error of the endpoint.
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
        self._last_warning = ""
        self._is_vllm: bool | None = None
        """None until a temperature asks for it."""
        super().__init__("openai")

    def __repr__(self) -> str:
        return f"OpenAISampler({self._config.model!r} at {self._config.base_url})"

    def load(self, weights: Weights) -> None:
        """Refuse: an endpoint serves weights from elsewhere."""
        raise EngineConfigError("the openai engine serves what its endpoint serves: no weights")

    async def _disconnect(self) -> None:
        await self._client.aclose()

    async def _reply(self, request: Request) -> Reply:
        temperature = request.sampling.temperature
        # vLLM raises lower temperatures in silence: the replies would be of another temperature.
        is_low = 0 < temperature < LOWEST_TEMPERATURE
        if is_low and "temperature" not in self._config.leave_out and await self._asks_vllm():
            refuse_raised_temperature(temperature)
        body = request_body(self._config, request)
        num_silent = 0
        for num_tries in itertools.count(1):
            try:
                async with self._slots:
                    return await self._in_time(body, request)
            except _RetriableError as error:
                num_doublings = min(num_tries - 1, _MOST_DOUBLINGS)
                backoff_s = min(self._config.backoff_s * 2.0**num_doublings, LONGEST_PAUSE_S)
                pause_s = max(error.pause_s, backoff_s)
                num_silent += error.is_silence
                if num_tries > self._config.retries or num_silent == _MOST_SILENT_TRIES:
                    raise RetriesExhaustedError(
                        f"{self._url}: {error}; gave up after try {num_tries}"
                    ) from None
                if pause_s > LONGEST_PAUSE_S:
                    raise RetriesExhaustedError(
                        f"{self._url}: {error}; asks {pause_s:.0f} s, longer than "
                        f"{LONGEST_PAUSE_S:g} s"
                    ) from None
                self._warn_of_retry(error, pause_s, num_tries + 1)
            # Outside the slot: another request may be sent meanwhile.
            await asyncio.sleep(pause_s)
        raise AssertionError("unreachable")

    async def _asks_vllm(self) -> bool:
        """Ask the endpoint once; without an answer it counts as another server."""
        if self._is_vllm is None:
            try:
                async with asyncio.timeout(self._config.timeout_s):
                    response = await self._client.get(f"{self._config.base_url}/models")
                self._is_vllm = response.is_success and serves_vllm(response.content)
            except (TimeoutError, httpx.HTTPError):
                self._is_vllm = False
        return self._is_vllm

    def _warn_of_retry(self, error: Exception, pause_s: float, next_try: int) -> None:
        """Log a retry; requests that fail alike at once share a line."""
        host = urlsplit(self._url).netloc
        most_tries = self._config.retries + 1
        warning = f"{host}: {error}; try {next_try} of {most_tries} in {pause_s:g} s"
        if warning != self._last_warning:
            self._last_warning = warning
            _LOG.warning("%s", warning)

    async def _in_time(self, body: bytes, request: Request) -> Reply:
        try:
            async with asyncio.timeout(self._config.timeout_s):
                response = await self._client.post(self._url, content=body)
        except TimeoutError:
            raise _RetriableError(
                f"no reply within {self._config.timeout_s:g} s", is_silence=True
            ) from None
        except httpx.HTTPError as error:
            raise _RetriableError(f"{type(error).__name__}: {self._shown(str(error))}") from None
        if not response.is_success:
            return self._read_failure(response, request)
        try:
            reply = read_reply(response.content, request)
        except UnreadableReply as error:
            raise _RetriableError(f"{error}: {self._shown(response.text)}") from None
        return replace(reply, text=self._hide(reply.text))

    def _read_failure(self, response: httpx.Response, request: Request) -> Reply:
        status = response.status_code
        where = f"{self._url}: status {status}"
        excerpt = self._shown(response.text)
        if status in _RETRIED_STATUSES or status >= 500:
            raise _RetriableError(f"status {status}: {excerpt}", _retry_after_s(response.headers))
        if status in (401, 403):  # The response may repeat a part of the key: it is not shown.
            key_name = self._config.api_key_env
            cause = "no key was sent" if key_name is None else f"the key in {key_name} was refused"
            raise EndpointError(f"{where}: {cause} for model {self._config.model!r}")
        if 300 <= status < 400:
            raise EndpointError(f"{where}: it points to another address; write that in base_url")
        if _OVERFLOW.search(response.text):
            return overflow(request)
        raise EndpointError(f"{where} for model {self._config.model!r}: {excerpt}")

    def _shown(self, text: str) -> str:
        """Shorten a response, without the key and without control characters."""
        text = self._hide(text).strip()
        if len(text) > _SHOWN_CHARACTERS:
            text = text[: _SHOWN_CHARACTERS - 1] + "…"
        return repr(text)


def _retry_after_s(headers: httpx.Headers) -> float:
    """Parse the seconds of Retry-After; 0 without one or for a date."""
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return 0.0
    return seconds if seconds > 0 else 0.0  # NaN compares as false.
