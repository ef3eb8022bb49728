"""Debates under way: in lock-step and free running, paced, and failures that are named."""

import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debate_protocol.forms import Direct, SelfDebate, Sequential, Simultaneous
from debate_protocol.types import (
    DebateRun,
    Gate,
    GateDecision,
    Protocol,
    Question,
    Reply,
    Transcript,
    Turn,
    TurnRequest,
)
from debate_rollout.drivers import DriverConfig, FreeRunning, LockStep, play, play_each
from debate_rollout.engine import (
    Capability,
    EngineConfigError,
    EngineFailure,
    Finished,
    Request,
    Sampling,
    Weights,
    generate_by_streaming,
)
from debate_rollout.engines import ScriptedEngine
from debate_rollout.pacing import CacheRoom, CacheUse
from debate_rollout.rendering import Rendered
from debate_rollout.routing import HeardEngine, RoutedEngine
from debate_rollout.testing import turn_request

FREE = FreeRunning(timeout_s=5.0)


def form(name: str, rounds: int, agents: int = 2, gate_after: int | None = None) -> DebateRun:
    """A debate in which all agents speak in every round; ends at a gate that says keep."""
    question = Question(name, name)
    turns: list[Turn] = []
    for round_ in range(rounds):
        turn_requests = [
            replace(turn_request(name, agent), question=question, round=round_, stop=("!",))
            for agent in range(agents)
        ]
        replies = yield turn_requests
        for asked_turn, reply in zip(turn_requests, replies, strict=True):
            assert isinstance(reply, Reply)
            turns.append(Turn(asked_turn.agent, round_, reply.text, reply=reply))
        if round_ == gate_after:
            so_far = Transcript(name, question, Protocol(agents, rounds), tuple(turns))
            decision = yield Gate(so_far)
            if decision == "keep":
                break
    return Transcript(name, question, Protocol(agents, rounds), tuple(turns))


class Watched:
    """An engine that notes its calls; it fails where it is told to."""

    capabilities: frozenset[Capability] = frozenset(("seeds",))
    renderer = None
    context_window = None

    def __init__(self, fail: Any = lambda call, requests: False) -> None:
        self.calls: list[list[Request]] = []
        self.fail = fail

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        self.calls.append(list(requests))
        if self.fail(len(self.calls), requests):
            raise RuntimeError("lost the device")
        return [
            Reply(
                f"{r.turn_request.question.id}.{r.turn_request.agent}.{r.turn_request.round}",
                prompt_ids=r.prompt_ids,
            )
            for r in requests
        ]

    def load(self, weights: Any) -> None:
        raise AssertionError("a driver never loads weights")

    def close(self) -> None:
        raise AssertionError("a driver never closes an engine")


def test_play_sends_every_open_ask_in_one_call_when_debates_differ_in_length() -> None:
    engine = Watched()
    transcripts = play([form("a", 1), form("b", 3), form("c", 2)], engine, max_tokens=9)
    assert [t.id for t in transcripts] == ["a", "b", "c"]
    assert [len(call) for call in engine.calls] == [6, 4, 2]  # 2 asks for each debate still open
    texts = [turn.text for turn in transcripts[1].turns]
    assert texts == ["b.0.0", "b.1.0", "b.0.1", "b.1.1", "b.0.2", "b.1.2"]


def test_play_takes_sampling_from_the_ask_unless_it_is_replaced() -> None:
    def one_ask() -> DebateRun:
        yield [replace(turn_request(), temperature=0.6, stop=("!",), seed=5, max_tokens=3)]
        return Transcript("t", Question("q", "q"), Protocol(1), ())

    engine = Watched()
    play([one_ask()], engine, max_tokens=9)
    play([form("a", 1)], engine, max_tokens=9, sampling={"temperature": 0.0, "top_p": 0.9})
    by_turn = engine.calls[0][0].sampling
    replaced = engine.calls[1][0].sampling
    assert (by_turn.temperature, by_turn.stop, by_turn.seed, by_turn.max_tokens) == (
        0.6,
        ("!",),
        5,
        3,
    )
    assert (replaced.temperature, replaced.top_p, replaced.max_tokens) == (0.0, 0.9, 9)
    with pytest.raises(EngineConfigError, match=r"temprature.*did you mean 'temperature'"):
        play([form("a", 1)], engine, max_tokens=9, sampling={"temprature": 1.0})


