"""An engine around another."""

from collections.abc import Callable, Sequence
from typing import Any

from debate_protocol.types import Reply
from debate_rollout.engine import (
    Capability,
    Engine,
    Finished,
    Request,
    StreamingEngine,
    Weights,
    streaming,
)

Hear = Callable[[list[tuple[Request, Reply]]], None]
"""Is called with the replies that came together, each after its request."""


class ForwardingEngine:
    """Hands everything on to another engine; subclasses change what they are for.

    Args:
        engine: Samples. Where it does not stream, this one does not say that it does.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Those of the engine."""
        return self._engine.capabilities

    @property
    def renderer(self) -> Any:
        """That of the engine."""
        return self._engine.renderer

    @property
    def context_window(self) -> int | None:
        """That of the engine."""
        return self._engine.context_window

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply a request, in order."""
        return self._engine.generate(requests)

    def load(self, weights: Weights) -> None:
        """Serve these weights."""
        self._engine.load(weights)

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()

    def submit(self, request: Request) -> int:
        """Take a request and return its ticket."""
        return self._streaming.submit(request)

    def collect(self, timeout_s: float) -> list[Finished]:
        """Return the requests that have ended since the last call."""
        return self._streaming.collect(timeout_s)

    def cancel(self, ticket: int) -> None:
        """Give a request up."""
        self._streaming.cancel(ticket)

    @property
    def _streaming(self) -> StreamingEngine:
        engine = streaming(self._engine)
        assert engine is not None  # Where it does not stream, `capabilities` does not say it does.
        return engine


class HeardEngine(ForwardingEngine):
    """Calls a function with replies as they come: of a batch all, of an engine that streams each.

    Args:
        engine: Samples.
        hear: Is called in the driver's thread, before the driver sees the replies.
    """

    def __init__(self, engine: Engine, hear: Hear) -> None:
        super().__init__(engine)
        self._hear = hear
        self._open: dict[int, Request] = {}

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply a request, in order."""
        replies = super().generate(requests)
        # A driver refuses another number of replies than it asked for.
        self._hear(list(zip(requests, replies, strict=False)))
        return replies

    def submit(self, request: Request) -> int:
        """Take a request and return its ticket."""
        ticket = super().submit(request)
        self._open[ticket] = request
        return ticket

    def collect(self, timeout_s: float) -> list[Finished]:
        """Return the requests that have ended since the last call."""
        ended = super().collect(timeout_s)
        asked = [self._open.pop(one.ticket) for one in ended]
        replies = [
            (request, one.outcome)
            for request, one in zip(asked, ended, strict=True)
            if isinstance(one.outcome, Reply)
        ]
        if replies:
            self._hear(replies)
        return ended

    def cancel(self, ticket: int) -> None:
        """Give a request up."""
        self._open.pop(ticket, None)
        super().cancel(ticket)
