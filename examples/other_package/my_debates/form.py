"""One agent answers, two others object, the first answers again."""

from typing import Literal

from debate_protocol import AgentRole, DebateRun, Schedule
from debate_protocol.forms import DebateSettings, DebateState, same_words


class DevilsAdvocate(DebateSettings):
    """Agent 0 proposes; agents 1 and 2 object, each knowing the proposal alone; 0 answers again."""

    type: Literal["devils_advocate"] = "devils_advocate"
    num_agents: Literal[3] = 3
    max_rounds: Literal[2] = 2

    @property
    def schedule(self) -> Schedule:
        """The advocates have read the proposal of their round."""
        return "sequential"

    def own_roles(self) -> tuple[AgentRole, ...]:
        """An advocate owes no answer, and sees the proposer's last turn and no other's."""
        return AgentRole("proposer"), AgentRole("advocate", 2, answers=False, sees={"proposer": 1})

    def turn_count(self) -> int:
        """The advocates speak once."""
        return 4

    def start(self, question, *, seed, debate_id=None, same_answer=same_words) -> DebateRun:
        """Hold the debate: yield asks, record their replies, return the transcript."""
        state = DebateState(self, question, seed, debate_id)
        for round, agents in ((0, [0]), (0, [1, 2]), (1, [0])):
            asks = [state.ask(agent, round) for agent in agents]
            replies = yield asks
            if not state.record(asks, replies):
                return state.transcript("aborted")
        return state.transcript("max_rounds")
