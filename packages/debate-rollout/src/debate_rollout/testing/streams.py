"""Checks of engines that stream: submit, collect, cancel, and what happens when they stall."""

import time
from collections.abc import Sequence
from dataclasses import replace

from debate_protocol.types import DebateRun, Protocol, Reply, Transcript
from debate_rollout.drivers import FreeRunning, play
from debate_rollout.engine import StreamingEngine, streaming
from debate_rollout.errors import EngineFailure
from debate_rollout.testing.bench import SAMPLING, Bench, NotApplicable, ask, request, requests

_PATIENCE_S = 120.0
_AT_ONCE_S = 5.0


def check_stream(bench: Bench) -> None:
    """Each request ends once, with the reply that `generate` gives to it."""
    stream = _stream(bench)
    sent = requests(bench.engine) * 4
    tickets = [stream.submit(one) for one in sent]
    assert len(set(tickets)) == len(tickets), "a ticket was given twice"
    replies = gather(bench, tickets)
    if bench.can("seeds"):
        for ticket, expected in zip(tickets, bench.engine.generate(sent), strict=True):
            found = replies[ticket]
            assert (found.text, found.token_ids) == (expected.text, expected.token_ids), (
                "a submitted request has another reply than in generate"
            )


def check_collect(bench: Bench) -> None:
    """Collect returns at once when nothing is open, and when its time is over."""
    stream = _stream(bench)
    began = time.monotonic()
    assert stream.collect(_PATIENCE_S) == [], "nothing is open: expected no reply"
    ticket = stream.submit(request(bench.engine, ask()))
    first = stream.collect(0.0)
    took = time.monotonic() - began
    assert took < _AT_ONCE_S, f"expected both calls to return at once, they took {took:.1f} s"
    if not first:
        gather(bench, [ticket])


def check_cancel(bench: Bench) -> None:
    """A cancelled request is never returned, and the others are."""
    stream = _stream(bench)
    kept, cancelled, late = [stream.submit(one) for one in requests(bench.engine)]
    stream.cancel(cancelled)
    stream.cancel(cancelled)
    gather(bench, [kept, late])
    assert stream.collect(0.2) == [], "a cancelled request was returned"
    stream.cancel(kept)
    gather(bench, [stream.submit(request(bench.engine, ask()))])


def check_overdue(bench: Bench) -> None:
    """A debate whose reply does not come in time is named, and the engine serves on."""
    _stream(bench)
    try:
        play([_debate()], bench.engine, max_tokens=64, driver=FreeRunning(timeout_s=1e-5))
    except EngineFailure as failure:
        assert "no reply within" in str(failure) and "agent 0" in str(failure), str(failure)
    assert bench.one() is not None


def check_killed(bench: Bench) -> None:
    """After the engine has died, a debate ends with an error that names it."""
    if bench.kill is None:
        raise NotApplicable("has no process of its own here")
    bench.kill()
    try:
        play([_debate()], bench.engine, max_tokens=8, driver=FreeRunning(timeout_s=30.0))
    except EngineFailure as failure:
        assert "question 'q'" in str(failure), str(failure)
    else:
        raise AssertionError("expected EngineFailure from an engine that has died")


def gather(bench: Bench, tickets: Sequence[int]) -> dict[int, Reply]:
    """Collect until all of these requests have ended; other tickets are a fault."""
    stream = _stream(bench)
    replies: dict[int, Reply] = {}
    until = time.monotonic() + _PATIENCE_S
    while len(replies) < len(tickets):
        assert time.monotonic() < until, f"no reply within {_PATIENCE_S:g} s"
        for done in stream.collect(1.0):
            assert done.ticket in tickets, f"ticket {done.ticket} is not open"
            assert done.ticket not in replies, f"ticket {done.ticket} was returned twice"
            if isinstance(done.outcome, Exception):
                raise done.outcome
            replies[done.ticket] = done.outcome
    return replies


def _stream(bench: Bench) -> StreamingEngine:
    stream = streaming(bench.engine)
    if stream is None:
        raise NotApplicable("does not stream")
    return stream


def _debate() -> DebateRun:
    one = replace(ask(), seed=SAMPLING.seed)
    yield [one]
    return Transcript("q", one.question, Protocol(1), ())
