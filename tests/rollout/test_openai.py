"""The openai engine against a real server on this machine, its settings and its key."""

import asyncio
import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from tests.rollout.chat_server import Answer, Endpoint, Seen, said, serving

from debate_protocol.forms import Simultaneous
from debate_protocol.types import Question, Reply
from debate_rollout.drivers import play
from debate_rollout.engine import (
    EndpointError,
    EngineConfigError,
    EngineFailure,
    Request,
    Sampling,
    Weights,
)
from debate_rollout.engines.endpoints import HttpEngine, OpenAISampler, key_hider
from debate_rollout.engines.openai import OpenAIEngine
from debate_rollout.engines.vllm.control import ServerCalls, is_healthy
from debate_rollout.testing import Bench, check_engine, turn_request

KEY = "k3y-of-the-test-0123456789abcdef"
SAMPLING = Sampling(max_tokens=7, temperature=0.5, seed=3)
Behave = Callable[[int, Seen], Answer]
# As vLLM 0.32 lists what it serves.
VLLM_MODELS = {
    "object": "list",
    "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "vllm", "root": "m"}],
}
SECRET = "sk-" + "0123456789abcdef" * 2


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def opened(behave: Behave, **settings: Any) -> Iterator[tuple[Any, Endpoint]]:
    endpoint = Endpoint(behave)
    quick = {"backoff_s": 0.01, "retries": 2, "model": "m"}
    with serving(endpoint) as url:
        engine = OpenAIEngine(base_url=url, **(quick | settings)).open()
        try:
            yield engine, endpoint
        finally:
            engine.close()


def in_turn(*answers: Answer) -> Behave:
    """Each answer once, then the last again."""
    return lambda number, _: answers[min(number, len(answers) - 1)]


def request(sampling: Sampling = SAMPLING, text: str = "2 + 3?") -> Request:
    return Request(turn_request(text), sampling)


def failure_of(engine: Any) -> str:
    """The message a request ends with; nothing about it shows the key."""
    with pytest.raises(EndpointError) as caught:
        engine.generate([request()])
    printed = "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))
    assert KEY not in printed
    assert caught.value.__cause__ is None
    return str(caught.value)


def test_temperature_is_refused_when_the_endpoint_is_vllm_and_would_raise_it() -> None:
    cold = [request(replace(SAMPLING, temperature=0.005, seed=seed)) for seed in range(3)]
    lowest = [request(replace(SAMPLING, temperature=value)) for value in (0.0, 0.01)]
    with opened(in_turn(said("5"))) as (engine, endpoint):
        endpoint.models = Answer(body=VLLM_MODELS)
        assert [reply.text for reply in engine.generate(lowest)] == ["5", "5"]
        assert endpoint.num_lists == 0
        for _ in range(2):
            with pytest.raises(
                EngineConfigError, match=r"found 0\.005, which vLLM samples at 0\.01"
            ):
                engine.generate(cold[:1])
        assert (endpoint.num_lists, len(endpoint.seen)) == (1, 2)
    with opened(in_turn(said("5")), leave_out=("temperature",)) as (engine, endpoint):
        endpoint.models = Answer(body=VLLM_MODELS)
        assert len(engine.generate(cold)) == 3


def test_request_says_what_the_ask_and_its_sampling_say() -> None:
    with opened(in_turn(said("5")), extra_body={"reasoning_effort": "low"}) as (engine, endpoint):
        (reply,) = engine.generate([request()])
        (sent,) = endpoint.seen
        assert sent.path == "/v1/chat/completions"
        assert sent.headers["Authorization"] == f"Bearer {KEY}"
        assert sent.body == {
            "model": "m",
            "messages": [{"role": "user", "content": "2 + 3?"}],
            "max_tokens": 7,
            "temperature": 0.5,
            "seed": 3,
            "reasoning_effort": "low",
        }
        assert reply == Reply("5", "end", temperature=0.5)
        engine.generate([request(replace(SAMPLING, stop=("!",), top_p=0.9, top_k=4, min_p=0.1))])
        cut = {"stop": ["!"], "top_p": 0.9, "top_k": 4, "min_p": 0.1}
        assert endpoint.seen[1].body == sent.body | cut


