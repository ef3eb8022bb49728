"""An engine of several policies: each request goes to the engine of the request's policy."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, cast

from debate_protocol.types import TRAINED, Reply, TurnRequest
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

WAIT_SLICE_S = 0.02
"""Limit of a wait for each of several engines, so other replies do not wait long."""
SHARED_CAPABILITIES: frozenset[Capability] = frozenset({"seeds", "streams"})
Hear = Callable[[list[tuple[Request, Reply]]], None]
"""Takes the replies of one arrival, each with the request."""


class ForwardingEngine:
    """Forwards every call to another engine; subclasses change single calls.

    Args:
        engine: Samples the replies.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Only used by drivers when `capabilities` contain "streams".
        self._stream = cast(StreamingEngine, engine)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Capabilities of the engine."""
        return self._engine.capabilities

    @property
    def renderer(self) -> Any:
        """Renderer of the engine."""
        return self._engine.renderer

    @property
    def room(self) -> CacheRoom | None:
        """Room in the engine's cache, where the engine reports it."""
        return getattr(self._engine, "room", None)

    @property
    def context_window(self) -> int | None:
        """Context window of the engine."""
        return self._engine.context_window

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Sample a reply for each request, in order."""
        return self._engine.generate(requests)

    def load(self, weights: Weights) -> None:
        """Serve these weights."""
        self._engine.load(weights)

    def sleep(self) -> None:
        """Free the memory of the engine's device, if the engine has the capability."""
        cast(SleepingEngine, self._engine).sleep()

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()

    def submit(self, request: Request) -> int:
        """Take a request and return a ticket."""
        return self._stream.submit(request)

    def collect(self, timeout_s: float) -> list[Finished]:
        """Collect the requests ended since the last call."""
        return self._stream.collect(timeout_s)

    def cancel(self, ticket: int) -> None:
        """Give a request up."""
        self._stream.cancel(ticket)


