"""The scripted engine: replies written beforehand, at once or after a delay."""

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
    """Most replies under way at once; further requests wait."""

    def seconds(self, request: Request) -> float:
        """Compute the duration of a reply."""
        turn = request.turn_request
        # Seeded by the turn, so that another order of requests changes no duration.
        name = f"delay/{turn.question.id}/{turn.agent}/{turn.round}/{request.sampling.seed}"
        generator = random.Random(name)
        duration: float = generator.lognormvariate(math.log(self.median_s), self.spread)
        return duration


class ScriptedStream(ForwardingEngine):
    """Delivers the replies of another engine after their delays."""

    def __init__(self, player: Engine, delay: Delay) -> None:
        super().__init__(player)
        self._delay = delay
        self._num_submitted = 0
        self._outcomes: dict[int, Reply | Exception] = {}
        self._slots_free_at_s = [0.0] * delay.slots
        """When each slot is free, as a heap."""
        self._ends: list[tuple[float, int]] = []
        """When each request ends, with its ticket, as a heap."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Capabilities of the other engine, and `streams`."""
        return self._engine.capabilities | {"streams"}

    def submit(self, request: Request) -> int:
        """Take a request and return a ticket."""
        self._num_submitted += 1
        ticket = self._num_submitted
        # The reply is made now and delivered later, so it has the weights of this moment.
        try:
            self._outcomes[ticket] = self._engine.generate([request])[0]
        except Exception as error:
            self._outcomes[ticket] = error
        start_s = max(time.monotonic(), self._slots_free_at_s[0])
        end_s = start_s + self._delay.seconds(request)
        heapq.heapreplace(self._slots_free_at_s, end_s)
        heapq.heappush(self._ends, (end_s, ticket))
        return ticket

    def collect(self, timeout_s: float) -> list[Finished]:
        """Wait for the first reply and return all replies until then."""
        deadline_s = time.monotonic() + timeout_s
        finished: list[Finished] = []
        while self._outcomes and not finished:
            now_s = time.monotonic()
            while self._ends and self._ends[0][0] <= now_s:
                _, ticket = heapq.heappop(self._ends)
                # A cancelled request has no outcome any more.
                if ticket in self._outcomes:
                    finished.append(Finished(ticket, self._outcomes.pop(ticket)))
            if now_s >= deadline_s:
                break
            if not finished:
                time.sleep(max(0.0, min(deadline_s, self._ends[0][0]) - now_s))
        return finished

    def cancel(self, ticket: int) -> None:
        """Forget a request; the slot stays taken until the end of the delay."""
        self._outcomes.pop(ticket, None)

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Sample a reply for each request, in order, and wait for the slowest."""
        return generate_by_streaming(self, requests)


class ScriptedEngine(EngineSettings):
    """Says what a script says, with tokens when it is given a tokenizer."""

    type: Literal["scripted"] = "scripted"
    replies: tuple[str, ...] | dict[str, str] = ()
    """A list, from which each turn's seed draws; or by `agent/round`, `agent/*`, `*/round` and
    `*`."""
    context_window: int | None = Field(None, ge=1)
    """Most tokens of prompt and reply; null is no limit."""
    delay: Delay | None = None
    """Makes the engine stream, as a model behind a server would."""

    @property
    def needs_model(self) -> bool:
        """False: a script is no model."""
        return False

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Capabilities of the opened engine; without a tokenizer there are no `tokens`.

        No `logps`: a script has no choice, so log-probabilities are 0 and carry no signal.
        """
        capabilities: set[Capability] = {"tokens", "seeds"}
        if self.delay is not None:
            capabilities.add("streams")
        return frozenset(capabilities)

    def open(
        self,
        model: object = None,
        tokenizer: "PreTrainedTokenizerFast | None" = None,
        template_kwargs: Mapping[str, object] = {},
        *,
        script: Script | None = None,
    ) -> "ScriptedPlayer | ScriptedStream":
        """Open the engine.

        Args:
            model: Not used; every engine is opened alike.
            tokenizer: Makes prompt and reply ids for training on the transcripts.
            template_kwargs: Arguments of the chat template.
            script: Replaces `replies`.

        Raises:
            EngineConfigError: There is neither a script nor a reply.
        """
        if script is None and not self.replies:
            raise EngineConfigError(
                "engine.replies: found none; expected replies in the config, or script=… in open()"
            )
        player = ScriptedPlayer(
            script or _script_of(self.replies), self, tokenizer, template_kwargs
        )
        return player if self.delay is None else ScriptedStream(player, self.delay)


class ScriptedPlayer:
    """Runs a script: the same requests have the same replies."""

    def __init__(
        self,
        script: Script,
        config: ScriptedEngine,
        tokenizer: "PreTrainedTokenizerFast",
        template_kwargs: Mapping[str, object],
    ) -> None:
        self.renderer = None if tokenizer is None else Renderer(tokenizer, template_kwargs)
        self.context_window = config.context_window
        # Delays are added by `ScriptedStream`: this engine answers at once.
        missing: set[Capability] = {"streams"} if tokenizer is not None else {"streams", "tokens"}
        self.capabilities = config.capabilities - missing
        self._script = script
        self._version = 0

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Look up a reply for each request, in order.

        Text ends at the first stop string, as a model's would. A tokenizer encodes the text, adds
        the end token where no stop string ended it, and cuts at `max_tokens`; log-probabilities
        are 0, as a script has no choice.
        """
        return [self._reply(request) for request in requests]

    def load(self, weights: Weights) -> None:
        """Note the version; a script has no weights."""
        self._version = weights.version

    def close(self) -> None:
        """Do nothing; a script needs no resources."""

    def _reply(self, request: Request) -> Reply:
        text = self._script(request.turn_request)
        finish: Finish = "end"
        stop_ends = []
        for stop in request.sampling.stop:
            if stop and stop in text:
                stop_ends.append(text.find(stop) + len(stop))
        if stop_ends:
            text = text[: min(stop_ends)]
            finish = "stop"
        if self.renderer is None:
            temperature = request.sampling.temperature
            return Reply(text, finish, request.prompt_ids, (), (), temperature, self._version)
        room = room_of(request, self.context_window)
        if room < 1:
            return overflow(request, self._version)
        token_ids = self.renderer.encode(self.renderer.plain(text))
        end_id = self.renderer.tokenizer.eos_token_id
        if finish == "end" and end_id is not None:
            token_ids.append(end_id)
        if len(token_ids) > room:
            finish = "length"
            token_ids = token_ids[:room]
        logps = [0.0] * len(token_ids)
        return self.renderer.reply(request, token_ids, logps, finish, self._version)


def _script_of(replies: tuple[str, ...] | dict[str, str]) -> Script:
    if isinstance(replies, tuple):
        # Not the order of calls, which differs in a run that was resumed.
        return lambda turn_request: replies[turn_request.seed % len(replies)]

    def by_turn(turn_request: TurnRequest) -> str:
        # The most specific key comes first.
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