@pytest.mark.parametrize(
    ("answer", "text", "finish"),
    [
        (said("a", "length"), "a", "length"),
        (said("a", "stop", stop_reason="</c>"), "a</c>", "stop"),  # vLLM tells them apart
        (said("a</c>", "stop"), "a</c>", "stop"),
        (said("a", None), "a", "end"),
        (said(None), "", "stop"),
        (said("a\ud83d"), "a\ufffd", "stop"),
    ],
)
def test_reply_says_how_it_ended(answer: Answer, text: str, finish: str) -> None:
    with opened(in_turn(answer)) as (engine, _):
        (reply,) = engine.generate([request(replace(SAMPLING, stop=("</c>",)))])
    assert (reply.text, reply.finish, reply.token_ids) == (text, finish, ())


@pytest.mark.parametrize(
    ("status", "message", "is_overflow"),
    [
        (400, "This model's maximum context length is 512 tokens.", True),  # OpenAI, vLLM
        (400, "The input (9 tokens) is longer than the model's context length (5 tokens).", True),
        (400, "the request exceeds the available context size, try increasing it", True),
        (400, "The input token count (9) exceeds the maximum number of tokens allowed (5).", True),
        (400, "This model's maximum prompt length is 5 but the request contains 9 tokens", True),
        (400, "Please reduce the length of the messages or completion.", True),  # Groq
        (400, "prompt is too long: 9 tokens > 5 maximum", True),
        (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 5.", True),
        (422, "Input validation error: `inputs` must have less than 5 tokens. Given: 9", True),
        (422, "Input validation error: `max_new_tokens` must be <= 5.", False),
        (
            400,
            "max_tokens is too large: 9. This model supports at most 5 completion tokens.",
            False,
        ),
    ],
)
def test_prompt_beyond_the_window_is_a_failed_turn_on_every_server(
    status: int, message: str, is_overflow: bool
) -> None:
    with opened(in_turn(Answer(status, {"error": {"message": message}}))) as (engine, _):
        if not is_overflow:
            assert "for model 'm'" in failure_of(engine)
            return
        (reply,) = engine.generate([request()])
    assert (reply.text, reply.finish) == ("", "context_overflow")


@pytest.mark.parametrize(
    "passing",
    [
        Answer(500, "down"),
        Answer(429, {"error": "slow down"}),
        Answer(0),
        Answer(200, {"error": {"message": "overloaded"}}),
        Answer(200, "short", {"Content-Length": "99", "Connection": "close"}),
    ],
    ids=lambda answer: f"{answer.status}-{str(answer.body)[:12]}",
)
def test_failure_that_may_pass_is_tried_again(passing: Answer) -> None:
    answers = (passing,) * 5
    with opened(in_turn(*answers, said("5")), timeout_s=30) as (engine, endpoint):
        assert failure_of(engine).endswith("gave up after try 3")
        assert len(endpoint.seen) == 3
        assert engine.generate([request()])[0].text == "5"
        assert len(endpoint.seen) == 6


def test_pause_is_as_long_as_the_endpoint_asks() -> None:
    wait = Answer(429, "later", {"Retry-After": "0.4"})
    with opened(in_turn(wait, said("5"))) as (engine, _):
        began = time.monotonic()
        assert engine.generate([request()])[0].text == "5"
        assert time.monotonic() - began >= 0.4
    for told in ("3600", "inf"):
        long = Answer(503, "later", {"Retry-After": told})
        with opened(in_turn(long)) as (engine, endpoint):
            assert "longer than 60 s" in failure_of(engine)
            assert len(endpoint.seen) == 1
    for told in ("soon", "-5", "nan", "Fri, 01 Jan 2100 00:00:00 GMT"):
        with opened(in_turn(Answer(503, "", {"Retry-After": told}), said("5"))) as (engine, _):
            assert engine.generate([request()])[0].text == "5"


@pytest.mark.parametrize("drips", [False, True])
def test_try_ends_when_the_reply_is_slow(drips: bool) -> None:
    slow = replace(said("5"), after_s=0.1 if drips else 5.0, drips=drips)
    with opened(in_turn(slow, said("6")), timeout_s=0.3) as (engine, _):
        assert engine.generate([request()])[0].text == "6"
    with opened(in_turn(slow), timeout_s=0.2, retries=0) as (engine, _):
        began = time.monotonic()
        assert "no reply within 0.2 s" in failure_of(engine)
        assert time.monotonic() - began < 2


def test_wrong_key_is_named_by_its_variable_and_never_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    refusal = Answer(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}})
    with opened(in_turn(refusal)) as (engine, endpoint):
        assert "status 401: the key in OPENAI_API_KEY was refused" in failure_of(engine)
        assert len(endpoint.seen) == 1  # it is not tried again
        form = Simultaneous(num_agents=2, max_rounds=1)
        with pytest.raises(EngineFailure, match=r"round 0: .*OPENAI_API_KEY was refused") as caught:
            play([form.start(Question("q", "?"), seed=0)], engine, max_tokens=5)
        assert KEY not in "".join(traceback.format_exception(caught.value))
        assert KEY not in repr(engine) + repr(vars(engine)) + repr(vars(engine._client))
    assert KEY not in caplog.text


