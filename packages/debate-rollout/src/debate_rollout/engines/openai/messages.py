"""Chat completions as JSON: what a request says, and what a response means."""

import ipaddress
import json
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from debate_protocol.types import Finish, Reply
from debate_rollout.engine import Request

if TYPE_CHECKING:
    from debate_rollout.engines.openai.settings import OpenAISettings

_SURROGATE = re.compile("[\ud800-\udfff]")
_OVERFLOW = re.compile(
    r"context_length_exceeded|maximum context length|context (?:length|window|size) (?:of|is)"
    r"|exceeds? the (?:available |model's )?context|prompt is too long",
    re.IGNORECASE,
)
_LONGEST_ERROR = 1 << 16


class UnreadableReply(ValueError):
    """A response that is no chat completion."""


def request_body(config: "OpenAISettings", request: Request) -> bytes:
    """Return the JSON of a request; settings at their neutral values are left to the endpoint."""
    sampling = request.sampling
    messages = [
        {"role": message["role"], "content": _clean(message["content"])}
        for message in request.ask.messages
    ]
    body: dict[str, object] = {**config.extra_body, "model": config.model, "messages": messages}
    if "max_tokens" not in config.leave_out:
        body[config.max_tokens_field] = sampling.max_tokens
    if "temperature" not in config.leave_out:
        body["temperature"] = sampling.temperature
    if "seed" not in config.leave_out:
        body["seed"] = sampling.seed
    if sampling.stop and "stop" not in config.leave_out:
        body["stop"] = list(sampling.stop)
    if sampling.top_p < 1:
        body["top_p"] = sampling.top_p
    if sampling.top_k > 0:
        body["top_k"] = sampling.top_k
    if sampling.min_p > 0:
        body["min_p"] = sampling.min_p
    return json.dumps(body).encode()


def uses_proxies(base_url: str) -> bool:
    """Return whether proxies of the environment are meant: not for an endpoint on this machine."""
    host = urlsplit(base_url).hostname or ""
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost" and not host.endswith(".localhost")


def read_reply(content: bytes, request: Request) -> tuple[Reply, int, int]:
    """Return the reply, and the prompt and completion tokens that the endpoint counted.

    Raises:
        UnreadableReply: When this is no chat completion.
    """
    try:
        said = json.loads(content)
    except (ValueError, RecursionError):
        raise UnreadableReply("a response that is no JSON") from None
    choices = said.get("choices") if isinstance(said, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, dict) else None
    if not isinstance(first, dict) or not isinstance(message, dict):
        raise UnreadableReply("a response without choices[0].message")
    text = _clean(_text_of(message.get("content")))
    text, finish = _ended(text, first, request)
    used = said.get("usage")
    counts = used if isinstance(used, dict) else {}
    read, sampled = _count(counts.get("prompt_tokens")), _count(counts.get("completion_tokens"))
    reply = Reply(
        text,
        finish=finish,
        temperature=request.sampling.temperature,
        counted=(read, sampled) if read or sampled else None,
    )
    return reply, read, sampled


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
    by = choice.get("stop_reason")  # vLLM and others say which stop string it was
    if isinstance(by, str) and by in stops:
        return text + by, "stop"
    names_stop = "stop_reason" in choice
    return text, "stop" if stops and not names_stop and reason == "stop" else "end"


def _text_of(content: object) -> str:
    """Return the text of a message; some endpoints give it in parts, and none for a refusal."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return ""


def _clean(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot write."""
    return _SURROGATE.sub("�", text)


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
