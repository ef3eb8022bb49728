"""Debates that ask the same thing twice and are given one reply."""

import hashlib
from collections.abc import Mapping, Sequence

from debate_protocol.types import DebateRun, Gate, Reply, TurnRequest


class SharedTurns:
    """Answers what was asked before, with the same seed and prompt, by the reply it got then.

    A reply follows from its prompt and seed but for rounding, and from an endpoint not at all; so
    debates that part later are compared on the very same first turns. They cost once where one
    debate asks after another has been answered; those that ask at the same time all do.

    Args:
        known: Replies from before, by `turn_request_key`.
    """

    def __init__(self, known: Mapping[str, Reply] | None = None) -> None:
        self._known: dict[str, Reply] = dict(known or {})

    def over(self, run: DebateRun) -> DebateRun:
        """Return a debate to be played in the place of this one."""
        try:
            waits = next(run)
            while True:
                if isinstance(waits, Gate):
                    waits = run.send((yield waits))
                else:
                    missing = [
                        request for request in waits if turn_request_key(request) not in self._known
                    ]
                    if missing:
                        replies: Sequence[Reply] = yield missing  # type: ignore[assignment]
                        for request, reply in zip(missing, replies, strict=True):
                            self._known.setdefault(turn_request_key(request), reply)
                    waits = run.send([self._known[turn_request_key(request)] for request in waits])
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            run.close()


def turn_request_key(request: TurnRequest) -> str:
    """Return a hash of all that a reply follows from, the same in every process."""
    before = request.previous
    parts = (
        (request.policy, request.adapter),
        request.seed,
        tuple((message["role"], message["content"]) for message in request.messages),
        None if before is None else (before.prompt_ids, before.token_ids),
        (request.temperature, request.stop, request.max_tokens, request.contract),
    )
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()
