"""vLLM servers as one engine: shares, deaths, returns, and replies by the weights asked for."""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from tests.rollout.vllm_stand_in import Json, Router, StandIn, serving

from debate_protocol.forms import Direct
from debate_protocol.types import Question
from debate_rollout.drivers import play
from debate_rollout.engine import (
    EndpointError,
    EngineConfigError,
    Reply,
    Request,
    Sampling,
    Weights,
)
from debate_rollout.engines import VllmServerEngine
from debate_rollout.engines.vllm.model import OtherWeightsError
from debate_rollout.pacing import FreeRunning
from debate_rollout.testing import turn_request

SESSIONS = 24
REQUESTS = [Request(turn_request(), Sampling(max_tokens=1, seed=k), (1, 2)) for k in range(40)]


def open_pool(
    opened: ExitStack, narrow: Any, tokenizer: Any, servers: list[StandIn], **settings: Any
) -> Any:
    urls = [opened.enter_context(serving(server)) for server in servers]
    settings = {"reconnect_timeout_s": 20.0, **settings}
    engine = VllmServerEngine(urls=urls, **settings).open(narrow, tokenizer)
    opened.callback(engine.close)
    return engine


def requests(round_: int) -> list[Request]:
    """One of each session; its prompt begins with the session's number."""
    return [
        Request(
            turn_request(), Sampling(max_tokens=1, seed=31 * k + round_), (k, round_), session=k
        )
        for k in range(SESSIONS)
    ]


def shares(servers: list[StandIn]) -> list[set[int]]:
    sessions_of = []
    for server in servers:
        sessions_of.append({prompt[0] for prompt in server.asked if len(prompt) == 2})
    return sessions_of


def contents(replies: list[Reply]) -> list[tuple[tuple[int, ...], int]]:
    return [(reply.token_ids, reply.weight_version) for reply in replies]


