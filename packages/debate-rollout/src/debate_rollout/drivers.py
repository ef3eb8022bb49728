"""Drivers: run debates against an engine, in lock-step or each at its own pace."""

import queue
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from debate_protocol.plugins import Config, Variants
from debate_protocol.types import Ask, DebateRun, Reply, Sent, Transcript
from debate_rollout.engine import Engine, EngineFailure, Request, StreamingEngine, streaming
from debate_rollout.requests import Asked, Debates, Flight, Requests, Select

__all__ = [
    "AUTO",
    "DRIVERS",
    "Auto",
    "DriverChoice",
    "DriverConfig",
    "FreeRunning",
    "LockStep",
    "play",
    "play_each",
]


def lock_step(
    debates: Debates, engine: Engine, requests: Requests, timeout_s: float | None
) -> Iterator[tuple[int, Transcript]]:
    """Yield (place, transcript) as debates end.

    Args:
        debates: All are run to their ends.
        engine: Any engine; one that streams is sent a round at once and waited for.
        requests: Makes the requests.
        timeout_s: Most seconds of a call of a batch engine, or of a request of one that streams.

    Raises:
        EngineFailure: When a request fails, and again when it is tried alone.
    """
    ready: Sequence[tuple[int, Sent | None]] = [(place, None) for place in range(len(debates))]
    while ready:
        asking: list[tuple[int, Sequence[Ask]]] = []
        for place, sent in ready:
            found = debates.advance(place, sent)
            if isinstance(found, Transcript):
                yield place, found
            elif found is not None:
                asking.append((place, found))
        if asking:
            asked = [
                requests.make(place, number, ask)
                for place, asks in asking
                for number, ask in enumerate(asks)
            ]
            replies = iter(_answer(engine, asked, timeout_s))
            ready = [(place, [next(replies) for _ in asks]) for place, asks in asking]
        else:
            ready = debates.answer_gates()


def _answer(engine: Engine, asked: Sequence[Asked], timeout_s: float | None) -> list[Reply]:
    if not asked:
        return []
    stream = streaming(engine)
    if stream is not None:
        return _wait_for_all(Flight(stream, timeout_s), asked)
    try:
        return _call(engine, [one.request for one in asked], timeout_s)
    except Exception:
        # One by one: what failed as a batch may pass alone, and what fails again has a name.
        return [_call_alone(engine, one, timeout_s) for one in asked]


def _wait_for_all(flight: Flight, asked: Sequence[Asked]) -> list[Reply]:
    replies: dict[tuple[int, int], Reply] = {}
    try:
        for one in asked:
            flight.submit(one)
        while len(replies) < len(asked):
            replies |= {(one.place, one.number): reply for one, reply in flight.wait()}
    finally:
        flight.close()
    return [replies[one.place, one.number] for one in asked]


def _call_alone(engine: Engine, one: Asked, timeout_s: float | None) -> Reply:
    try:
        return _call(engine, [one.request], timeout_s)[0]
    except Exception as error:
        raise one.failure(error) from error


def _call(engine: Engine, requests: list[Request], timeout_s: float | None) -> list[Reply]:
    replies = (
        engine.generate(requests)
        if timeout_s is None
        else _call_within(engine, requests, timeout_s)
    )
    if len(replies) != len(requests):
        raise EngineFailure(f"the engine gave {len(replies)} replies to {len(requests)} requests")
    return replies


def _call_within(engine: Engine, requests: list[Request], timeout_s: float) -> list[Reply]:
    """Call the engine in a thread, which is left behind when it takes too long."""
    ended: queue.SimpleQueue[list[Reply] | BaseException] = queue.SimpleQueue()

    def call() -> None:
        try:
            ended.put(engine.generate(requests))
        except BaseException as error:
            ended.put(error)

    threading.Thread(target=call, name="debate-rollout-generate", daemon=True).start()
    try:
        outcome = ended.get(timeout=timeout_s)
    except queue.Empty:
        raise TimeoutError(f"no reply within {timeout_s:g} s") from None
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


_BURST = 64
"""Debates that go on before the engine is looked at again: it works while prompts are made."""


@dataclass(slots=True)
class _Waiting:
    """What a debate waits for; `replies` by the number of the ask."""

    missing: int
    replies: dict[int, Reply] = field(default_factory=dict)


def free_running(
    debates: Debates,
    engine: StreamingEngine,
    requests: Requests,
    in_flight: int,
    timeout_s: float | None,
) -> Iterator[tuple[int, Transcript]]:
    """Yield (place, transcript) as debates end.

    Debates under way go before those not yet begun. Gates are answered when nothing else can run.

    Args:
        debates: All are run to their ends.
        engine: Answers.
        requests: Makes the requests.
        in_flight: Most debates that wait for replies at once; those at a gate do not count.
        timeout_s: Most seconds from a request to its reply; None sets no limit.

    Raises:
        EngineFailure: When a request has failed twice.
    """
    flight = Flight(engine, timeout_s)
    ready: deque[tuple[int, Sent | None]] = deque((place, None) for place in range(len(debates)))
    waiting: dict[int, _Waiting] = {}
    try:
        while ready or waiting:
            for _ in range(min(_BURST, len(ready), in_flight - len(waiting))):
                place, sent = ready.popleft()
                found = debates.advance(place, sent)
                if isinstance(found, Transcript):
                    yield place, found
                elif found:
                    waiting[place] = _Waiting(len(found))
                    for number, ask in enumerate(found):
                        flight.submit(requests.make(place, number, ask))
                elif found is not None:
                    ready.appendleft((place, []))
            if waiting:
                can_go_on = ready and len(waiting) < in_flight
                ready.extendleft(_completed(flight, waiting, 0.0 if can_go_on else None))
            elif not ready:
                ready.extend(debates.answer_gates())
    finally:
        flight.close()


