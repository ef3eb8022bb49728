"""One engine of several policies: each ask goes to the engine of the policy that it names."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, cast

from debate_protocol.types import TRAINED, Ask, Reply
from debate_rollout.engine import (
    Capability,
    Engine,
    EngineConfigError,
    Finished,
    Request,
    SleepingEngine,
    StreamingEngine,
    Weights,
)
from debate_rollout.pacing import CacheRoom
from debate_rollout.rendering import Rendered

_SLICE_S = 0.02
"""One wait for one of several engines, so that no reply of another waits long."""


Hear = Callable[[list[tuple[Request, Reply]]], None]
"""Is called with the replies that came together, each after its request."""


class ForwardingEngine:
    """Hands everything on to another engine; subclasses change what they are for.

    Args:
        engine: Samples. Where it does not stream, this one does not say that it does.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stream = cast(StreamingEngine, engine)  # Where `capabilities` say that it streams.

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Those of the engine."""
        return self._engine.capabilities

    @property
    def renderer(self) -> Any:
        """That of the engine."""
        return self._engine.renderer

    @property
    def room(self) -> CacheRoom | None:
        """That of the engine, where it says it."""
        return getattr(self._engine, "room", None)

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

    def sleep(self) -> None:
        """Free the memory of the engine's device, where `capabilities` say that it can."""
        cast(SleepingEngine, self._engine).sleep()

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()

    def submit(self, request: Request) -> int:
        """Take a request and return its ticket."""
        return self._stream.submit(request)

    def collect(self, timeout_s: float) -> list[Finished]:
        """Return the requests that have ended since the last call."""
        return self._stream.collect(timeout_s)

    def cancel(self, ticket: int) -> None:
        """Give a request up."""
        self._stream.cancel(ticket)


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


class RoutedEngine:
    """Answers each ask with the engine of its policy; `load` changes the trained policy alone.

    Debates of a whole batch stay one call; an engine is called once with all that is for it.

    Args:
        trained: Of the policy that learns.
        others: Of the other policies, by name; they keep the weights that they were opened with.
    """

    def __init__(self, trained: Engine, others: Mapping[str, Engine]) -> None:
        self._engines: dict[str, Engine] = {TRAINED: trained, **others}
        self.renderer = RoutedRenderer({name: e.renderer for name, e in self._engines.items()})
        self.context_window = trained.context_window
        self.room: CacheRoom | None = getattr(trained, "room", None)
        shared: set[Capability] = {"seeds", "streams"}
        lacking = {c for c in shared if any(c not in e.capabilities for e in others.values())}
        self.capabilities: frozenset[Capability] = trained.capabilities - lacking
        self._streams = [cast(StreamingEngine, engine) for engine in self._engines.values()]
        # A ticket says whose it is: the engine's own one, times their number, plus its place.
        self._open: set[int] = set()

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply a request, in order.

        Raises:
            EngineConfigError: A request is for a policy that has no engine.
        """
        replies: dict[int, Reply] = {}
        for name in dict.fromkeys(request.ask.policy for request in requests):
            places = [i for i, request in enumerate(requests) if request.ask.policy == name]
            found = self._engine(name).generate([requests[i] for i in places])
            replies |= dict(zip(places, found, strict=True))
        return [replies[i] for i in range(len(requests))]

    def load(self, weights: Weights) -> None:
        """Serve these weights of the trained policy from the next token on."""
        self._engines[TRAINED].load(weights)

    def sleep(self) -> None:
        """Free the memory of the trained policy's engine, where `capabilities` say that it can."""
        cast(SleepingEngine, self._engines[TRAINED]).sleep()

    def close(self) -> None:
        """Close every engine, whatever closing another ends with."""
        with ExitStack() as closing:
            for engine in self._engines.values():
                closing.callback(engine.close)

    def submit(self, request: Request) -> int:
        """Take a request and return its ticket."""
        own = self._engine(request.ask.policy)
        place = next(n for n, engine in enumerate(self._streams) if engine is own)
        ticket = self._streams[place].submit(request) * len(self._streams) + place
        self._open.add(ticket)
        return ticket

    def collect(self, timeout_s: float) -> list[Finished]:
        """Return the requests of all engines that have ended since the last call."""
        until = time.monotonic() + timeout_s
        while True:
            places = {ticket % len(self._streams) for ticket in self._open}
            left = max(0.0, until - time.monotonic())
            wait = left if len(places) == 1 else min(_SLICE_S, left)
            found = [one for place in places for one in self._ended(place, wait)]
            if found or not places or left == 0:
                return found

    def cancel(self, ticket: int) -> None:
        """Give a request up."""
        if ticket in self._open:
            self._open.remove(ticket)
            own, place = divmod(ticket, len(self._streams))
            self._streams[place].cancel(own)

    def _ended(self, place: int, wait_s: float) -> Iterable[Finished]:
        for done in self._streams[place].collect(wait_s):
            ticket = done.ticket * len(self._streams) + place
            if ticket in self._open:
                self._open.remove(ticket)
                yield Finished(ticket, done.outcome)

    def _engine(self, policy: str) -> Engine:
        found = self._engines.get(policy)
        if found is None:
            known = ", ".join(self._engines)
            raise EngineConfigError(f"policy: found {policy!r}, expected one of {known}")
        return found


class RoutedRenderer:
    """Makes prompt ids with the tokenizer of the policy that is asked."""

    def __init__(self, renderers: Mapping[str, Any]) -> None:
        self._renderers = renderers

    @property
    def tokenizer(self) -> Any:
        """That of the trained policy."""
        return getattr(self._renderers[TRAINED], "tokenizer", None)

    def render(self, ask: Ask) -> Rendered:
        """Return the prompt ids of an ask; none where the policy's engine takes messages."""
        renderer = self._renderers.get(ask.policy)
        return Rendered((), extended=False) if renderer is None else renderer.render(ask)