def test_play_asks_select_once_for_all_gates_when_the_batch_has_reached_them() -> None:
    gates_of_calls: list[list[str]] = []

    def select(gates: Sequence[Gate]) -> list[GateDecision]:
        gates_of_calls.append([gate.question.id for gate in gates])
        return [{"a": "keep", "b": "drop"}.get(gate.question.id, "go_on") for gate in gates]  # type: ignore[misc]

    runs = [form("a", 3, gate_after=1), form("b", 3, gate_after=0), form("c", 3, gate_after=0),
            form("d", 2)]  # fmt: skip
    transcripts = play(runs, Watched(), max_tokens=9, select=select)
    assert gates_of_calls == [["a", "b", "c"]]  # b and c wait for a's second round
    assert [(t.id, len(t.turns)) for t in transcripts] == [("a", 4), ("c", 6), ("d", 4)]


def test_play_tries_each_request_alone_when_a_batch_fails() -> None:
    engine = Watched(fail=lambda call, requests: len(requests) > 1)
    transcripts = play([form("a", 1), form("b", 1)], engine, max_tokens=9)
    assert [t.turns[1].text for t in transcripts] == ["a.1.0", "b.1.0"]
    assert [len(call) for call in engine.calls] == [4, 1, 1, 1, 1]


def test_play_names_the_turn_when_the_engine_fails_twice() -> None:
    def on_b_1(call: int, requests: Sequence[Request]) -> bool:
        return any(
            r.turn_request.question.id == "b" and r.turn_request.agent == 1 for r in requests
        )

    with pytest.raises(
        EngineFailure, match=r"debate 1 \(question 'b'\), agent 1, round 0: .*lost the device"
    ):
        play([form("a", 1), form("b", 1)], Watched(fail=on_b_1), max_tokens=9)


def say(turn_request: TurnRequest) -> str:
    """A reply that depends on everything the agent was told, and is a failed turn at times."""
    told = zlib.crc32(repr((turn_request.messages, turn_request.seed)).encode())
    if told % 7 == 0:
        return "lost for words"
    votes = "Agent 0 > Agent 1" if told % 2 else "Agent 1 = Agent 0"
    return (
        f"<solution>{told % 3} \\boxed{{{told % 3}}}</solution><evaluation>{told}</evaluation>"
        f"<comparison>{votes}</comparison>"
    )


class Streaming:
    """A streaming engine without a clock: `order` picks what ends next, faults are told by ask."""

    capabilities: frozenset[Capability] = frozenset(("seeds", "streams"))
    renderer = None
    context_window = None

    def __init__(
        self,
        order: random.Random | None = None,
        fault: Callable[[Request, int], Exception | str | None] = lambda request, tries: None,
    ) -> None:
        self.open: dict[int, Request] = {}
        self.tries: dict[tuple[str, int, int, int], int] = {}
        self.given = 0
        self.most_debates = 0
        self.cancelled = 0
        self._order = order
        self._fault = fault

    def submit(self, request: Request) -> int:
        self.given += 1
        self.open[self.given] = request
        debates = (
            {r.turn_request.question.id for r in self.open.values()} if len(self.open) < 100 else ()
        )
        self.most_debates = max(self.most_debates, len(debates))
        return self.given

    def collect(self, timeout_s: float) -> list[Finished]:
        tickets = list(self.open)
        if self._order is not None and tickets:
            tickets = self._order.sample(tickets, self._order.randint(1, len(tickets)))
        return list(chain.from_iterable(map(self._end, tickets)))

    def _end(self, ticket: int) -> Iterator[Finished]:
        request = self.open[ticket]
        turn_request = request.turn_request
        key = (turn_request.question.id, turn_request.agent, turn_request.round, turn_request.seed)
        fault = self._fault(request, self.tries.get(key, 0) + 1)
        if fault == "hangs":
            return
        del self.open[ticket]
        self.tries[key] = self.tries.get(key, 0) + 1
        yield Finished(ticket, fault if isinstance(fault, Exception) else Reply(say(turn_request)))

    def cancel(self, ticket: int) -> None:
        request = self.open.pop(ticket, None)
        if request is not None:
            turn_request = request.turn_request
            key = (
                turn_request.question.id,
                turn_request.agent,
                turn_request.round,
                turn_request.seed,
            )
            self.tries[key] = self.tries.get(key, 0) + 1
            self.cancelled += 1

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        return generate_by_streaming(self, requests)

    def load(self, weights: Weights) -> None:
        raise AssertionError("a driver never loads weights")

    def close(self) -> None:
        raise AssertionError("a driver never closes an engine")