def test_session_stays_with_its_server_and_shares_are_even(
    opened: ExitStack, narrow: Any, byte_bpe: Any
) -> None:
    servers = [StandIn(), StandIn(), StandIn()]
    engine = open_pool(opened, narrow, byte_bpe, servers)
    for round_ in range(4):
        engine.generate(requests(round_))
    sessions_of = shares(servers)
    assert sorted(chain.from_iterable(sessions_of)) == list(range(SESSIONS))
    assert [len(server) for server in sessions_of] == [SESSIONS // 3] * 3
    # Sessions without a number are given to whoever has least to do.
    engine.generate([Request(turn_request(), Sampling(max_tokens=1), (1,)) for _ in range(6)])
    assert all(server.asked for server in servers)


class Mortal(StandIn):
    """Ends within some requests and starts again after some refused ones.

    Not by the clock: on a busy machine each try of a request would meet another end.
    """

    def __init__(self, rng: random.Random, may_end: Callable[[], bool]) -> None:
        self._rng = rng
        self._may_end = may_end
        self._lock = threading.Lock()
        self.ends = 0
        super().__init__(delay_s=0.01)

    def start_again(self) -> None:
        """Forget what was loaded, and draw the next life."""
        super().start_again()
        self._requests_left = self._rng.randint(10, 60)
        self._refusals_left = self._rng.randint(0, 4)

    def answer(self, path: str, sent: Json) -> tuple[int, Json]:
        """Return status and JSON, or refuse."""
        with self._lock:
            if self.is_killed:
                self._refusals_left -= 1
                if self._refusals_left < 0:
                    self.start_again()
            elif path == "/inference/v1/generate":
                self._requests_left -= 1
                if self._requests_left < 0 and self._may_end():
                    self.ends += 1
                    self.kill()
        return super().answer(path, sent)


def test_servers_that_die_and_return_leave_no_trace_in_replies(
    opened: ExitStack, narrow: Any, byte_bpe: Any
) -> None:
    weights = [Weights(v, narrow.state_dict()) for v in range(1, 9)]

    def trained(engine: Any) -> list[tuple[tuple[int, ...], int]]:
        replies = contents(engine.generate(requests(0)))
        for number, loaded in enumerate(weights):
            engine.load(loaded)
            for round_ in (1, 2, 3):
                replies += contents(engine.generate(requests(10 * number + round_)))
        return replies

    calm = trained(open_pool(opened, narrow, byte_bpe, [StandIn() for _ in range(2)]))
    engine: Any = None

    def are_all_up() -> bool:
        return engine is not None and len(engine._pool.up) == 2

    servers = [Mortal(random.Random(seed), are_all_up) for seed in range(2)]
    engine = open_pool(opened, narrow, byte_bpe, [*servers])
    replies = trained(engine)
    assert replies == calm
    assert {version for _, version in replies} == set(range(9))
    while sum(server.ends for server in servers) < 8:
        later = contents(engine.generate(requests(0)))
        assert [ids for ids, _ in later] == [ids for ids, _ in calm[:SESSIONS]]


def test_server_that_returns_is_given_adapters(
    opened: ExitStack, narrow: Any, byte_bpe: Any, adapter: Any
) -> None:
    servers = [StandIn(), StandIn()]
    engine = open_pool(opened, narrow, byte_bpe, servers, max_lora_rank=8)
    engine.load(adapter(narrow, 1)[1])
    before = [set(server.adapters) for server in servers]
    assert before[0] == before[1]
    assert len(before[0]) == 1
    servers[0].start_again()
    assert {version for _, version in contents(engine.generate(requests(0)))} == {1}
    deadline = time.monotonic() + 60
    while servers[0].adapters != before[0] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert servers[0].adapters == before[0]


@pytest.mark.parametrize("labels", [["7-of-another-run"], ["7-of-another-run", "default"]])
def test_servers_that_another_run_has_loaded_are_given_the_start_again(
    opened: ExitStack, narrow: Any, byte_bpe: Any, labels: list[str]
) -> None:
    servers = [StandIn() for _ in labels]
    for server, label in zip(servers, labels, strict=True):
        server.label = label
    engine = open_pool(opened, narrow, byte_bpe, servers)
    assert {server.label for server in servers} == {engine._served.label} != {"7-of-another-run"}
    assert {version for _, version in contents(engine.generate(requests(0)))} == {0}
    servers[0].label = "8-of-another-run"
    with pytest.raises(EngineConfigError, match="has another run's weights; expected the base"):
        open_pool(opened, narrow, byte_bpe, servers, max_lora_rank=8)


def test_server_that_hangs_is_stood_in_for(
    opened: ExitStack, narrow: Any, byte_bpe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("debate_rollout.engines.vllm.server.LOAD_TIMEOUT_S", 2.0)

    class Hanging(StandIn):
        goes_on = threading.Event()

        def answer(self, path: str, sent: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            assert self.goes_on.wait(20)
            return super().answer(path, sent)

    hanging = Hanging()
    other = StandIn()
    hanging.goes_on.set()
    engine = open_pool(opened, narrow, byte_bpe, [hanging, other], reconnect_timeout_s=0.2)
    opened.callback(hanging.goes_on.set)
    hanging.goes_on.clear()
    runs = [Direct(style="compact").start(Question(f"q{k}", "?"), seed=k) for k in range(4)]
    driver = FreeRunning(timeout_s=1.0)
    assert len(play(runs, engine, max_tokens=1, driver=driver)) == 4
    assert len(engine._pool.up) == 1
    hanging.goes_on.set()
    until_up(engine, 2)
    hanging.goes_on.clear()
    engine.load(Weights(1, narrow.state_dict()))
    assert len(engine._pool.up) == 1
    assert other.label == engine._served.label
    hanging.goes_on.set()
    until_up(engine, 2)
    assert hanging.label == other.label


def until_up(engine: Any, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(engine._pool.up) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(engine._pool.up) == count


def test_too_few_servers_are_waited_for_and_then_end_the_run(
    opened: ExitStack, narrow: Any, byte_bpe: Any
) -> None:
    servers = [StandIn(), StandIn()]
    engine = open_pool(opened, narrow, byte_bpe, servers, min_servers=2, reconnect_timeout_s=0.5)
    engine.generate(requests(0))
    servers[1].kill()
    with pytest.raises(EndpointError, match=r"1 of 2 vLLM servers serve; expected at least 2"):
        engine.generate(requests(1))
    servers[1].start_again()
    until_up(engine, 2)
    assert Counter(version for _, version in contents(engine.generate(requests(2)))) == {
        0: SESSIONS
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "http://a:1", "urls": ["http://b:1"]}, "urls: set together with url"),
        (
            {"urls": ["http://127.0.0.1:1", "http://b:1", "http://localhost:1/"]},
            "found http://127.0.0.1:1 and http://localhost:1, which are one server",
        ),
        ({"urls": ["http://a:1", "http://b:1"], "transfer": "nccl"}, "found nccl with several"),
        (
            {"servers": 2, "devices": "0,1", "vllm_args": {"tensor_parallel_size": 2}},
            "devices: found 0,1 for 2 servers, each of 2 GPUs",
        ),
    ],
)
def test_pool_that_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VllmServerEngine(**settings)


def death_of(process: Any) -> None:
    """Kill a server that was started here, as the system does that has no memory left."""
    tasks = Path(f"/proc/{process._supervisor.pid}/task/{process._supervisor.pid}/children")
    for child in tasks.read_text().split():
        os.killpg(int(child), signal.SIGKILL)


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_real_servers_are_killed_and_started_again(
    tiny_model: Any, byte_bpe: Any, count: int
) -> None:
    models = [tiny_model(byte_bpe, seed=seed, window=256) for seed in (0, 1)]
    small: Any = {"enforce_eager": True, "kv_cache_mib": 64, "max_batch": 8}
    engine = VllmServerEngine(servers=count, **small).open(models[0], byte_bpe)
    try:
        engine.load(Weights(1, models[1].state_dict()))
        sent = [
            Request(turn_request(), Sampling(max_tokens=240, seed=k), (5 + k, 9), session=k)
            for k in range(12)
        ]
        calm = contents(engine.generate(sent))
        shares = Counter(id(member) for member, _ in engine._pool._assignments.values())
        assert sorted(shares.values()) == [12 // count] * count
        # Killed while it answers.
        tickets = [engine.submit(finished) for finished in sent]
        while not engine._pool.members[0].open:
            time.sleep(0.01)
        time.sleep(0.05)
        assert engine._pool.members[0].open
        death_of(engine._pool.members[0].process)
        ended: dict[int, Any] = {}
        while len(ended) < len(sent):
            ended |= {finished.ticket: finished.outcome for finished in engine.collect(60.0)}
        assert contents([ended[ticket] for ticket in tickets]) == calm
        assert len(engine._pool.up) == count - 1
        engine.load(Weights(2, models[0].state_dict()))
        while len(engine._pool.up) < count:  # A start takes minutes on a slow machine.
            time.sleep(0.1)
        # It has the weights that were loaded while it was away.
        back = contents(engine.generate(sent))
        assert {version for _, version in back} == {2}
        assert back != calm
        assert len({member for member, _ in engine._pool._assignments.values()}) == count
    finally:
        engine.close()


def open_engine(opened: ExitStack, narrow: Any, tokenizer: Any, url: str, **settings: Any) -> Any:
    engine = VllmServerEngine(url=url, reconnect_timeout_s=20.0, **settings).open(narrow, tokenizer)
    opened.callback(engine.close)
    return engine


def behind_a_router(opened: ExitStack) -> tuple[list[StandIn], list[str], str]:
    servers = [StandIn(), StandIn()]
    urls = [opened.enter_context(serving(server)) for server in servers]
    return servers, urls, opened.enter_context(serving(Router(urls)))


def versions(engine: Any) -> dict[int, int]:
    return dict(Counter(reply.weight_version for reply in engine.generate(REQUESTS)))


def test_no_reply_is_by_other_weights_when_servers_stand_behind_a_router(
    opened: ExitStack, narrow: Any, byte_bpe: Any, caplog: pytest.LogCaptureFixture
) -> None:
    servers, urls, router = behind_a_router(opened)
    engine = open_engine(opened, narrow, byte_bpe, router, load_urls=urls)
    assert versions(engine) == {0: 40}
    for version in (1, 2, 3):
        engine.load(Weights(version, narrow.state_dict()))
        assert versions(engine) == {version: 40}
    assert caplog.messages == []
    servers[1].start_again()
    with pytest.raises(OtherWeightsError, match="served weights 'default', expected '3-"):
        versions(engine)
