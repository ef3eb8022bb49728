"""The pace of play: which debates wait for which, how long, and how many are under way at once."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from debate_protocol.plugins import Config, Variants
from debate_protocol.types import Reply
from debate_rollout.engine import Request

TIMEOUT_S = 3600.0
"""Default time limit of one request of an engine that streams."""


class LockStep(Config):
    """All open asks of all debates are one call of the engine."""

    lets_overtake: ClassVar[bool] = False

    type: Literal["lock_step"] = "lock_step"
    timeout_s: float | None = Field(None, gt=0)
    """Most seconds to wait for a reply of an engine that streams; None is an hour."""


class _Paced(Config):
    lets_overtake: ClassVar[bool] = True
    """Whether one debate may get ahead of another where the engine streams."""

    in_flight: int = Field(1024, ge=1)
    """Most debates that wait for replies at once, with engines that stream; fewer where vLLM's
    cache would not hold them."""
    timeout_s: float | None = Field(None, gt=0)
    """Most seconds to wait for a reply before it is asked for again."""


class FreeRunning(_Paced):
    """Each debate goes on when its own replies are in; batch engines are run in lock-step."""

    type: Literal["free_running"] = "free_running"


class Auto(_Paced):
    """`free_running` for engines that stream, `lock_step` for the others."""

    type: Literal["auto"] = "auto"


DriverConfig = Auto | LockStep | FreeRunning
DRIVERS: Variants[DriverConfig] = Variants(None, DriverConfig, Auto, LockStep, FreeRunning)
DriverChoice = Annotated[DriverConfig, DRIVERS]
"""What a recipe's `driver` may be."""

AUTO = Auto()

_REMEMBERED = 256
"""Debates over which a mean is taken, about."""


class CacheRoom:
    """How many debates an engine's cache of keys and values holds at once.

    More would take each other's: one that goes on would find what it had computed gone. What a
    debate needs is the mean of those of its kind that have ended; until one has, the most that one
    has asked.

    Args:
        tokens: Of the cache.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens, self._kinds = tokens, dict[int, CacheRoom]()
        self._each, self._ended = 1.0, 0

    @property
    def debates(self) -> int:
        """How many should be under way; at least one."""
        return max(1, int(self._tokens // self._each))

    def of(self, kind: int) -> "CacheRoom":
        """Return the room for debates that begin with so many requests at once."""
        return self._kinds.setdefault(kind, CacheRoom(self._tokens))

    def ask(self, tokens: int) -> None:
        """Note what a debate holds when all that it asks now is answered at full length."""
        if not self._ended:
            self._each = max(self._each, tokens)

    def end(self, tokens: int) -> None:
        """Note what a debate held at its end."""
        self._ended += 1
        self._each += (max(1, tokens) - self._each) / min(self._ended, _REMEMBERED)


class Held:
    """What the debates of one call of `play` hold in the engine's cache.

    Args:
        room: Of the engine.
    """

    def __init__(self, room: CacheRoom) -> None:
        self.room = room
        # By debate and agent: its newest prompts, and the lengths of the replies to them.
        self._texts: dict[int, dict[int, tuple[list[tuple[int, ...]], list[int]]]] = {}
        self._has_begun = False

    def ask(self, place: int, requests: Sequence[Request]) -> None:
        """Note what a debate asks at once."""
        if not self._has_begun:
            self.room, self._has_begun = self.room.of(len(requests)), True
        own = self._texts.setdefault(place, {})
        for agent in {request.ask.agent for request in requests}:
            own[agent] = ([one.prompt_ids for one in requests if one.ask.agent == agent], [])
        self.room.ask(self._sum(place) + sum(one.sampling.max_tokens for one in requests))

    def hear(self, place: int, agent: int, reply: Reply) -> None:
        """Note a reply to one of its agents."""
        self._texts[place][agent][1].append(len(reply.token_ids))

    def end(self, place: int) -> None:
        """Note that it has ended."""
        if place in self._texts:
            self.room.end(self._sum(place))
            del self._texts[place]

    def _sum(self, place: int) -> int:
        texts = self._texts[place].values()
        prompts = [prompt for asked, _ in texts for prompt in asked]
        return distinct(prompts) + sum(length for _, heard in texts for length in heard)


def distinct(prompts: Sequence[tuple[int, ...]]) -> int:
    """Return the tokens of prompts, with what they all begin with once."""
    first, last = min(prompts), max(prompts)
    alike, end = 0, min(len(first), len(last))
    while alike < end:
        middle = (alike + end + 1) // 2
        if first[:middle] == last[:middle]:
            alike = middle
        else:
            end = middle - 1
    return sum(map(len, prompts)) - alike * (len(prompts) - 1)
