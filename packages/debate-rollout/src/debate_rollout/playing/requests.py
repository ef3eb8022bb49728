"""From the asks of debates to an engine's requests, and to the name of one that failed."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from debate_protocol.types import Ask
from debate_rollout.engine import Request, Sampling
from debate_rollout.errors import EngineConfigError, EngineFailure, RetriesExhaustedError


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and whose it is: ask `number` of those that debate `place` waits for."""

    place: int
    number: int
    request: Request

    def failure(self, cause: Exception) -> EngineFailure:
        """Return the error for a request that failed again after it was retried."""
        ask = self.request.ask
        how = "failed twice, the second time on this request alone"
        if isinstance(cause, RetriesExhaustedError):
            how = "gave this request up"
        return EngineFailure(
            f"debate {self.place} (question {ask.question.id!r}), agent {ask.agent}, "
            f"round {ask.round}: the engine {how} "
            f"({len(self.request.prompt_ids)} prompt tokens): {type(cause).__name__}: {cause}"
        )


class Requests:
    """Makes requests: prompts by the renderer, sampling from the ask.

    Args:
        renderer: The engine's; None for engines that take messages.
        max_tokens: Most tokens of a reply whose ask sets none.
        sampling: Fields of `Sampling` that replace what the asks say.

    Raises:
        EngineConfigError: When `sampling` names no field of `Sampling`.
    """

    def __init__(self, renderer: Any, max_tokens: int, sampling: Mapping[str, object]) -> None:
        known = [field.name for field in fields(Sampling)]
        for name in sampling:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; nearest: {near[0]!r}" if near else ""
                raise EngineConfigError(
                    f"sampling.{name}: expected one of {', '.join(known)}{hint}"
                )
        self._renderer = renderer
        self._max_tokens = max_tokens
        self._sampling = dict(sampling)

    def make(self, place: int, number: int, ask: Ask) -> Asked:
        """Return an ask as a request."""
        wanted: dict[str, Any] = {
            "max_tokens": self._max_tokens if ask.max_tokens is None else ask.max_tokens,
            "temperature": ask.temperature,
            "stop": ask.stop,
            "seed": ask.seed,
        }
        ids = () if self._renderer is None else self._renderer.render(ask).prompt_ids
        return Asked(place, number, Request(ask, Sampling(**wanted | self._sampling), ids))
