"""A proxy of the environment is not asked for servers on this machine."""

import ast
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from debate_rollout.engines import OpenAIEngine
from debate_rollout.engines.vllm.control import ServerCalls, is_healthy
from debate_rollout.testing import turn_request

PACKAGES = Path(__file__).parents[2] / "packages"


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(b'{"world_size": 3}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(b'{"choices": [{"message": {"content": "here"}}]}')

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve on this machine, where the environment names a proxy that nobody runs."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.lower(), "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with HTTPServer(("127.0.0.1", 0), _Answers) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_servers_on_this_machine_answer_when_the_environment_names_a_proxy(server: str) -> None:
    with pytest.raises(httpx.ConnectError):  # What the proxy makes of a call that asks it.
        httpx.get(server)
    assert is_healthy(server)
    calls = ServerCalls(server, {}, timeout_s=5.0)
    assert calls.workers() == 3
    calls.name_version("1")
    engine = OpenAIEngine(base_url=server, model="m", api_key_env=None, retries=0).open()
    try:
        from debate_rollout.engine import Request, Sampling

        (reply,) = engine.generate([Request(turn_request(), Sampling(max_tokens=4))])
    finally:
        engine.close()
    assert reply.text == "here"


def test_every_http_client_of_the_packages_says_whether_it_takes_proxies() -> None:
    makers = {"get", "post", "request", "stream", "Client", "AsyncClient"}
    found = []
    for path in PACKAGES.glob("*/src/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if not is_call or getattr(node.func.value, "id", "") != "httpx":
                continue
            if node.func.attr in makers:
                found.append((path.name, "trust_env" in {key.arg for key in node.keywords}))
    assert len(found) >= 4 and all(says for _, says in found), found
