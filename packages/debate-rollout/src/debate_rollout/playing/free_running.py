"""The free-running driver: each debate goes on when its own replies are in."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from debate_protocol.types import Reply, Sent, Transcript
from debate_rollout.engine import StreamingEngine
from debate_rollout.playing.debates import Debates
from debate_rollout.playing.flight import Flight
from debate_rollout.playing.requests import Requests

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
