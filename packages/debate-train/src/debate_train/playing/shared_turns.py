"""Debates with equal turn requests, which share one reply."""

import hashlib
from collections.abc import Mapping, Sequence

from debate_protocol.types import DebateRun, Gate, Reply, TurnRequest


class SharedTurns:
    """Answers a repeated request, of equal seed and prompt, by the first reply.

    A reply follows from its prompt and seed but for rounding, and from an endpoint not at all; so
    debates that part later are compared on the very same first turns. A shared turn costs once
    where a debate asks after another was answered; simultaneous requests are all sampled.

    Args:
        known: Replies from before, by `turn_request_key`.
    """

    def __init__(self, known: Mapping[str, Reply] | None = None) -> None:
        self._replies: dict[str, Reply] = dict(known or {})

    def over(self, run: DebateRun) -> DebateRun:
        """Wrap a debate."""
        try:
            pending = next(run)
            while True:
                if isinstance(pending, Gate):
                    pending = run.send((yield pending))
                    continue
                keys = [turn_request_key(request) for request in pending]
                missing = [
                    request
                    for key, request in zip(keys, pending, strict=True)
                    if key not in self._replies
                ]
                if missing:
                    replies: Sequence[Reply] = yield missing  # type: ignore[assignment]
                    for request, reply in zip(missing, replies, strict=True):
                        # Another debate may have got its reply first: that one counts.
                        self._replies.setdefault(turn_request_key(request), reply)
                pending = run.send([self._replies[key] for key in keys])
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            run.close()


def turn_request_key(request: TurnRequest) -> str:
    """Hash all that a reply follows from, the same in every process."""
    previous = request.previous
    parts = (
        (request.policy, request.adapter),
        request.seed,
        tuple((message["role"], message["content"]) for message in request.messages),
        None if previous is None else (previous.prompt_ids, previous.token_ids),
        (request.temperature, request.stop, request.max_tokens, request.contract),
    )
    # Evaluation files hold these keys: the parts and their order stay.
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()
