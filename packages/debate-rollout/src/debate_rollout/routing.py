"""One engine of several policies: each ask goes to the engine of the policy that it names."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from debate_protocol.types import TRAINED, Ask, Reply
from debate_rollout.engine import (
    Capability,
    Engine,
    EngineConfigError,
    Finished,
    Request,
    StreamingEngine,
    Weights,
    streaming,
)
from debate_rollout.rendering import Rendered

_SLICE_S = 0.02
"""One wait for one of several engines, so that no reply of another waits long."""


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
        shared: set[Capability] = {"seeds", "streams"}
        lacking = {c for c in shared if any(c not in e.capabilities for e in others.values())}
        self.capabilities: frozenset[Capability] = trained.capabilities - lacking
        self._tickets: dict[int, tuple[StreamingEngine, int]] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        self._given = 0

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

    def close(self) -> None:
        """Close every engine, whatever closing another ends with."""
        with ExitStack() as closing:
            for engine in self._engines.values():
                closing.callback(engine.close)

    def submit(self, request: Request) -> int:
        """Take a request and return its ticket."""
        engine = streaming(self._engine(request.ask.policy))
        assert engine is not None  # Where one does not stream, this engine does not say it does.
        own = engine.submit(request)
        self._given += 1
        self._tickets[self._given] = (engine, own)
        self._numbers[id(engine), own] = self._given
        return self._given

    def collect(self, timeout_s: float) -> list[Finished]:
        """Return the requests of all engines that have ended since the last call."""
        until = time.monotonic() + timeout_s
        while True:
            open_ones = {id(engine): engine for engine, _ in self._tickets.values()}
            left = until - time.monotonic()
            wait = max(0.0, left) if len(open_ones) == 1 else min(_SLICE_S, max(0.0, left))
            found = [one for e in open_ones.values() for one in self._ended(e, wait)]
            if found or not open_ones or left <= 0:
                return found

    def cancel(self, ticket: int) -> None:
        """Give a request up."""
        if ticket in self._tickets:
            engine, own = self._tickets.pop(ticket)
            del self._numbers[id(engine), own]
            engine.cancel(own)

    def _ended(self, engine: StreamingEngine, wait_s: float) -> Iterable[Finished]:
        for done in engine.collect(wait_s):
            ticket = self._numbers.pop((id(engine), done.ticket), None)
            if ticket is not None:
                del self._tickets[ticket]
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
