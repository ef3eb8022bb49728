"""Requests on an event loop in a thread: ended once, cancelled for good, closed without a trace."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from debate_protocol.types import Reply
from debate_rollout.engine import EndpointError, RolloutError
from debate_rollout.engines.endpoints import HttpEngine


class Background(HttpEngine):
    """Its requests are the work itself."""

    async def _reply(self, request: Any) -> Reply:
        found: Reply = await request
        return found

    async def _disconnect(self) -> None:
        pass


@pytest.fixture
def background() -> Iterator[Any]:
    one = Background("test")
    yield one
    one.close()


async def reply(text: str, after_s: float = 0.0) -> Reply:
    await asyncio.sleep(after_s)
    return Reply(text=text, finish="end")


async def broken() -> Reply:
    raise ValueError("no such model")


def test_collect_returns_each_request_once_as_it_ends(background: Any) -> None:
    slow, quick = background.submit(reply("slow", 0.2)), background.submit(reply("quick"))
    first = background.collect(5.0)
    assert [(one.ticket, one.outcome.text) for one in first if isinstance(one.outcome, Reply)] == [
        (quick, "quick")
    ]
    assert [one.ticket for one in background.collect(5.0)] == [slow]
    assert background.collect(5.0) == []  # nothing is open: at once


def test_collect_returns_nothing_when_the_time_is_over(background: Any) -> None:
    background.submit(reply("late", 5.0))
    for timeout_s in (0.0, 0.05):
        started = time.monotonic()
        assert background.collect(timeout_s) == []
        assert time.monotonic() - started < 2.0


def test_collect_hands_over_the_exception_a_request_ended_with(background: Any) -> None:
    background.submit(broken())
    (one,) = background.collect(5.0)
    assert isinstance(one.outcome, ValueError)


def test_cancel_ends_the_work_and_hides_the_ticket(background: Any) -> None:
    ended = threading.Event()

    async def work() -> Reply:
        try:
            await asyncio.sleep(30.0)
        finally:
            ended.set()
        return Reply(text="", finish="end")

    given_up = background.submit(work())
    kept = background.submit(reply("kept", 0.05))
    background.cancel(given_up)
    background.cancel(given_up)
    assert [one.ticket for one in background.collect(5.0)] == [kept]
    assert background.collect(0.05) == [] and ended.wait(5.0)


def test_run_names_what_took_too_long(background: Any) -> None:
    assert background.run(asyncio.sleep(0, "done"), 5.0, "nothing") == "done"
    with pytest.raises(RolloutError, match=r"loading weights: not done after 0\.05 s"):
        background.run(asyncio.sleep(30.0), 0.05, "loading weights")


def test_close_ends_open_work_and_the_thread() -> None:
    one: Any = Background("to-close")
    for _ in range(100):
        one.submit(reply("never", 30.0))
    one.close()
    one.close()
    assert "to-close" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(EndpointError, match="the engine is closed"):
        one.submit(None)
