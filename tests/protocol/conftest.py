"""A small loop that plays forms with scripted replies."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from debate_protocol.forms import DebateForm
from debate_protocol.types import Gate, GateDecision, Question, Reply, Transcript, TurnRequest

QUESTION = Question("q", "What is 6 times 7?", answer="42")


def response(solution: str = "42", evaluation: str = "N/A", comparison: str = "N/A") -> str:
    """A three-section response."""
    return (
        f"<solution>{solution}</solution><evaluation>{evaluation}</evaluation>"
        f"<comparison>{comparison}</comparison>"
    )


def named(request: TurnRequest) -> str:
    """A response whose texts name its turn, as in `s01` for agent 0 in round 1."""
    turn = f"{request.agent}{request.round}"
    return response(f"s{turn}", f"e{turn}", f"Agent 0 = Agent 1 c{turn}")


@dataclass
class Played:
    """A debate's transcript, the asks of each of its steps, and its gates."""

    transcript: Transcript
    steps: list[list[TurnRequest]]
    gates: list[Gate] = field(default_factory=list)

    def request_turn(self, agent: int, round: int) -> TurnRequest:
        """The ask of a turn."""
        (found,) = [a for step in self.steps for a in step if (a.agent, a.round) == (agent, round)]
        return found

    def news(self, agent: int, round: int) -> str:
        """The last user message of a turn's ask."""
        return self.request_turn(agent, round).messages[-1]["content"]


Speak = Callable[[TurnRequest], str | Reply]
Play = Callable[..., Played]


def play_form(
    form: DebateForm,
    speak: Speak = named,
    question: Question = QUESTION,
    seed: int = 0,
    decide: Callable[[Gate], GateDecision] | None = None,
) -> Played:
    """Play a form to its end; gates are answered by `decide`, or go on."""
    run = form.start(question, seed=seed)
    steps: list[list[TurnRequest]] = []
    gates: list[Gate] = []
    try:
        requests = next(run)
        while True:
            if isinstance(requests, Gate):
                gates.append(requests)
                requests = run.send("go_on" if decide is None else decide(requests))
                continue
            steps.append(list(requests))
            spoken = [speak(request) for request in requests]
            requests = run.send([Reply(s) if isinstance(s, str) else s for s in spoken])
    except StopIteration as end:
        assert isinstance(end.value, Transcript)
        return Played(end.value, steps, gates)


@pytest.fixture
def play() -> Play:
    """Plays a form with scripted replies: `play(form, speak, question, seed, decide)`."""
    return play_form


@pytest.fixture
def say() -> Callable[..., str]:
    """Makes a three-section response: `say(solution, evaluation, comparison)`."""
    return response