def mixed_runs(count: int) -> list[DebateRun]:
    """Debates of four forms; half of them stop at gates."""
    forms = (
        Simultaneous(num_agents=3, max_rounds=3, gate_after=(0, 1)),
        Sequential(num_agents=3, max_rounds=2, on_failure="abort"),
        SelfDebate(first_turns=3, second_turns=2),
        Direct(),
    )
    return [
        forms[k % 4].start(Question(f"q{k}", f"What is {k}?"), seed=k, debate_id=str(k))
        for k in range(count)
    ]


def choose(gates: Sequence[Gate]) -> list[GateDecision]:
    """Depends on the whole batch and on the order in which it is given."""
    decisions: tuple[GateDecision, ...] = ("go_on", "keep", "drop")
    checksum = zlib.crc32(repr([(g.transcript.id, g.name, g.turns) for g in gates]).encode())
    return [decisions[(checksum + k) % 3] for k in range(len(gates))]


def replies_of(transcript: Transcript) -> list[str | None]:
    return [turn.reply and turn.reply.text for turn in transcript.turns]


def played(engine: Any, driver: DriverConfig, count: int = 11) -> list[Any]:
    transcripts = play(mixed_runs(count), engine, max_tokens=9, select=choose, driver=driver)
    return [(transcript, replies_of(transcript)) for transcript in transcripts]


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 12))
def test_play_gives_lock_step_s_transcripts_when_replies_come_in_any_order(
    seed: int, in_flight: int
) -> None:
    batch = ScriptedEngine().open(script=say)
    expected = played(batch, LockStep())
    driver = FreeRunning(in_flight=in_flight, timeout_s=5.0)
    for other_driver in (driver, LockStep()):
        assert played(Streaming(random.Random(seed)), other_driver) == expected


def rounds(name: str, count: int, ended: list[str] | None = None) -> DebateRun:
    """One agent that speaks `count` times."""
    question = Question(name, name)
    try:
        for round_ in range(count):
            yield [TurnRequest(question, 0, round_, ({"role": "user", "content": name},))]
    finally:
        if ended is not None:
            ended.append(name)
    return Transcript(name, question, Protocol(1, count), ())


def gated(name: str) -> DebateRun:
    transcript = Transcript(name, Question(name, name), Protocol(1), ())
    yield [TurnRequest(transcript.question, 0, 0, ())]
    yield Gate(transcript)
    yield []
    return transcript


def test_play_lets_quick_debates_end_when_another_is_slow() -> None:
    class Slow(Streaming):
        def collect(self, timeout_s: float) -> list[Finished]:
            quick = [t for t, r in self.open.items() if r.turn_request.question.id != "slow"]
            return list(chain.from_iterable(map(self._end, quick or list(self.open))))

    runs = [rounds("slow", 1), rounds("a", 3), rounds("b", 2)]
    results = play_each(runs, Slow(), max_tokens=9, driver=FREE)
    assert [transcript.id for _, transcript in results] == ["b", "a", "slow"]


def test_play_holds_the_limit_and_leaves_out_debates_at_gates() -> None:
    engine = Streaming()
    gates: list[int] = []

    def all_go_on(open_gates: Sequence[Gate]) -> list[GateDecision]:
        gates.append(len(open_gates))
        return ["go_on"] * len(open_gates)

    runs = [gated(f"g{k}") for k in range(5)] + [rounds(f"r{k}", 4) for k in range(5)]
    driver = FreeRunning(in_flight=2)
    open_gates = play(runs, engine, max_tokens=9, select=all_go_on, driver=driver)
    assert len(open_gates) == 10
    assert gates == [5]
    assert engine.most_debates == 2


def test_no_more_debates_begin_than_the_engine_s_cache_holds() -> None:
    """Two agents: prompts of 20 tokens a round that both read and 5 of their own, replies of 10."""

    class Pages:
        def render(self, turn_request: TurnRequest) -> Rendered:
            return Rendered(
                (9,) * 20 * (turn_request.round + 1) + (turn_request.agent,) * 5, extended=False
            )

    class Cached(Streaming):
        renderer = Pages()
        room = CacheRoom(215)

        def _end(self, ticket: int) -> Iterator[Finished]:
            under_way.append(len({open_request.session for open_request in self.open.values()}))
            yield from (
                Finished(finished.ticket, Reply("", token_ids=(1,) * 10))
                for finished in super()._end(ticket)
            )

    forms = [Simultaneous(num_agents=2, max_rounds=3) for _ in range(40)]

    def runs() -> list[DebateRun]:
        return [form.start(Question(f"q{k}", "?"), seed=k) for k, form in enumerate(forms)]

    under_way = list[int]()
    engine = Cached(random.Random(1))
    assert len(play(runs(), engine, max_tokens=20, driver=FREE)) == 40
    # 20 + 2 · (5 + 20) = 70 tokens are asked first: 3 fit. 60 + 2 · (5 + 10) = 90 at the end: 2.
    assert max(under_way) == 3
    assert engine.room.of(2).debates == 2
    under_way.clear()
    assert len(play(runs(), HeardEngine(engine, lambda heard: None), max_tokens=20)) == 40
    assert max(under_way) == 2
    under_way.clear()
    assert len(play(runs(), RoutedEngine(engine, {}), max_tokens=20)) == 40
    assert max(under_way) == 2


