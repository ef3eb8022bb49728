"""The pace of play: waiting of debates for each other, time limits, and debates under way."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from debate_protocol.plugins import Config, Variants
from debate_protocol.types import Reply
from debate_rollout.engine import Request

TIMEOUT_S = 3600.0
"""Default time limit of one request of an engine that streams."""
AVERAGED_DEBATES = 256
"""Window of the running mean of tokens a debate; older debates fade."""


class LockStep(Config):
    """All open requests of all debates are one call of the engine."""

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
"""Any driver of a recipe."""

AUTO = Auto()


class CacheRoom:
    """Estimates how many debates an engine's cache of keys and values holds at once.

    More debates would evict each other's cached prefixes, and each next turn would compute its
    prefix again. A debate needs the mean of the ended debates of its kind; before the first end,
    the largest number of tokens of any debate's requests.

    Args:
        tokens: Capacity of the cache.
    """

    def __init__(self, tokens: int) -> None:
        self._capacity = tokens
        self._rooms_by_kind: dict[int, CacheRoom] = {}
        self._tokens_per_debate = 1.0
        self._num_ended = 0

    @property
    def debates(self) -> int:
        """Number of debates to have under way, at least 1."""
        return max(1, int(self._capacity // self._tokens_per_debate))

    def of(self, num_first_requests: int) -> "CacheRoom":
        """Get the estimate for debates with this number of first requests."""
        return self._rooms_by_kind.setdefault(num_first_requests, CacheRoom(self._capacity))

    def add_upper_bound(self, tokens: int) -> None:
        """Count a debate of `tokens` with the open requests answered at full length."""
        # Bounds are far above what debates take, so a mean replaces them once there is one.
        if not self._num_ended:
            self._tokens_per_debate = max(self._tokens_per_debate, tokens)

    def add_ended(self, tokens: int) -> None:
        """Count an ended debate of `tokens`."""
        self._num_ended += 1
        window = min(self._num_ended, AVERAGED_DEBATES)
        self._tokens_per_debate += (max(1, tokens) - self._tokens_per_debate) / window


@dataclass(slots=True)
class _AgentContext:
    """The newest prompts of an agent, and the lengths of the replies to them."""

    prompts: list[tuple[int, ...]]
    reply_lengths: list[int] = field(default_factory=list)


class CacheUse:
    """Counts the cached tokens of the debates of one call of `play`.

    Args:
        room: The engine's.
    """

    def __init__(self, room: CacheRoom) -> None:
        self.room = room
        self._contexts: dict[int, dict[int, _AgentContext]] = {}
        self._has_begun = False

    def add_requests(self, debate: int, requests: Sequence[Request]) -> None:
        """Count the simultaneous requests of a debate."""
        # Debates of one call have the same form, so the first requests show its shape.
        if not self._has_begun:
            self.room = self.room.of(len(requests))
            self._has_begun = True
        contexts = self._contexts.setdefault(debate, {})
        prompts_by_agent: dict[int, list[tuple[int, ...]]] = {}
        for request in requests:
            prompts_by_agent.setdefault(request.turn_request.agent, []).append(request.prompt_ids)
        # A new prompt of an agent extends the last one and replaces it in the cache.
        for agent, prompts in prompts_by_agent.items():
            contexts[agent] = _AgentContext(prompts)
        longest_replies = sum(request.sampling.max_tokens for request in requests)
        self.room.add_upper_bound(self._tokens(debate) + longest_replies)

    def add_reply(self, debate: int, agent: int, reply: Reply) -> None:
        """Count a reply to an agent of a debate."""
        self._contexts[debate][agent].reply_lengths.append(len(reply.token_ids))

    def end_debate(self, debate: int) -> None:
        """Count a debate as ended."""
        if debate in self._contexts:
            self.room.add_ended(self._tokens(debate))
            del self._contexts[debate]

    def _tokens(self, debate: int) -> int:
        prompts: list[tuple[int, ...]] = []
        num_reply_tokens = 0
        for context in self._contexts[debate].values():
            prompts += context.prompts
            num_reply_tokens += sum(context.reply_lengths)
        return count_tokens_once(prompts) + num_reply_tokens


def count_tokens_once(prompts: Sequence[tuple[int, ...]]) -> int:
    """Count the tokens of prompts, their common beginning once."""
    # In order, all prompts lie between the first and the last, so the beginning that these two
    # have in common is common to all.
    first = min(prompts)
    last = max(prompts)
    num_common = 0
    upper = min(len(first), len(last))
    while num_common < upper:
        middle = (num_common + upper + 1) // 2
        if first[:middle] == last[:middle]:
            num_common = middle
        else:
            upper = middle - 1
    return sum(map(len, prompts)) - num_common * (len(prompts) - 1)
