"""The lock-step driver: every open ask of every debate goes into one call of the engine."""

import queue
import threading
from collections.abc import Iterator, Sequence

from debate_protocol.types import Ask, Reply, Sent, Transcript
from debate_rollout.engine import Engine, Request, streaming
from debate_rollout.errors import EngineFailure
from debate_rollout.playing.debates import Debates
from debate_rollout.playing.flight import Flight
from debate_rollout.playing.requests import Asked, Requests


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
