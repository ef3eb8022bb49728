"""Several vLLM servers as one engine: shares, deaths and returns, of stand-ins and of vLLM."""

import os
import random
import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.rollout.vllm_stand_in import StandIn, serving

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
from debate_rollout.engines.vllm.pool import Pool, PooledServer
from debate_rollout.pacing import FreeRunning
from debate_rollout.testing import turn_request

SESSIONS = 24


def open_pool(
    opened: ExitStack, narrow: Any, tokenizer: Any, servers: list[StandIn], **settings: Any
) -> Any:
    urls = [opened.enter_context(serving(one)) for one in servers]
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
    return [{prompt[0] for prompt in one.asked if len(prompt) == 2} for one in servers]


def said(replies: list[Reply]) -> list[tuple[tuple[int, ...], int]]:
    return [(reply.token_ids, reply.weight_version) for reply in replies]


def test_session_stays_with_its_server_and_shares_are_even(
    opened: ExitStack, narrow: Any, byte_bpe: Any
) -> None:
    servers = [StandIn(), StandIn(), StandIn()]
    engine = open_pool(opened, narrow, byte_bpe, servers)
    for round_ in range(4):
        engine.generate(requests(round_))
    own = shares(servers)
    assert sorted(k for one in own for k in one) == list(range(SESSIONS))
    assert [len(one) for one in own] == [SESSIONS // 3] * 3
    # Sessions without a number are given to whoever has least to do.
    engine.generate([Request(turn_request(), Sampling(max_tokens=1), (1,)) for _ in range(6)])
    assert all(one.asked for one in servers)


def test_session_stays_with_its_engine_where_a_server_has_several() -> None:
    member = PooledServer(None, None, sessions=[0, 0, 0])  # type: ignore[arg-type]
    pool = Pool([member], 1)
    first = [pool.pick(session) for session in range(6)]
    assert [engine for _, engine in first] == [0, 1, 2, 0, 1, 2]
    assert [pool.pick(session) for session in range(6)] == first
    pool.forget_sessions()
    assert pool.pick(5) == (member, 0)


@pytest.mark.parametrize("count", [2, 3])
def test_servers_that_die_and_return_leave_no_trace_in_replies(
    opened: ExitStack, narrow: Any, byte_bpe: Any, count: int
) -> None:
    weights, kills = [Weights(v, narrow.state_dict()) for v in range(1, 9)], 0

    def trained(engine: Any) -> list[tuple[tuple[int, ...], int]]:
        found = said(engine.generate(requests(0)))
        for number, one in enumerate(weights):
            engine.load(one)
            for round_ in (1, 2, 3):
                found += said(engine.generate(requests(10 * number + round_)))
        return found

    calm = trained(open_pool(opened, narrow, byte_bpe, [StandIn() for _ in range(count)]))
    servers = [StandIn(delay_s=0.01) for _ in range(count)]
    engine, is_over = open_pool(opened, narrow, byte_bpe, servers), threading.Event()

    def trouble() -> None:
        nonlocal kills
        rng = random.Random(count)
        while not is_over.wait(rng.uniform(0.05, 0.2)):
            # At most one is down, as one that a cluster starts again.
            one = rng.choice(servers)
            one.kill()
            kills += 1
            time.sleep(rng.uniform(0.0, 0.1))
            one.start_again()
            deadline = time.monotonic() + 60
            while len(engine._pool.up) < count and time.monotonic() < deadline:
                time.sleep(0.01)

    killer = threading.Thread(target=trouble)
    killer.start()
    try:
        found = trained(engine)
        while kills < 10:
            found_again = said(engine.generate(requests(0)))
            assert [ids for ids, _ in found_again] == [ids for ids, _ in calm[:SESSIONS]]
    finally:
        is_over.set()
        killer.join()
    assert found == calm
    assert kills >= 10 and {version for _, version in found} == set(range(9))


def test_server_that_returns_is_given_adapters(
    opened: ExitStack, narrow: Any, byte_bpe: Any, adapter: Any
) -> None:
    servers = [StandIn(), StandIn()]
    engine = open_pool(opened, narrow, byte_bpe, servers, max_lora_rank=8)
    engine.load(adapter(narrow, 1)[1])
    before = [set(one.adapters) for one in servers]
    assert before[0] == before[1] and len(before[0]) == 1
    servers[0].start_again()
    assert {version for _, version in said(engine.generate(requests(0)))} == {1}
    deadline = time.monotonic() + 60
    while servers[0].adapters != before[0] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert servers[0].adapters == before[0]


@pytest.mark.parametrize("labels", [["7-of-another-run"], ["7-of-another-run", "default"]])
def test_servers_that_another_run_has_loaded_are_given_the_start_again(
    opened: ExitStack, narrow: Any, byte_bpe: Any, labels: list[str]
) -> None:
    servers = [StandIn() for _ in labels]
    for one, label in zip(servers, labels, strict=True):
        one.label = label
    engine = open_pool(opened, narrow, byte_bpe, servers)
    assert {one.label for one in servers} == {engine._served.label} != {"7-of-another-run"}
    assert {version for _, version in said(engine.generate(requests(0)))} == {0}
    servers[0].label = "8-of-another-run"
    with pytest.raises(EngineConfigError, match="has another run's weights; expected the base"):
        open_pool(opened, narrow, byte_bpe, servers, max_lora_rank=8)


def test_server_that_hangs_is_stood_in_for(opened: ExitStack, narrow: Any, byte_bpe: Any) -> None:
    class Hanging(StandIn):
        goes_on = threading.Event()

        def answer(self, path: str, sent: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            assert self.goes_on.wait(20)
            return super().answer(path, sent)

    hanging, other = Hanging(), StandIn()
    hanging.goes_on.set()
    limits = {"reconnect_timeout_s": 0.2, "load_timeout_s": 2.0}
    engine = open_pool(opened, narrow, byte_bpe, [hanging, other], **limits)
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
    assert len(engine._pool.up) == 1 and other.label == engine._served.label
    hanging.goes_on.set()
    until_up(engine, 2)
    assert hanging.label == other.label


def until_up(engine: Any, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(engine._pool.up) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(engine._pool.up) == count


def test_time_in_which_servers_answered_is_not_waited(
    opened: ExitStack, narrow: Any, byte_bpe: Any
) -> None:
    # Replies take longer than requests may wait; two of three servers die one after the other.
    servers = [StandIn() for _ in range(3)]
    engine = open_pool(opened, narrow, byte_bpe, servers, reconnect_timeout_s=2.0)
    for one in servers:
        one._delay_s = 2.2
    servers[0].kill()
    last = threading.Timer(3.2, servers[1].kill)
    last.start()
    ended = engine.generate(
        [Request(turn_request(), Sampling(max_tokens=1, seed=1), (7, 8), session=5)]
    )
    last.join()
    assert len(ended) == 1 and len(servers[2].asked) == 3  # Two of them when it was opened.


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
    assert Counter(version for _, version in said(engine.generate(requests(2)))) == {0: SESSIONS}


def test_all_servers_dead_end_the_run_after_the_wait(
    opened: ExitStack, narrow: Any, byte_bpe: Any
) -> None:
    servers = [StandIn(), StandIn()]
    engine = open_pool(opened, narrow, byte_bpe, servers, reconnect_timeout_s=0.3)
    for one in servers:
        one.kill()
    with pytest.raises(EndpointError, match=r"waited 0\.3 s for it \(reconnect_timeout_s\)"):
        engine.generate(requests(0))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "http://a:1", "urls": ["http://b:1"]}, "urls: set together with url"),
        ({"urls": ["http://a:1", "http://a:1"]}, "expected each once"),
        (
            {"urls": ["http://127.0.0.1:1", "http://b:1", "http://localhost:1/"]},
            "found http://127.0.0.1:1 and http://localhost:1, which are one server",
        ),
        ({"urls": ["http://a", "http://A:80"]}, "which are one server"),
        ({"urls": ["http://a:1"], "min_servers": 2}, "min_servers: found 2 of 1"),
        ({"urls": ["http://a:1", "http://b:1"], "transfer": "nccl"}, "found nccl with several"),
        ({"transfer": "nccl", "sleep": True}, "nccl, which joins two GPUs, with sleep"),
        ({"url": "http://a:1", "transfer": "ipc"}, "transfer: found ipc with url"),
        ({"devices": "1", "sleep": True}, "sleep: found true with url, urls or devices"),
        ({"urls": ["http://a:1"], "servers": 2}, "servers: set together with url or urls"),
        ({"servers": 2, "devices": "0,1,2"}, "devices: found 0,1,2 for 2 servers"),
        (
            {"servers": 2, "devices": "0,1", "vllm_args": {"tensor_parallel_size": 2}},
            "devices: found 0,1 for 2 servers, each of 2 GPUs",
        ),
    ],
)
def test_pool_that_cannot_be_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
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
        asked = [
            Request(turn_request(), Sampling(max_tokens=240, seed=k), (5 + k, 9), session=k)
            for k in range(12)
        ]
        calm = said(engine.generate(asked))
        shares = Counter(id(member) for member, _ in engine._pool._assignments.values())
        assert sorted(shares.values()) == [12 // count] * count
        # Killed while it answers.
        tickets = [engine.submit(one) for one in asked]
        while not engine._pool.members[0].open:
            time.sleep(0.01)
        time.sleep(0.05)
        assert engine._pool.members[0].open
        death_of(engine._pool.members[0].process)
        ended: dict[int, Any] = {}
        while len(ended) < len(asked):
            ended |= {one.ticket: one.outcome for one in engine.collect(60.0)}
        assert said([ended[ticket] for ticket in tickets]) == calm
        assert len(engine._pool.up) == count - 1
        engine.load(Weights(2, models[0].state_dict()))
        while len(engine._pool.up) < count:  # A start takes minutes on a slow machine.
            time.sleep(0.1)
        # It has the weights that were loaded while it was away.
        back = said(engine.generate(asked))
        assert {version for _, version in back} == {2} and back != calm
        assert len({member for member, _ in engine._pool._assignments.values()}) == count
    finally:
        engine.close()
