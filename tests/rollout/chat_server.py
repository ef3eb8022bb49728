"""A small chat-completions endpoint on this machine, which behaves as a test tells it to."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Headers = dict[str, str]


@dataclass
class Answer:
    """One response; `status` 0 closes the connection without one."""

    status: int = 200
    body: Any = ""
    headers: Headers = field(default_factory=dict)
    after_s: float = 0.0
    drips: bool = False
    """Whether the body comes a byte at a time, `after_s` apart."""


@dataclass
class Seen:
    """What was asked."""

    path: str
    headers: Headers
    body: dict[str, Any]


def said(text: Any, finish: str | None = "stop", **choice: Any) -> Answer:
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
    return Answer(
        body={
            "id": "chat-1",
            "object": "chat.completion",
            "created": 1,
            "model": "any",
            "choices": [{"index": 0, "message": message, "finish_reason": finish, **choice}],
            "usage": usage,
        }
    )


class Endpoint:
    """Answers with `behave(number of the request from 0, what was asked)`.

    `models` is the answer to a request for its list of models, which `num_lists` counts.
    """

    def __init__(self, behave: Callable[[int, Seen], Answer]) -> None:
        self.behave = behave
        self.seen: list[Seen] = []
        self.models = Answer(404)
        self.num_lists = 0
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()

    def answer(self, sent: Seen) -> Answer:
        with self._lock:
            self.seen.append(sent)
            number = len(self.seen) - 1
        return self.behave(number, sent)

    def entered(self, change: int) -> None:
        with self._lock:
            self._at_once += change
            self.most_at_once = max(self.most_at_once, self._at_once)


def _handler(endpoint: Endpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            endpoint.entered(+1)
            try:
                self._respond()
            finally:
                endpoint.entered(-1)

        def do_GET(self) -> None:
            endpoint.num_lists += 1
            self._send(endpoint.models if self.path == "/v1/models" else Answer(404))

        def _respond(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._send(endpoint.answer(Seen(self.path, dict(self.headers), body)))

        def _send(self, answer: Answer) -> None:
            if answer.after_s and not answer.drips:
                time.sleep(answer.after_s)
            if answer.status == 0:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            content = answer.body
            if not isinstance(content, bytes):
                content = (content if isinstance(content, str) else json.dumps(content)).encode()
            self.send_response(answer.status)
            for name, value in {"Content-Length": str(len(content)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            for byte in [content[k : k + 1] for k in range(len(content))] if answer.drips else ():
                self.wfile.write(byte)
                self.wfile.flush()
                time.sleep(answer.after_s)
            if not answer.drips:
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: Any) -> None:
        """Say nothing of clients that went away."""


@contextmanager
def serving(endpoint: Endpoint) -> Iterator[str]:
    """Serve an endpoint; gives its base_url."""
    server = _Server(("127.0.0.1", 0), _handler(endpoint))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
