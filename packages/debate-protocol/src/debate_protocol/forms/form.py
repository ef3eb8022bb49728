"""What a debate form offers its callers; forms of other packages keep it, too."""

from collections.abc import Mapping
from typing import Protocol as TypingProtocol
from typing import Self

from debate_protocol.forms.settings import SpeakingSettings
from debate_protocol.forms.table import SameAnswer, same_words
from debate_protocol.parsing.contract import Contract
from debate_protocol.types import DebateRun, Protocol, Question


class DebateForm(TypingProtocol):
    """Who speaks when, and what each agent is given: settings that begin debates.

    A pydantic model with a field `type`. The base class `debate_protocol.forms.GatedSettings`
    brings all but `num_agents`, `turn_count`, `protocol` and `start`.
    """

    @property
    def type(self) -> str:
        """The name by which recipes choose the form."""
        ...

    @property
    def num_agents(self) -> int:
        """Agents of a debate."""
        ...

    @property
    def max_rounds(self) -> int:
        """Rounds of a debate at most."""
        ...

    def turn_count(self) -> int:
        """Return how many turns are sampled when the debate goes on to its end."""
        ...

    def sequence_count(self) -> int:
        """Return how many token sequences are trained on: a growing dialogue is one."""
        ...

    def speaking(self) -> SpeakingSettings:
        """Return how agents are prompted, sampled and read, without the order of their turns."""
        ...

    def changed(self, settings: Mapping[str, object]) -> Self:
        """Return the form with some settings changed.

        Raises:
            ValueError: It has no such setting, or (pydantic's ValidationError) does not take it.
        """
        ...

    def at_temperature(self, temperature: float) -> Self:
        """Return the form with all agents sampled at one temperature."""
        ...

    def at_most(self, agents: int, rounds: int, samples: int) -> Self:
        """Return the form with at most so many agents, rounds, and samples beside the debate.

        Raises:
            ValueError: A smaller one would be another debate.
        """
        ...

    def policy_of(self, agent: int) -> str:
        """Return the name of the policy that speaks for an agent."""
        ...

    def adapter_of(self, agent: int) -> str | None:
        """Return the adapter of the trained policy that speaks for an agent, None for its first."""
        ...

    def trained_agents(self) -> tuple[int, ...]:
        """Return the agents whose turns are trained on."""
        ...

    def contract_rules(self) -> Contract:
        """Return how replies are read."""
        ...

    def temperature_of(self, agent: int) -> float:
        """Return the temperature that an agent is sampled at."""
        ...

    def stop_strings(self) -> tuple[str, ...]:
        """Return what ends a reply."""
        ...

    def protocol(self) -> Protocol:
        """Return the rules as they are written into transcripts."""
        ...

    def start(
        self,
        question: Question,
        *,
        seed: int,
        debate_id: str | None = None,
        same_answer: SameAnswer = same_words,
    ) -> DebateRun:
        """Begin a debate.

        Args:
            question: What is debated.
            seed: Each turn's sampling seed follows from it, the agent and the round.
            debate_id: The transcript's id; the question's by default.
            same_answer: Decides whether answers agree, where the form asks.
        """
        ...