def _completed(
    flight: Flight, waiting: dict[int, _Waiting], patience_s: float | None
) -> list[tuple[int, Sent]]:
    """Wait for replies; return the debates that have all of theirs, the last in first."""
    found = flight.wait() if patience_s is None else flight.wait(patience_s)
    complete: list[tuple[int, Sent]] = []
    for asked, reply in found:
        one = waiting[asked.place]
        one.replies[asked.number] = reply
        one.missing -= 1
        if not one.missing:
            del waiting[asked.place]
            complete.append((asked.place, [one.replies[k] for k in range(len(one.replies))]))
    return complete[::-1]


TIMEOUT_S = 3600.0
"""Default time limit of one request of an engine that streams."""


class LockStep(Config):
    """All open asks of all debates are one call of the engine."""

    lets_overtake: ClassVar[bool] = False

    type: Literal["lock_step"] = "lock_step"
    timeout_s: float | None = Field(None, gt=0)
    """Most seconds to wait for a reply before it is asked for again. None: an hour with engines
    that stream; no limit with batch engines, where it holds for a call of a whole round."""


class FreeRunning(Config):
    """Each debate goes on when its own replies are in; batch engines are run in lock-step."""

    lets_overtake: ClassVar[bool] = True
    """Whether one debate may get ahead of another where the engine streams."""

    type: Literal["free_running"] = "free_running"
    in_flight: int = Field(1024, ge=1)
    """Most debates that wait for replies at once."""
    timeout_s: float | None = Field(None, gt=0)
    """Most seconds to wait for a reply before it is asked for again."""


class Auto(Config):
    """`free_running` for engines that stream, `lock_step` for the others."""

    lets_overtake: ClassVar[bool] = True

    type: Literal["auto"] = "auto"
    in_flight: int = Field(1024, ge=1)
    """Most debates that wait for replies at once, with engines that stream."""
    timeout_s: float | None = Field(None, gt=0)
    """Most seconds to wait for a reply before it is asked for again."""


DriverConfig = Auto | LockStep | FreeRunning
DRIVERS: Variants[DriverConfig] = Variants(None, DriverConfig, Auto, LockStep, FreeRunning)
DriverChoice = Annotated[DriverConfig, DRIVERS]
"""What a recipe's `driver` may be."""

AUTO = Auto()


def play(
    runs: Sequence[DebateRun],
    engine: Engine,
    *,
    max_tokens: int,
    sampling: Mapping[str, object] = {},
    select: Select | None = None,
    driver: DriverConfig = AUTO,
) -> list[Transcript]:
    """Run debates to their ends.

    With a deterministic engine all drivers give the same transcripts. Gates wait until every
    debate is finished or at a gate; `select` then answers them together, in order of place.

    Args:
        runs: Forms that were started; each is run to its end or closed.
        engine: Samples the replies.
        max_tokens: Most tokens of a reply whose ask sets none.
        sampling: Fields of `Sampling` that replace what the asks say, such as `temperature`.
        select: Answers gates; without it every debate goes on.
        driver: Which debates wait for which, and how long.

    Returns:
        The transcripts in the order of `runs`, dropped debates left out.

    Raises:
        EngineFailure: When the engine fails on a request, and again when it is tried alone;
            `finished` holds the debates that had ended.
        EngineConfigError: When `sampling` names no field of `Sampling`.
    """
    finished: dict[int, Transcript] = {}
    try:
        for place, transcript in play_each(
            runs, engine, max_tokens=max_tokens, sampling=sampling, select=select, driver=driver
        ):
            finished[place] = transcript
    except EngineFailure as error:
        error.finished = tuple(finished[place] for place in sorted(finished))
        raise
    return [finished[place] for place in sorted(finished)]


def play_each(
    runs: Sequence[DebateRun],
    engine: Engine,
    *,
    max_tokens: int,
    sampling: Mapping[str, object] = {},
    select: Select | None = None,
    driver: DriverConfig = AUTO,
) -> Iterator[tuple[int, Transcript]]:
    """Yield (place in `runs`, transcript) as debates end; else as `play`.

    Leaving the iterator early closes the debates and cancels their requests.
    """
    debates = Debates(runs, select)
    try:
        requests = Requests(engine.renderer, max_tokens, sampling)
        stream = streaming(engine)
        limit = driver.timeout_s
        if stream is None:
            yield from lock_step(debates, engine, requests, limit)
        elif isinstance(driver, LockStep):
            yield from lock_step(debates, engine, requests, limit or TIMEOUT_S)
        else:
            yield from free_running(debates, stream, requests, driver.in_flight, limit or TIMEOUT_S)
    finally:
        debates.close()
