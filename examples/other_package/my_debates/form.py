"""One agent answers, two others object, the first answers again."""

from typing import ClassVar, Literal

from debate_protocol import AgentRole, DebateRun, Schedule
from debate_protocol.forms import DebateSettings, DebateStart, DebateState


class DevilsAdvocate(DebateSettings):
    """Agent 0 proposes; agents 1 and 2 object, each knowing the proposal alone; 0 answers again."""

    type: Literal["devils_advocate"] = "devils_advocate"
    num_agents: Literal[3] = 3
    max_rounds: Literal[2] = 2

    schedule: ClassVar[Schedule] = "sequential"
    """The advocates have read the proposal of their round."""

    def own_roles(self) -> tuple[AgentRole, ...]:
        """An advocate owes no answer, and sees the proposer's last turn and no other's."""
        return AgentRole("proposer"), AgentRole("advocate", 2, answers=False, sees={"proposer": 1})

    def turn_count(self) -> int:
        """The advocates speak once."""
        return 4

    def debate(self, begin: DebateStart) -> DebateRun:
        """Hold the debate: yield asks, record their replies, return the transcript."""
        state = DebateState(self, begin)
        for round, agents in ((0, [0]), (0, [1, 2]), (1, [0])):
            requests = [state.request_turn(agent, round) for agent in agents]
            replies = yield requests
            if not state.record(requests, replies):
                return state.transcript("aborted")
        return state.transcript("max_rounds")
