"""The sequential debate: one agent speaks at a time and sees all that was said before."""

from typing import Literal

from debate_protocol.forms.debate_settings import DebateSettings
from debate_protocol.forms.table import SameAnswer, Table, same_words
from debate_protocol.roles import speaking_agents
from debate_protocol.types import DebateRun, Question, Schedule


class Sequential(DebateSettings):
    """A debate in which agent i also sees agents before i of its own round.

    Source: the exact multi-agent debate formulation, "Observation Construction" and "Episode
    Structure". There an unreadable turn ends the debate, which is the default here.
    """

    type: Literal["sequential"] = "sequential"
    on_failure: Literal["abort", "continue"] = "abort"

    @property
    def schedule(self) -> Schedule:
        """Agents of a round speak one after the other."""
        return "sequential"

    def start(
        self,
        question: Question,
        *,
        seed: int,
        debate_id: str | None = None,
        same_answer: SameAnswer = same_words,
    ) -> DebateRun:
        """Begin a debate; the arguments are those of `Simultaneous.start`."""
        table = Table(self, question, seed, debate_id)
        for round in range(self.max_rounds):
            for agent in speaking_agents(table.rules, round):
                asks = [table.ask(agent, round)]
                replies = yield asks
                if not table.record(asks, replies):
                    return table.transcript("aborted")
            reason = table.agreed(round, same_answer)
            if reason is not None:
                return table.transcript(reason)
            if round in self.gate_after and (yield table.gate(round)) == "keep":
                return table.transcript("gate")
        return table.transcript("max_rounds")
