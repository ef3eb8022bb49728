"""Lock-step play with small forms."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from debate_protocol.types import (
    DebateRun,
    Gate,
    GateDecision,
    Message,
    Protocol,
    Question,
    Reply,
    Transcript,
    Turn,
)
from debate_rollout.drivers import play
from debate_rollout.engine import Capability, EngineConfigError, EngineFailure, Request
from debate_rollout.engines import ScriptedEngine
from debate_rollout.engines.scripted import ScriptedPlayer
from debate_rollout.testing import turn_request


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
        for one, reply in zip(turn_requests, replies, strict=True):
            assert isinstance(reply, Reply)
            turns.append(Turn(one.agent, round_, reply.text, reply=reply))
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
    assert [t.text for t in transcripts[1].turns] == [
        f"b.{agent}.{round_}" for round_ in range(3) for agent in range(2)
    ]


def test_play_takes_sampling_from_the_ask_unless_it_is_replaced() -> None:
    def one_ask() -> DebateRun:
        yield [replace(turn_request(), temperature=0.6, stop=("!",), seed=5, max_tokens=3)]
        return Transcript("t", Question("q", "q"), Protocol(1), ())

    engine = Watched()
    play([one_ask()], engine, max_tokens=9)
    play([form("a", 1)], engine, max_tokens=9, sampling={"temperature": 0.0, "top_p": 0.9})
    own, replaced = engine.calls[0][0].sampling, engine.calls[1][0].sampling
    assert (own.temperature, own.stop, own.seed, own.max_tokens) == (0.6, ("!",), 5, 3)
    assert (replaced.temperature, replaced.top_p, replaced.max_tokens) == (0.0, 0.9, 9)
    with pytest.raises(EngineConfigError, match=r"temprature.*did you mean 'temperature'"):
        play([form("a", 1)], engine, max_tokens=9, sampling={"temprature": 1.0})


def test_play_asks_select_once_for_all_gates_when_the_batch_has_reached_them() -> None:
    asked: list[list[str]] = []

    def select(gates: Sequence[Gate]) -> list[GateDecision]:
        asked.append([gate.question.id for gate in gates])
        return [{"a": "keep", "b": "drop"}.get(gate.question.id, "go_on") for gate in gates]  # type: ignore[misc]

    runs = [form("a", 3, gate_after=1), form("b", 3, gate_after=0), form("c", 3, gate_after=0),
            form("d", 2)]  # fmt: skip
    transcripts = play(runs, Watched(), max_tokens=9, select=select)
    assert asked == [["a", "b", "c"]]  # b and c wait for a's second round
    assert [(t.id, len(t.turns)) for t in transcripts] == [("a", 4), ("c", 6), ("d", 4)]


def test_play_goes_on_at_every_gate_when_there_is_no_select() -> None:
    (transcript,) = play([form("a", 2, gate_after=0)], Watched(), max_tokens=9)
    assert len(transcript.turns) == 4


@pytest.mark.parametrize("decisions", [[], ["maybe"]])
def test_play_refuses_decisions_that_do_not_answer_the_gates(decisions: Any) -> None:
    with pytest.raises(EngineConfigError, match="select"):
        play([form("a", 2, gate_after=0)], Watched(), max_tokens=9, select=lambda _: decisions)


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


def test_play_keeps_finished_debates_when_the_engine_fails_later() -> None:
    def in_round_1(call: int, requests: Sequence[Request]) -> bool:
        return any(r.turn_request.round == 1 for r in requests)

    with pytest.raises(EngineFailure) as failure:
        play([form("a", 2), form("b", 1)], Watched(fail=in_round_1), max_tokens=9)
    assert [t.id for t in failure.value.finished] == ["b"]


def test_play_closes_every_debate_when_it_fails() -> None:
    closed: list[str] = []

    def guarded(name: str) -> DebateRun:
        try:
            return (yield from form(name, 1))
        finally:
            closed.append(name)

    with pytest.raises(EngineFailure):
        play([guarded("a"), guarded("b")], Watched(fail=lambda *_: True), max_tokens=9)
    assert sorted(closed) == ["a", "b"]


def test_play_refuses_an_engine_that_loses_replies() -> None:
    class Forgetful(Watched):
        def generate(self, requests: Sequence[Request]) -> list[Reply]:
            return super().generate(requests)[1:]

    with pytest.raises(EngineFailure, match="0 replies to 1 requests"):
        play([form("a", 1)], Forgetful(), max_tokens=9)


def test_play_refuses_an_engine_that_answers_with_nothing() -> None:
    class Mute(Watched):
        def generate(self, requests: Sequence[Request]) -> list[Reply]:
            return [None] * len(requests)  # type: ignore[list-item]

    with pytest.raises(EngineFailure, match="failed twice"):
        play([form("a", 1)], Mute(), max_tokens=9)


def test_play_hands_an_overflow_to_the_form(byte_bpe: Any) -> None:
    engine = ScriptedEngine(replies=("x",), context_window=5).open(None, byte_bpe)
    assert isinstance(engine, ScriptedPlayer)
    (transcript,) = play([form("a", 1)], engine, max_tokens=9)
    assert [t.reply.finish for t in transcript.turns if t.reply] == ["context_overflow"] * 2


def test_play_extends_a_dialogue_at_token_level(byte_bpe: Any) -> None:
    engine = ScriptedEngine(replies={"*/0": "one 🙂", "*/1": "two"}).open(None, byte_bpe)

    def dialogue() -> DebateRun:
        first = turn_request()
        (reply,) = yield [first]
        assert isinstance(reply, Reply)
        news: tuple[Message, ...] = (
            {"role": "assistant", "content": reply.text},
            {"role": "user", "content": "news"},
        )
        (second,) = yield [replace(first, round=1, messages=first.messages + news, previous=reply)]
        assert isinstance(second, Reply)
        turns = (Turn(0, 0, reply.text, reply=reply), Turn(0, 1, second.text, reply=second))
        return Transcript("t", first.question, Protocol(1, 2), turns)

    (transcript,) = play([dialogue()], engine, max_tokens=50)
    first, second = (turn.reply for turn in transcript.turns)
    assert first is not None and second is not None
    kept = (*first.prompt_ids, *first.token_ids)
    assert second.prompt_ids[: len(kept)] == kept
