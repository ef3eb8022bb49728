"""The plain forms: parallel debate, sequential debate, and one direct answer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, cast

from debate_protocol.forms.debate_state import DebateState, new_ask, record_reply, replies_to
from debate_protocol.forms.settings import DebateForm, DebateSettings, SameAnswer, same_words
from debate_protocol.prompts import View, opening
from debate_protocol.types import (
    Ask,
    DebateRun,
    Gate,
    Protocol,
    Question,
    Schedule,
    Transcript,
    TurnKey,
    speaking_agents,
)


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
        state = DebateState(self, question, seed, debate_id)
        for round in range(self.max_rounds):
            asks = [state.ask(agent, round) for agent in speaking_agents(state.rules, round)]
            replies = yield asks
            if not state.record(asks, replies):
                return state.transcript("aborted")
            reason = state.agreed(round, same_answer)
            if reason is not None:
                return state.transcript(reason)
            if round in self.gate_after and (yield state.gate(round)) == "keep":
                return state.transcript("gate")
        return state.transcript("max_rounds")

    def reseated(self) -> "Reseated":
        """Return the debate of two rounds whose agents exchange their seats after the first.

        Raises:
            ValueError: The agents have several roles.
        """
        if self.roles:
            raise ValueError(
                "roles: found some; agents can exchange their seats only where all are equals"
            )
        settings = self.model_dump(exclude_unset=True) | {"max_rounds": 2, "gate_after": ()}
        return Reseated.model_validate(settings)


class Reseated(Simultaneous):
    """A debate of two rounds in which agents speak first as usual and then in reversed seats.

    The first turns are those of the same debate without the exchange: what agent i said stands in
    seat N − 1 − i. So each judge of the second round reads the same texts as there, in the opposite
    order and under each other's numbers, which shows whether its verdicts depend on these. Agents
    take their personas along. The record is that of the seats; `protocol.extra["seats"]` names the
    agent of each.
    """

    def seats(self) -> tuple[int, ...]:
        """Return the agent of each seat."""
        return tuple(reversed(range(self.num_agents)))

    def protocol(self) -> Protocol:
        """Return the rules of the second round, in which agents sit in other seats."""
        rules = super().protocol()
        return replace(rules, extra={**rules.extra, "seats": list(self.seats())})

    def start(
        self,
        question: Question,
        *,
        seed: int,
        debate_id: str | None = None,
        same_answer: SameAnswer = same_words,
    ) -> DebateRun:
        """Begin; the arguments are those of `Simultaneous.start`."""
        plain = super().start(question, seed=seed, debate_id=debate_id, same_answer=same_answer)
        asks = cast(Sequence[Ask], next(plain))
        replies = replies_to(asks, (yield asks))
        plain.close()
        state = DebateState(self._in_their_seats(), question, seed, debate_id)
        first = [state.ask(seat, 0) for seat in range(self.num_agents)]
        moved = [replies[agent] for agent in self.seats()]
        if not state.record(first, moved):
            return state.transcript("aborted")
        # What a seat's agent said answered another prompt, that of its first seat.
        second = [replace(state.ask(seat, 1), previous=None) for seat in range(self.num_agents)]
        state.record(second, (yield second))
        return state.transcript("max_rounds")

    def _in_their_seats(self) -> "Reseated":
        changes: dict[str, object] = {}
        if self.personas != "none":
            changes["personas"] = tuple(self.persona(agent) for agent in self.seats())
        if self.topology == "central":
            changes["center"] = self.num_agents - 1 - (self.center or 0)
        return self.changed(changes) if changes else self


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
        state = DebateState(self, question, seed, debate_id)
        for round in range(self.max_rounds):
            for agent in speaking_agents(state.rules, round):
                asks = [state.ask(agent, round)]
                replies = yield asks
                if not state.record(asks, replies):
                    return state.transcript("aborted")
            reason = state.agreed(round, same_answer)
            if reason is not None:
                return state.transcript(reason)
            if round in self.gate_after and (yield state.gate(round)) == "keep":
                return state.transcript("gate")
        return state.transcript("max_rounds")


class Direct(DebateForm):
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
        turn, _ = record_reply(self, self.protocol(), asks[0], replies_to(asks, replies)[0])
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