def test_redirect_is_not_followed() -> None:
    other = Endpoint(in_turn(said("5")))
    with serving(other) as elsewhere:
        away = Answer(307, "", {"Location": f"{elsewhere}/chat/completions"})
        with opened(in_turn(away)) as (engine, endpoint):
            assert "points to another address" in failure_of(engine)
            assert (len(endpoint.seen), len(other.seen)) == (1, 0)


def test_no_more_requests_are_at_the_endpoint_than_allowed() -> None:
    with opened(in_turn(replace(said("5"), after_s=0.05)), max_in_flight=3) as (engine, endpoint):
        assert len(engine.generate([request()] * 12)) == 12
        assert endpoint.most_at_once == 3


def test_openai_engine_conforms_until_its_endpoint_dies() -> None:
    dead = threading.Event()

    def behave(*_: Any) -> Answer:
        return Answer(0) if dead.is_set() else said("one two three")

    with opened(behave) as (engine, _):
        results = check_engine(Bench(engine, kill=dead.set))
        assert engine.capabilities == OpenAIEngine().capabilities == {"streams"}
        with pytest.raises(EngineConfigError, match="no weights"):
            engine.load(Weights(1, {}))
    passed = {name for name, result in results.items() if result == "passed"}
    assert {"one reply a request, in order", "cancellation", "death is named"} <= passed


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"api_key_env": SECRET}, "expected the name of an environment variable"),
        ({"base_url": "https://evil.example/v1"}, "`api_key_host: evil.example` to send it"),
        ({"base_url": "api.host/v1"}, "expected an address such as"),
        ({"base_url": f"https://me:{SECRET}@host/v1"}, "found a user, a query"),
        ({"extra_body": {"api_key": "abc"}}, "looks like a secret"),
        ({"extra_body": {"temperature": 0}}, "temperature is set by the recipe"),
        ({"api_key": SECRET}, "Extra inputs"),
    ],
)
def test_settings_that_hold_a_secret_or_cannot_work_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        OpenAIEngine(model="m", **settings)
    assert SECRET not in str(caught.value)
    assert "gsk_" not in str(caught.value)


