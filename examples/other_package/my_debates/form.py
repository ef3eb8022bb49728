"""One agent answers, another objects, the first answers again."""

from typing import Literal

from debate_protocol import DebateRun
from debate_protocol.forms import DebateSettings, Table, same_words
from debate_protocol.types import Schedule


class DevilsAdvocate(DebateSettings):
    """Agent 0 proposes, agent 1 says what speaks against it, agent 0 has the last word."""

    type: Literal["devils_advocate"] = "devils_advocate"
    num_agents: Literal[2] = 2
    max_rounds: Literal[2] = 2

    @property
    def schedule(self) -> Schedule:
        """The advocate has read the proposal of its round."""
        return "sequential"

    def turn_count(self) -> int:
        """The advocate speaks once."""
        return 3

    def start(self, question, *, seed, debate_id=None, same_answer=same_words) -> DebateRun:
        """Hold the debate: yield asks, record their replies, return the transcript."""
        table = Table(self, question, seed, debate_id)
        for agent, round in ((0, 0), (1, 0), (0, 1)):
            asks = [table.ask(agent, round)]
            replies = yield asks
            if not table.record(asks, replies):
                return table.transcript("aborted")
        return table.transcript("max_rounds")