def test_what_debates_hold_is_counted_by_kind_and_agent() -> None:
    def turn_requests(agent: int, tokens: int) -> Request:
        prompt = tuple(range(100 * agent, 100 * agent + tokens))
        return Request(replace(turn_request(), agent=agent), Sampling(max_tokens=10), prompt)

    room = CacheRoom(600)
    in_turn = CacheUse(room)  # 50 + 10 tokens of the first agent, 60 + 10 of the second.
    for agent, tokens in ((0, 50), (1, 60)):
        in_turn.add_requests(0, [turn_requests(agent, tokens)])
        in_turn.add_reply(0, agent, Reply("", token_ids=(1,) * 10))
    in_turn.end_debate(0)
    assert room.of(1).debates == 600 // 130
    at_once = CacheUse(room)  # Debates that begin with two requests are another kind.
    at_once.add_requests(0, [turn_requests(0, 20), turn_requests(1, 20)])
    assert room.of(2).debates == 600 // 60
    later = CacheUse(room)
    later.add_requests(0, [turn_requests(0, 5)])
    assert later.room.debates == 600 // 130


def test_play_each_cancels_and_closes_when_it_is_left_early() -> None:
    engine = Streaming(random.Random(3))
    ended = list[str]()
    runs = [rounds(f"r{k}", 1 + k, ended) for k in range(9)]
    results = play_each(runs, engine, max_tokens=9, driver=FREE)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert not engine.open
    assert engine.cancelled
    assert len(ended) == 9


@pytest.mark.parametrize("driver", [FREE, LockStep(timeout_s=5.0)])
@pytest.mark.parametrize("fails", [1, 2])
def test_play_retries_once_when_a_request_ends_with_an_exception(
    driver: DriverConfig, fails: int
) -> None:
    def fault(request: Request, tries: int) -> Exception | None:
        is_it = (request.turn_request.question.id, request.turn_request.round) == ("b", 1)
        return RuntimeError("lost the device") if is_it and tries <= fails else None

    engine = Streaming(fault=fault)
    runs = [rounds("a", 1), rounds("b", 2), rounds("c", 9)]
    if fails == 1:
        assert len(play(runs, engine, max_tokens=9, driver=driver)) == 3
        return
    with pytest.raises(
        EngineFailure,
        match=r"debate 1 \(question 'b'\), agent 0, round 1: .*RuntimeError: lost the device",
    ) as failure:
        play(runs, engine, max_tokens=9, driver=driver)
    assert [t.id for t in failure.value.finished] == ["a"]
    assert not engine.open


@pytest.mark.parametrize("driver", [FreeRunning(timeout_s=0.1), LockStep(timeout_s=0.1)])
@pytest.mark.parametrize("hangs", [1, 2])
def test_play_cancels_and_retries_when_a_request_hangs(driver: DriverConfig, hangs: int) -> None:
    def fault(request: Request, tries: int) -> str | None:
        return "hangs" if request.turn_request.question.id == "b" and tries <= hangs else None

    engine = Streaming(fault=fault)
    runs = [rounds("a", 1), rounds("b", 1)]
    if hangs == 1:
        assert len(play(runs, engine, max_tokens=9, driver=driver)) == 2
        assert engine.cancelled == 1
        return
    with pytest.raises(EngineFailure, match=r"question 'b'.*TimeoutError: no reply within 0.1 s"):
        play(runs, engine, max_tokens=9, driver=driver)
    assert engine.cancelled == 2


def test_play_refuses_an_engine_that_loses_replies() -> None:
    class Forgetful(Watched):
        def generate(self, requests: Sequence[Request]) -> list[Reply]:
            return super().generate(requests)[1:]

    with pytest.raises(EngineFailure, match="0 replies to 1 requests"):
        play([form("a", 1)], Forgetful(), max_tokens=9)
