"""The parallel debate: all agents of a round speak at once and see earlier rounds only."""

from typing import Literal

from debate_protocol.forms.debate_settings import DebateSettings
from debate_protocol.forms.table import SameAnswer, Table, same_words
from debate_protocol.types import DebateRun, Question


class Simultaneous(DebateSettings):
    """A debate whose rounds are spoken in parallel.

    Source: the Tinker debate note, section 2.1.
    """

    type: Literal["simultaneous"] = "simultaneous"

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
            same_answer: Decides whether answers agree, for `stop_when_agreed`.
        """
        table = Table(self, question, seed, debate_id)
        for round in range(self.max_rounds):
            asks = [table.ask(agent, round) for agent in range(self.num_agents)]
            replies = yield asks
            if not table.record(asks, replies):
                return table.transcript("aborted")
            reason = table.agreed(round, same_answer)
            if reason is not None:
                return table.transcript(reason)
            if round in self.gate_after and (yield table.gate(round)) == "keep":
                return table.transcript("gate")
        return table.transcript("max_rounds")
