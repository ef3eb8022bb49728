"""What the checks of the conformance suite work with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from debate_protocol.types import Ask, Message, Question, Reply
from debate_rollout.engine import Capability, Engine, Request, Sampling, Weights

SAMPLING = Sampling(max_tokens=12, temperature=1.0, seed=11)
QUESTIONS = ("What is 2 + 3?", "Name a colour.", "Is the sky blue? Say why, in a few words.")

Logps = Callable[[Sequence[int], Sequence[int], float], Sequence[float]]
"""Log-probabilities of reply ids after prompt ids at a temperature, as a trainer computes them."""


class NotApplicable(Exception):
    """A check that this engine or bench gives no occasion for; the message says why."""


@dataclass(frozen=True, slots=True)
class Refresh:
    """Weights to load, and what a trainer that holds them computes."""

    weights: Weights
    logps: Logps | None = None


@dataclass(slots=True)
class Bench:
    """An engine under test; checks that lack something are left out and say so.

    Attributes:
        engine: Opened, with any model.
        logps: The trainer's log-probabilities under the weights served now.
        refreshes: Weights to load, in order, with rising versions: for `full_weights` at least
            one of kind full, for `lora` at least two adapters.
        kill: Ends the engine's process, where it has one of its own; called last.
        tolerance: Largest difference from `logps`; 1e-5 is for float32.
    """

    engine: Engine
    logps: Logps | None = None
    refreshes: Sequence[Refresh] = ()
    kill: Callable[[], None] | None = None
    tolerance: float = 1e-5
    version: int = field(default=0, init=False)
    """Of the last weights that were loaded."""

    def can(self, *capabilities: Capability) -> bool:
        """Return whether the engine has all of these."""
        return set(capabilities) <= self.engine.capabilities

    def one(self, sampling: Sampling = SAMPLING, text: str = QUESTIONS[0]) -> Reply:
        """Return the reply to a single request."""
        return self.engine.generate([request(self.engine, ask(text), sampling)])[0]

    def load(self, refresh: Refresh) -> None:
        """Load weights under a version that is new to the engine."""
        self.version = max(refresh.weights.version, self.version + 1)
        self.engine.load(replace(refresh.weights, version=self.version))
        self.logps = refresh.logps

    def check_logps(self, replies: Sequence[Reply], what: str) -> None:
        """Compare log-probabilities with the trainer's, where these are known."""
        if self.logps is None:
            return
        for reply in replies:
            expected = self.logps(reply.prompt_ids, reply.token_ids, reply.temperature or 1.0)
            worst = max(
                (abs(a - b) for a, b in zip(expected, reply.logps, strict=True)), default=0.0
            )
            assert worst <= self.tolerance, (
                f"{what}: log-probabilities at temperature {reply.temperature:g} differ from the "
                f"trainer's by {worst:.2g}; expected at most {self.tolerance:g}"
            )


def ask(text: str = QUESTIONS[0], agent: int = 0) -> Ask:
    """Return the first ask of an agent."""
    message: Message = {"role": "user", "content": text}
    return Ask(Question("q", text), agent=agent, round=0, messages=(message,))


def request(engine: Engine, one: Ask, sampling: Sampling = SAMPLING) -> Request:
    """Return an ask as a request to this engine."""
    renderer: Any = engine.renderer
    return Request(one, sampling, () if renderer is None else renderer.render(one).prompt_ids)


def requests(engine: Engine, **changes: Any) -> list[Request]:
    """Return one request for each of the questions, each with another seed."""
    return [
        request(engine, ask(text, agent), replace(SAMPLING, seed=agent, **changes))
        for agent, text in enumerate(QUESTIONS)
    ]
