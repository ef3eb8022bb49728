"""Scripted replies that take a while, each its own: a stand-in for a server under load."""

import heapq
import math
import random
import time
from collections import deque
from collections.abc import Sequence

from pydantic import Field

from debate_protocol.config import Config
from debate_protocol.types import Reply
from debate_rollout.engine import (
    Capability,
    Engine,
    Finished,
    Request,
    Weights,
    generate_by_streaming,
)


class Delay(Config):
    """How long replies take: log-normal, the same for the same turn of a debate."""

    median_s: float = Field(0.05, gt=0)
    """Median of the time that a reply takes, in seconds."""
    spread: float = Field(1.0, ge=0)
    """Standard deviation of the logarithm; 0 makes all replies take the same time."""
    slots: int = Field(256, ge=1)
    """Most replies under way at once; further requests stand in line."""

    def seconds(self, request: Request) -> float:
        """Return how long this reply takes."""
        ask = request.ask
        name = f"delay/{ask.question.id}/{ask.agent}/{ask.round}/{request.sampling.seed}"
        drawn: float = random.Random(name).lognormvariate(math.log(self.median_s), self.spread)
        return drawn


class ScriptedStream:
    """Hands over the replies of another engine when their time has come."""

    def __init__(self, player: Engine, delay: Delay) -> None:
        self.capabilities: frozenset[Capability] = player.capabilities | {"streams"}
        self.renderer = player.renderer
        self.context_window = player.context_window
        self._player = player
        self._delay = delay
        self._given = 0
        self._outcomes: dict[int, Reply | Exception] = {}
        self._in_line: deque[tuple[int, float]] = deque()
        self._under_way: list[tuple[float, int]] = []

    def submit(self, request: Request) -> int:
        """Take a request. What is said is settled now, and handed over after its delay."""
        self._given += 1
        try:
            self._outcomes[self._given] = self._player.generate([request])[0]
        except Exception as error:
            self._outcomes[self._given] = error
        self._in_line.append((self._given, self._delay.seconds(request)))
        self._begin(time.monotonic())
        return self._given

    def collect(self, timeout_s: float) -> list[Finished]:
        """Return the replies whose time has come; waits for the first."""
        until = time.monotonic() + timeout_s
        while True:
            found = self._ended(time.monotonic())
            now = time.monotonic()
            if found or not self._under_way or now >= until:
                return found
            time.sleep(max(0.0, min(until, self._under_way[0][0]) - now))

    def cancel(self, ticket: int) -> None:
        """Forget a request; the next in line takes its place."""
        self._outcomes.pop(ticket, None)
        left = [one for one in self._under_way if one[1] != ticket]
        if len(left) < len(self._under_way):
            heapq.heapify(left)
            self._under_way = left
            self._begin(time.monotonic())

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply a request, in order, when the slowest is done."""
        return generate_by_streaming(self, requests)

    def load(self, weights: Weights) -> None:
        """Note the version."""
        self._player.load(weights)

    def close(self) -> None:
        """Forget every request."""
        self._outcomes.clear()
        self._player.close()

    def _begin(self, now: float) -> None:
        while self._in_line and len(self._under_way) < self._delay.slots:
            ticket, seconds = self._in_line.popleft()
            if ticket in self._outcomes:
                heapq.heappush(self._under_way, (now + seconds, ticket))

    def _ended(self, now: float) -> list[Finished]:
        found: list[Finished] = []
        while self._under_way and self._under_way[0][0] <= now:
            ended, ticket = heapq.heappop(self._under_way)
            self._begin(ended)
            if ticket in self._outcomes:
                found.append(Finished(ticket, self._outcomes.pop(ticket)))
        return found
