"""No debate: one agent answers once."""

from typing import Literal

from debate_protocol.forms.gated_settings import GatedSettings
from debate_protocol.forms.table import SameAnswer, same_words
from debate_protocol.forms.turns import heard, new_ask, replies_to
from debate_protocol.prompts.styles import opening
from debate_protocol.prompts.view import View
from debate_protocol.types import (
    DebateRun,
    Gate,
    Protocol,
    Question,
    Schedule,
    Transcript,
    TurnKey,
)


class Direct(GatedSettings):
    """One answer of one agent; the prompt is that of agent 0 in round 0 of a debate."""

    type: Literal["direct"] = "direct"
    num_agents: Literal[1] = 1
    """One agent."""
    max_rounds: Literal[1] = 1
    """One round."""

    @property
    def schedule(self) -> Schedule:
        """One turn is the same in both schedules."""
        return "parallel"

    def turn_count(self) -> int:
        """Return how many turns are sampled."""
        return 1

    def protocol(self) -> Protocol:
        """Return the rules as they are written into transcripts."""
        return Protocol(
            num_agents=1,
            max_rounds=1,
            contract=self.recorded_contract(),
            roles=self.agent_roles(),
            extra={"style": self.recorded_style(), "think": self.think},
        )

    def start(
        self,
        question: Question,
        *,
        seed: int,
        debate_id: str | None = None,
        same_answer: SameAnswer = same_words,
    ) -> DebateRun:
        """Begin; the arguments are those of `Simultaneous.start`, there is nothing to compare."""
        view = View(question, self.contract_rules(), 0, 0, self.persona(0), (), ())
        asks = [new_ask(self, question, TurnKey(0, 0), seed, opening(self.style, view))]
        replies = yield asks
        turn, _ = heard(self, self.protocol(), asks[0], replies_to(asks, replies)[0])
        transcript = Transcript(
            id=question.id if debate_id is None else debate_id,
            question=question,
            protocol=self.protocol(),
            turns=(turn,),
            meta={"seed": seed, "ended": "max_rounds" if turn.failure is None else "failed"},
        )
        if self.gate_after:
            yield Gate(transcript, "round_0")
        return transcript