class HeardEngine(ForwardingEngine):
    """Calls a function with replies as they arrive: a whole batch, or each of a stream.

    Args:
        engine: Samples.
        hear: Runs in the driver's thread, before the driver sees the replies.
    """

    def __init__(self, engine: Engine, hear: Hear) -> None:
        super().__init__(engine)
        self._hear = hear
        self._open: dict[int, Request] = {}

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Sample a reply for each request, in order."""
        replies = super().generate(requests)
        # Not strict: the driver refuses a wrong number of replies, with a better message.
        self._hear(list(zip(requests, replies, strict=False)))
        return replies

    def submit(self, request: Request) -> int:
        """Take a request and return a ticket."""
        ticket = super().submit(request)
        self._open[ticket] = request
        return ticket

    def collect(self, timeout_s: float) -> list[Finished]:
        """Collect the requests ended since the last call."""
        all_finished = super().collect(timeout_s)
        replies: list[tuple[Request, Reply]] = []
        for finished in all_finished:
            request = self._open.pop(finished.ticket)
            if isinstance(finished.outcome, Reply):
                replies.append((request, finished.outcome))
        if replies:
            self._hear(replies)
        return all_finished

    def cancel(self, ticket: int) -> None:
        """Give a request up."""
        self._open.pop(ticket, None)
        super().cancel(ticket)


class RoutedEngine:
    """Sends each request to the engine of the request's policy; `load` changes the trained policy.

    A batch makes a single call of each engine, with all requests for the policy.

    Args:
        trained: Engine of the trained policy.
        others: Engines of the other policies, by name; they keep their first weights.
    """

    def __init__(self, trained: Engine, others: Mapping[str, Engine]) -> None:
        self._engines: dict[str, Engine] = {TRAINED: trained, **others}
        renderers = {name: engine.renderer for name, engine in self._engines.items()}
        self.renderer = RoutedRenderer(renderers)
        self.context_window = trained.context_window
        self.room: CacheRoom | None = getattr(trained, "room", None)
        capabilities = set(trained.capabilities)
        for engine in others.values():
            # These hold for a routed debate only if every engine has them.
            for shared in SHARED_CAPABILITIES - engine.capabilities:
                capabilities.discard(shared)
        self.capabilities: frozenset[Capability] = frozenset(capabilities)
        self._streams = [cast(StreamingEngine, engine) for engine in self._engines.values()]
        # A ticket encodes its engine: engine_ticket * number of engines + index of the engine.
        self._open: set[int] = set()

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Sample a reply for each request, in order.

        Raises:
            EngineConfigError: A request is for a policy without an engine.
        """
        replies: dict[int, Reply] = {}
        indices_by_policy: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            indices_by_policy.setdefault(request.turn_request.policy, []).append(index)
        for policy, indices in indices_by_policy.items():
            policy_requests = [requests[index] for index in indices]
            policy_replies = self._engine(policy).generate(policy_requests)
            replies |= dict(zip(indices, policy_replies, strict=True))
        return [replies[index] for index in range(len(requests))]

    def load(self, weights: Weights) -> None:
        """Serve these weights of the trained policy from the next token on."""
        self._engines[TRAINED].load(weights)

    def sleep(self) -> None:
        """Free the memory of the trained policy's engine, if the engine has the capability."""
        cast(SleepingEngine, self._engines[TRAINED]).sleep()

    def close(self) -> None:
        """Close every engine, even if closing another fails."""
        with ExitStack() as closing:
            for engine in self._engines.values():
                closing.callback(engine.close)

    def submit(self, request: Request) -> int:
        """Take a request and return a ticket."""
        engine = self._engine(request.turn_request.policy)
        # By identity: two policies may have equal engines, and a ticket belongs to one.
        index = next(i for i, stream in enumerate(self._streams) if stream is engine)
        ticket = self._streams[index].submit(request) * len(self._streams) + index
        self._open.add(ticket)
        return ticket

    def collect(self, timeout_s: float) -> list[Finished]:
        """Collect the requests of all engines ended since the last call."""
        num_streams = len(self._streams)
        deadline = time.monotonic() + timeout_s
        while True:
            busy_streams = {ticket % num_streams for ticket in self._open}
            seconds_left = max(0.0, deadline - time.monotonic())
            # One busy engine may wait as long as it likes: no other has a reply meanwhile.
            wait_s = seconds_left if len(busy_streams) == 1 else min(WAIT_SLICE_S, seconds_left)
            all_finished: list[Finished] = []
            for index in busy_streams:
                for finished in self._streams[index].collect(wait_s):
                    ticket = finished.ticket * num_streams + index
                    # A cancelled request may still end.
                    if ticket in self._open:
                        self._open.remove(ticket)
                        all_finished.append(Finished(ticket, finished.outcome))
            if all_finished or not busy_streams or seconds_left == 0:
                return all_finished

    def cancel(self, ticket: int) -> None:
        """Give a request up."""
        if ticket in self._open:
            self._open.remove(ticket)
            engine_ticket, index = divmod(ticket, len(self._streams))
            self._streams[index].cancel(engine_ticket)

    def _engine(self, policy: str) -> Engine:
        if policy not in self._engines:
            policies = ", ".join(self._engines)
            raise EngineConfigError(f"policy: found {policy!r}, expected one of {policies}")
        return self._engines[policy]


class RoutedRenderer:
    """Renders each turn request with the tokenizer of its policy."""

    def __init__(self, renderers: Mapping[str, Any]) -> None:
        self._renderers = renderers

    @property
    def tokenizer(self) -> Any:
        """Tokenizer of the trained policy."""
        return getattr(self._renderers[TRAINED], "tokenizer", None)

    def render(self, turn_request: TurnRequest) -> Rendered:
        """Render a turn request as prompt ids; an engine that takes messages has none."""
        renderer = self._renderers.get(turn_request.policy)
        return Rendered((), extended=False) if renderer is None else renderer.render(turn_request)