def test_open_reads_the_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    config = OpenAIEngine(model="m", api_key_env="OPENAI_API_KEY")
    with pytest.raises(EngineConfigError, match="variable OPENAI_API_KEY is not set"):
        config.open()
    monkeypatch.setenv("OPENAI_API_KEY", f"{SECRET}\n")  # as read from a file
    config.open().close()
    assert SECRET not in repr(config) + config.model_dump_json()
    for wrong in (f"{SECRET} {SECRET}", f"{SECRET}\r\nX-More: 1", f"“{SECRET}”"):
        monkeypatch.setenv("OPENAI_API_KEY", wrong)
        with pytest.raises(EngineConfigError, match="holds characters that no key has") as caught:
            config.open()
        assert SECRET not in str(caught.value)


def test_open_sends_no_key_unencrypted_over_the_internet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    for host in ("example.org", "93.184.216.34", "[2606:2800:21f::1]", "localhost.example.org"):
        with pytest.raises(EngineConfigError, match="unencrypted"):
            OpenAIEngine(
                model="m", base_url=f"http://{host}/v1", api_key_host=host.strip("[]")
            ).open()
    OpenAIEngine(model="m", base_url="http://example.org/v1", api_key_env=None).open().close()
    for host in ("localhost:8000", "node7", "10.0.0.3", "[::1]:8000", "llm.svc.cluster.local"):
        OpenAIEngine(model="m", base_url=f"http://{host}/v1").open().close()


ECHOED_KEY = "sk-test-4Xq9Lw2Zr7Tn5Vb8Mc3Kd6Hj"
ECHO_REQUEST = Request(turn_request("2 + 3?"), Sampling(max_tokens=8))


@pytest.fixture
def echo_endpoint() -> Endpoint:
    return Endpoint(lambda number, request: said("5"))


@pytest.fixture
def engine_of_echo(
    echo_endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OpenAISampler]:
    monkeypatch.setenv("OPENAI_API_KEY", ECHOED_KEY)
    with serving(echo_endpoint) as url:
        opened = OpenAIEngine(base_url=url, model="m", retries=0).open()
        yield opened
        opened.close()


@pytest.mark.slow
@pytest.mark.parametrize("echo", [ECHOED_KEY, ECHOED_KEY.upper()])
def test_key_is_blanked_in_replies_and_errors_when_an_endpoint_echoes_it(
    echo: str, echo_endpoint: Endpoint, engine_of_echo: OpenAISampler
) -> None:
    echo_endpoint.behave = lambda number, request: said(f"<solution>{echo}</solution>")
    (reply,) = engine_of_echo.generate([ECHO_REQUEST])
    assert reply.text == "<solution>[key]</solution>"
    for answer in (Answer(400, {"error": f"bad key {echo}"}), Answer(500, f"bad key {echo}")):
        echo_endpoint.behave = lambda number, request, answer=answer: answer
        with pytest.raises(EndpointError, match=r"bad key \[key\]") as caught:
            engine_of_echo.generate([ECHO_REQUEST])
        assert echo not in str(caught.value)


HIDDEN_KEY = "sk-proj-Zq7Rk2Wm9Xv4Tb6Yc1Nd8Hf3Jg5"


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


@pytest.mark.parametrize("echo", [HIDDEN_KEY, f"Bearer {HIDDEN_KEY}", HIDDEN_KEY.upper()])
def test_key_is_blanked_when_it_is_written(echo: str) -> None:
    hide = key_hider(HIDDEN_KEY)
    for before, after in (("", ""), ("Your key is ", ", thank you.")):
        hidden = hide(f"{before}{echo}{after}")
        assert HIDDEN_KEY.lower() not in hidden.lower()
        assert "[key]" in hidden
        assert hidden.startswith(before)
        assert hidden.endswith(after)
    assert HIDDEN_KEY not in repr(hide)


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


@pytest.mark.parametrize("status", [400, 404, 422, 500])
def test_response_in_an_error_is_cut_and_holds_no_key(status: int) -> None:
    body = "x" * 280 + KEY + "\x1b[31m" + "y" * 9999  # the cut would leave a part of the key
    with opened(in_turn(Answer(status, body)), retries=0) as (engine, _):
        message = failure_of(engine)
    assert KEY[:8] not in message
    assert "\x1b" not in message
    assert len(message) < 500
