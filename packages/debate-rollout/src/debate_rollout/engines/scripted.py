"""The scripted engine: replies that were written beforehand, at once or after a while."""

import heapq
import math
import random
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from debate_protocol.plugins import Config
from debate_protocol.types import Finish, Reply, TurnRequest
from debate_rollout.engine import (
    Capability,
    Engine,
    EngineConfigError,
    EngineSettings,
    Finished,
    Request,
    Sampling,
    Script,
    Weights,
    generate_by_streaming,
    overflow,
    room_of,
)
from debate_rollout.rendering import Renderer
from debate_rollout.routing import ForwardingEngine

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


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
        turn = request.turn_request
        name = f"delay/{turn.question.id}/{turn.agent}/{turn.round}/{request.sampling.seed}"
        drawn: float = random.Random(name).lognormvariate(math.log(self.median_s), self.spread)
        return drawn


class ScriptedStream(ForwardingEngine):
    """Hands over the replies of another engine when their time has come."""

    def __init__(self, player: Engine, delay: Delay) -> None:
        super().__init__(player)
        self._delay = delay
        self._given = 0
        self._outcomes: dict[int, Reply | Exception] = {}
        self._free = [0.0] * delay.slots
        """When each slot is free, as a heap."""
        self._ends: list[tuple[float, int]] = []

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Those of the other engine, and that it streams."""
        return self._engine.capabilities | {"streams"}

    def submit(self, request: Request) -> int:
        """Take a request. What is said is settled now, and handed over after its delay."""
        self._given += 1
        try:
            self._outcomes[self._given] = self._engine.generate([request])[0]
        except Exception as error:
            self._outcomes[self._given] = error
        ends = max(time.monotonic(), self._free[0]) + self._delay.seconds(request)
        heapq.heapreplace(self._free, ends)
        heapq.heappush(self._ends, (ends, self._given))
        return self._given

    def collect(self, timeout_s: float) -> list[Finished]:
        """Return the replies whose time has come; waits for the first."""
        until = time.monotonic() + timeout_s
        found: list[Finished] = []
        while self._outcomes and not found:
            now = time.monotonic()
            while self._ends and self._ends[0][0] <= now:
                _, ticket = heapq.heappop(self._ends)
                if ticket in self._outcomes:
                    found.append(Finished(ticket, self._outcomes.pop(ticket)))
            if now >= until:
                break
            if not found:
                time.sleep(max(0.0, min(until, self._ends[0][0]) - now))
        return found

    def cancel(self, ticket: int) -> None:
        """Forget a request; its slot stays taken until its time is over."""
        self._outcomes.pop(ticket, None)

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply a request, in order, when the slowest is done."""
        return generate_by_streaming(self, requests)


class ScriptedEngine(EngineSettings):
    """Says what a script says, with tokens when it is given a tokenizer."""

    type: Literal["scripted"] = "scripted"
    replies: tuple[str, ...] | dict[str, str] = ()
    """A list, of which each turn's seed draws one; or by `agent/round`, `agent/*`, `*/round` and
    `*`."""
    context_window: int | None = Field(None, ge=1)
    """Most tokens of prompt and reply; null is no limit."""
    delay: Delay | None = None
    """Makes the engine stream, as a model behind a server would."""

    @property
    def needs_model(self) -> bool:
        """A script needs none."""
        return False

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What the opened engine can do; without a tokenizer there are no `tokens`.

        No `logps`: a script has no choice, so its log-probabilities are 0 and teach nothing.
        """
        found: set[Capability] = {"tokens", "seeds"}
        if self.delay is not None:
            found.add("streams")
        return frozenset(found)

    def open(
        self,
        model: object = None,
        tokenizer: "PreTrainedTokenizerFast | None" = None,
        template_kwargs: Mapping[str, object] = {},
        *,
        script: Script | None = None,
    ) -> "ScriptedPlayer | ScriptedStream":
        """Return the running engine.

        Args:
            model: Not used; every engine is opened alike.
            tokenizer: Makes prompt and reply ids, so that transcripts can be trained on.
            template_kwargs: Handed to the chat template.
            script: Replaces `replies`.

        Raises:
            EngineConfigError: When there is neither a script nor a reply.
        """
        if script is None and not self.replies:
            raise EngineConfigError(
                "engine.replies: found none; expected replies in the config, or script=… in open()"
            )
        player = ScriptedPlayer(script or _read(self.replies), self, tokenizer, template_kwargs)
        return player if self.delay is None else ScriptedStream(player, self.delay)


class ScriptedPlayer:
    """Runs a script: same asks, same replies."""

    def __init__(
        self,
        script: Script,
        config: ScriptedEngine,
        tokenizer: "PreTrainedTokenizerFast",
        template_kwargs: Mapping[str, object],
    ) -> None:
        self.renderer = None if tokenizer is None else Renderer(tokenizer, template_kwargs)
        self.context_window = config.context_window
        without: set[Capability] = {"streams"} if tokenizer is not None else {"streams", "tokens"}
        self.capabilities = config.capabilities - without
        self._script = script
        self._version = 0

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply a request, in order.

        Text ends at the first stop string, as a model's would. With a tokenizer, ids are those of
        the text, the end token added where no stop string ended it, at most `max_tokens`; their
        log-probabilities are 0, as a script has no choice.
        """
        return [self._reply(request) for request in requests]

    def load(self, weights: Weights) -> None:
        """Note the version; a script has no weights."""
        self._version = weights.version

    def close(self) -> None:
        """Do nothing; a script holds nothing."""

    def _reply(self, request: Request) -> Reply:
        text, finish = _until_stop(self._script(request.turn_request), request.sampling)
        if self.renderer is None:
            temperature = request.sampling.temperature
            return Reply(text, finish, request.prompt_ids, (), (), temperature, self._version)
        room = room_of(request, self.context_window)
        if room < 1:
            return overflow(request, self._version)
        ids = self.renderer.encode(self.renderer.plain(text))
        end = self.renderer.tokenizer.eos_token_id
        if finish == "end" and end is not None:
            ids.append(end)
        finish = finish if len(ids) <= room else "length"
        logps = [0.0] * len(ids[:room])
        return self.renderer.reply(request, ids[:room], logps, finish, self._version)


def _until_stop(text: str, sampling: Sampling) -> tuple[str, Finish]:
    ends = [text.find(stop) + len(stop) for stop in sampling.stop if stop and stop in text]
    return (text[: min(ends)], "stop") if ends else (text, "end")


def _read(replies: tuple[str, ...] | dict[str, str]) -> Script:
    if isinstance(replies, tuple):
        # Not the order of calls, which differs in a run that was resumed.
        return lambda turn_request: replies[turn_request.seed % len(replies)]

    def by_turn(turn_request: TurnRequest) -> str:
        keys = (
            f"{turn_request.agent}/{turn_request.round}",
            f"{turn_request.agent}/*",
            f"*/{turn_request.round}",
            "*",
        )
        for key in keys:
            if key in replies:
                return replies[key]
        raise EngineConfigError(
            f"engine.replies: nothing for agent {turn_request.agent}, round {turn_request.round}; "
            f"expected one of the keys {', '.join(map(repr, keys))}"
        )

    return by_turn
