"""The plain forms: parallel debate, sequential debate, and one direct answer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal, cast

from debate_protocol.forms.debate_state import DebateState, new_ask, record_replies, replies_to
from debate_protocol.forms.settings import DebateForm, DebateSettings, DebateStart
from debate_protocol.prompts import View, opening
from debate_protocol.types import (
    Ask,
    DebateRun,
    Gate,
    Protocol,
    Schedule,
    TurnKey,
    speaking_agents,
)


class _RoundForm(DebateSettings):
    """A debate of rounds, in which agents speak at once or one after the other."""

    def debate(self, begin: DebateStart) -> DebateRun:
        """Hold a debate."""
        state = DebateState(self, begin)
        for round in range(self.max_rounds):
            agents = speaking_agents(state.rules, round)
            turns = [agents] if self.schedule == "parallel" else [(agent,) for agent in agents]
            for speakers in turns:
                asks = [state.ask(agent, round) for agent in speakers]
                if not state.record(asks, (yield asks)):
                    return state.transcript("aborted")
            reason = state.agreed(round)
            if reason is not None:
                return state.transcript(reason)
            if round in self.gate_after and (yield state.gate(round)) == "keep":
                return state.transcript("gate")
        return state.transcript("max_rounds")


class Simultaneous(_RoundForm):
    """A debate whose rounds are spoken in parallel.

    Source: the Tinker debate note, section 2.1.
    """

    type: Literal["simultaneous"] = "simultaneous"

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

    def debate(self, begin: DebateStart) -> DebateRun:
        """Hold a debate."""
        plain = super().debate(begin)
        asks = cast(Sequence[Ask], next(plain))
        replies = replies_to(asks, (yield asks))
        plain.close()
        state = DebateState(self._in_their_seats(), begin)
        first = [state.ask(seat, 0) for seat in range(self.num_agents)]
        if not state.record(first, [replies[agent] for agent in self.seats()]):
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


class Sequential(_RoundForm):
    """A debate in which agent i also sees agents before i of its own round.

    Source: the exact multi-agent debate formulation, "Observation Construction" and "Episode
    Structure". There an unreadable turn ends the debate, which is the default here.
    """

    type: Literal["sequential"] = "sequential"
    on_failure: Literal["abort", "continue"] = "abort"

    schedule: ClassVar[Schedule] = "sequential"


class Direct(DebateForm):
    """One answer of one agent; the prompt is that of agent 0 in round 0 of a debate."""

    type: Literal["direct"] = "direct"
    num_agents: Literal[1] = 1
    """One agent."""
    max_rounds: Literal[1] = 1
    """One round."""

    def turn_count(self) -> int:
        """Return how many turns are sampled."""
        return 1

    def debate(self, begin: DebateStart) -> DebateRun:
        """Ask for one answer."""
        rules, persona = self.protocol(), self.persona(0)
        view = View(begin.question, self.contract_rules(), 0, 0, persona, (), ())
        asks = [new_ask(self, begin, TurnKey(0, 0), opening(self.style, view))]
        (turn,) = record_replies(self, rules, asks, (yield asks))
        ended = "max_rounds" if turn.failure is None else "failed"
        transcript = begin.transcript(rules, [turn], ended)
        if self.gate_after:
            yield Gate(transcript, "round_0")
        return transcript
