"""Servers with vLLM's HTTP contract, and a router that gives them requests in turn."""

import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

Json = dict[str, Any]


class StandIn:
    """What one server serves; replies name the weights that it has."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self._delay_s = delay_s
        self.asked: list[tuple[int, ...]] = []
        self.start_again()

    def start_again(self) -> None:
        """Forget what was loaded, as a process that starts does."""
        self.label = "default"
        self.adapters = set[str]()
        self.loads = 0
        self.is_killed = False

    def kill(self) -> None:
        """Answer nothing more, not what is being answered either."""
        self.is_killed = True

    def answer(self, path: str, sent: Json) -> tuple[int, Json]:
        """Return status and JSON."""
        if path == "/inference/v1/generate":
            time.sleep(self._delay_s)
        if self.is_killed:
            raise ConnectionAbortedError
        if path == "/v1/models":
            names = ["model", *sorted(self.adapters)]
            return 200, {"data": [{"id": name, "max_model_len": 256} for name in names]}
        if path == "/weight_info":
            return 200, {"weight_version": self.label}
        if path == "/inference/v1/generate":
            return self._reply(sent)
        if path == "/finish_weight_update" and sent.get("weight_version"):
            self.label, self.loads = sent["weight_version"], self.loads + 1
        if path == "/v1/load_lora_adapter":
            self.adapters.add(sent["lora_name"])
        if path == "/v1/unload_lora_adapter":
            if sent["lora_name"] not in self.adapters:
                return 404, {"error": "no such adapter"}
            self.adapters.remove(sent["lora_name"])
        return 200, {"success": True}

    def _reply(self, sent: Json) -> tuple[int, Json]:
        if sent["model"] not in {"model", *self.adapters}:
            return 404, {"error": f"The model {sent['model']} does not exist."}
        self.asked.append(tuple(sent["token_ids"]))
        by = sent["sampling_params"].get("temperature", 1.0)
        likely = [{"logprob": -1.0 - k / by} for k in range(4)]
        token_id = 5 + sent["sampling_params"]["seed"] % 7
        token = {"token_id": token_id, "logprob": -1.0, "top_logprobs": likely}
        choice = {
            "token_ids": [token_id], "finish_reason": "length", "stop_reason": None,
            "logprobs": {"content": [token]},
            "weight_versions": [{"version": self.label, "start": 0, "end": 1}],
        }  # fmt: skip
        return 200, {"choices": [choice]}


class Router:
    """Gives requests to servers in turn; one that does not answer makes a 502."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self._turns = itertools.count()

    def answer(self, path: str, sent: Json) -> tuple[int, Json]:
        """Return what the next server answers."""
        url = self.urls[next(self._turns) % len(self.urls)]
        method = "GET" if path in ("/health", "/v1/models", "/weight_info") else "POST"
        try:
            answered = httpx.request(method, url + path, json=sent, trust_env=False)
        except httpx.TransportError:
            return 502, {}
        return answered.status_code, answered.json()


@contextmanager
def serving(
    server_state: StandIn | Router, port: int = 0, host: str = "127.0.0.1"
) -> Iterator[str]:
    """Serve it, on a port if one is given; gives its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
            status, answer = server_state.answer(self.path.partition("?")[0], sent)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *_: object) -> None:
            """Say nothing of clients that went away."""

    server = Server((host, port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
