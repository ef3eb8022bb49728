"""Requests that a streaming engine works on: their age, their second try, their end."""

import time
from collections import deque
from dataclasses import dataclass

from debate_protocol.types import Reply
from debate_rollout.engine import Finished, StreamingEngine
from debate_rollout.errors import EngineFailure, RetriesExhaustedError
from debate_rollout.playing.requests import Asked

_LONG_S = 60.0
"""One wait of `collect` at most."""
_PAUSE_S = 0.01
"""A rest when an engine that should wait does not, so that its fault costs no processor."""


@dataclass(frozen=True, slots=True)
class _Open:
    asked: Asked
    is_second_try: bool


class Flight:
    """Submits requests and hands over their replies.

    A request that ends with an exception, or is older than `timeout_s`, is cancelled and tried
    once more, unless its engine has tried it again itself (`RetriesExhaustedError`).

    Args:
        engine: Answers.
        timeout_s: Most seconds from submitting a request to its reply; None sets no limit.
    """

    def __init__(self, engine: StreamingEngine, timeout_s: float | None) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._open: dict[int, _Open] = {}
        # The limit is the same for all, so those submitted first are due first.
        self._due: deque[tuple[float, int]] = deque()
        self._failure: EngineFailure | None = None

    def submit(self, asked: Asked) -> None:
        """Send a request.

        Raises:
            EngineFailure: When the engine refuses it twice.
        """
        self._submit(_Open(asked, is_second_try=False))

    def wait(self, patience_s: float = _LONG_S) -> list[tuple[Asked, Reply]]:
        """Return replies that are in; waits for the first, at most about `patience_s`.

        Raises:
            EngineFailure: When a request has failed twice; not before the replies that came with
                the failure were handed over.
        """
        replies = [] if self._failure else self._arrived(patience_s)
        if self._failure and not replies:
            raise self._failure
        return replies

    def close(self) -> None:
        """Cancel what is still open."""
        for ticket in self._open:
            self._engine.cancel(ticket)
        self._open.clear()

    def _arrived(self, patience_s: float) -> list[tuple[Asked, Reply]]:
        replies: list[tuple[Asked, Reply]] = []
        for done in self._collect(min(patience_s, self._until_due())):
            one = self._open.pop(done.ticket, None)
            if one is None:
                continue
            if isinstance(done.outcome, Exception):
                self._end(one, done.outcome)
            else:
                replies.append((one.asked, done.outcome))
        self._end_overdue()
        return replies

    def _submit(self, one: _Open) -> None:
        try:
            ticket = self._engine.submit(one.asked.request)
        except Exception as error:
            self._try_again(one, error)
            return
        self._open[ticket] = one
        if self._timeout_s is not None:
            self._due.append((time.monotonic() + self._timeout_s, ticket))

    def _try_again(self, one: _Open, error: Exception) -> None:
        if one.is_second_try or isinstance(error, RetriesExhaustedError):
            raise one.asked.failure(error) from error
        self._submit(_Open(one.asked, is_second_try=True))

    def _end(self, one: _Open, error: Exception) -> None:
        try:
            self._try_again(one, error)
        except EngineFailure as failure:
            self._failure = self._failure or failure

    def _collect(self, patience_s: float) -> list[Finished]:
        began = time.monotonic()
        try:
            found = self._engine.collect(patience_s)
        except Exception as error:
            # The engine as a whole has failed: every open request has.
            return [Finished(ticket, error) for ticket in list(self._open)]
        if not found and self._open and time.monotonic() - began < patience_s / 2:
            time.sleep(min(_PAUSE_S, patience_s))
        return found

    def _until_due(self) -> float:
        while self._due and self._due[0][1] not in self._open:
            self._due.popleft()
        return max(0.0, self._due[0][0] - time.monotonic()) if self._due else _LONG_S

    def _end_overdue(self) -> None:
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            _, ticket = self._due.popleft()
            one = self._open.pop(ticket, None)
            if one is not None:
                self._engine.cancel(ticket)
                self._end(one, TimeoutError(f"no reply within {self._timeout_s:g} s"))
