"""Requests on an event loop in a thread; keys are blanked and proxies passed by."""

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest

from debate_protocol.types import Reply
from debate_rollout.engine import EndpointError
from debate_rollout.engines import OpenAIEngine
from debate_rollout.engines.endpoints import HttpEngine, key_hider
from debate_rollout.engines.vllm.control import ServerCalls, is_healthy
from debate_rollout.testing import turn_request

KEY = "sk-proj-Zq7Rk2Wm9Xv4Tb6Yc1Nd8Hf3Jg5"


class Background(HttpEngine):
    """Its requests are the work itself."""

    async def _reply(self, request: Any) -> Reply:
        awaited: Reply = await request
        return awaited

    async def _disconnect(self) -> None:
        pass


@pytest.fixture
def background() -> Iterator[Any]:
    engine = Background("test")
    yield engine
    engine.close()


async def reply(text: str, after_s: float = 0.0) -> Reply:
    await asyncio.sleep(after_s)
    return Reply(text=text, finish="end")


def test_collect_returns_each_request_once_as_it_ends(background: Any) -> None:
    slow = background.submit(reply("slow", 0.2))
    quick = background.submit(reply("quick"))
    first = background.collect(5.0)
    assert [
        (finished.ticket, finished.outcome.text)
        for finished in first
        if isinstance(finished.outcome, Reply)
    ] == [(quick, "quick")]
    assert [finished.ticket for finished in background.collect(5.0)] == [slow]
    assert background.collect(5.0) == []  # nothing is open: at once


def test_cancel_ends_the_work_and_hides_the_ticket(background: Any) -> None:
    ended = threading.Event()

    async def work() -> Reply:
        try:
            await asyncio.sleep(30.0)
        finally:
            ended.set()
        return Reply(text="", finish="end")

    given_up = background.submit(work())
    quick = background.submit(reply("kept", 0.05))
    background.cancel(given_up)
    background.cancel(given_up)
    assert [finished.ticket for finished in background.collect(5.0)] == [quick]
    assert background.collect(0.05) == []
    assert ended.wait(5.0)


def test_close_ends_open_work_and_the_thread() -> None:
    engine: Any = Background("to-close")
    for _ in range(100):
        engine.submit(reply("never", 30.0))
    engine.close()
    engine.close()
    assert "to-close" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(EndpointError, match="the engine is closed"):
        engine.submit(None)


@pytest.mark.parametrize("echo", [KEY, f"Bearer {KEY}", KEY.upper()])
def test_key_is_blanked_when_it_is_written(echo: str) -> None:
    hide = key_hider(KEY)
    for before, after in (("", ""), ("Your key is ", ", thank you.")):
        hidden = hide(f"{before}{echo}{after}")
        assert KEY.lower() not in hidden.lower()
        assert "[key]" in hidden
        assert hidden.startswith(before)
        assert hidden.endswith(after)
    assert KEY not in repr(hide)


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
