"""Debates that probe agents: in reversed seats, and among agents of another question."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from debate_protocol.forms.rounds import DebateState, Simultaneous, replies_to, side_seed
from debate_protocol.forms.settings import DebateSettings, DebateStart
from debate_protocol.prompts import SeenTurn
from debate_protocol.types import DebateRun, Protocol, TurnKey, TurnRequest, speaking_agents


class Reseated(Simultaneous):
    """A debate of two rounds in which agents speak first as usual and then in reversed seats.

    The first turns equal those of the same debate without the exchange: the words of agent i are
    in seat N − 1 − i. So each judge of the second round reads the same texts as there, in the
    opposite order and under each other's numbers, which shows whether its verdicts depend on the
    order and the numbers. Agents take their personas along. The transcript is by seat;
    `protocol.extra["seats"]` names the agent of each seat.
    """

    def seats(self) -> tuple[int, ...]:
        """List the agent of each seat."""
        return tuple(reversed(range(self.num_agents)))

    def protocol(self) -> Protocol:
        """Build the rules of the second round, in which agents sit in other seats."""
        rules = super().protocol()
        extra = {**rules.extra, "seats": list(self.seats())}
        return replace(rules, extra=extra)

    def debate(self, begin: DebateStart) -> DebateRun:
        """Play a debate."""
        # The first requests equal those of the plain debate, so that both have the same replies.
        plain_debate = super().debate(begin)
        requests = cast(Sequence[TurnRequest], next(plain_debate))
        replies = replies_to(requests, (yield requests))
        plain_debate.close()

        # Agents take their personas along, and the center stays the same agent.
        changes: dict[str, object] = {}
        if self.personas != "none":
            changes["personas"] = tuple(self.persona(agent) for agent in self.seats())
        if self.topology == "central":
            changes["center"] = self.num_agents - 1 - (self.center or 0)
        reseated_form = self.changed(changes) if changes else self

        state = DebateState(reseated_form, begin)
        seats = range(self.num_agents)
        first_requests = [state.request_turn(seat, 0) for seat in seats]
        reseated_replies = [replies[agent] for agent in self.seats()]
        if not state.record(first_requests, reseated_replies):
            return state.transcript("aborted")

        # The recorded reply of a seat answered another prompt, in its agent's first seat. Its
        # tokens therefore continue no prompt of this debate.
        second_requests = []
        for seat in seats:
            request = state.request_turn(seat, 1)
            second_requests.append(replace(request, previous=None))
        state.record(second_requests, (yield second_requests))
        return state.transcript("max_rounds")


class AmongStrangers(Simultaneous):
    """A debate in which agents are shown agents of another debate in place of each other.

    The other debate is about another question (`DebateStart.other`), under the same rules and with
    the seeds it has by itself. Agents therefore change their minds for other reasons than the
    arguments of their peers. No agent is shown turns of this debate, so its turns have no `shown`.
    Without another question, the other debate is about this question, with other seeds.
    """

    def debate(self, begin: DebateStart) -> DebateRun:
        """Play both debates; the transcript is of this one."""
        # With another seed the same question still has other debaters.
        question, seed = begin.other or (begin.question, side_seed(begin.seed, "other"))
        strangers_begin = replace(begin, question=question, seed=seed)
        strangers = DebateState(self, strangers_begin)
        state = _StateAmongStrangers(self, begin, strangers)
        for round in range(self.max_rounds):
            agents = speaking_agents(state.rules, round)
            strangers_requests = [strangers.request_turn(agent, round) for agent in agents]
            state_requests = [state.request_turn(agent, round) for agent in agents]
            requests = strangers_requests + state_requests
            replies = replies_to(requests, (yield requests))
            strangers.record(strangers_requests, replies[: len(agents)])
            state.record(state_requests, replies[len(agents) :])
        # What agents were shown are turns of the other debate, which this transcript lacks.
        transcript = state.transcript("max_rounds")
        turns = [replace(turn, shown=()) for turn in transcript.turns]
        return replace(transcript, turns=tuple(turns))


class _StateAmongStrangers(DebateState):
    def __init__(
        self,
        form: DebateSettings,
        begin: DebateStart,
        strangers: DebateState,
    ) -> None:
        super().__init__(form, begin)
        self._strangers = strangers

    def _seen(self, key: TurnKey, reader: int) -> SeenTurn:
        if key.agent == reader:
            return super()._seen(key, reader)
        # Reader -1 is the author of no turn, so that sections for the author alone stay hidden.
        return self._strangers._seen(key, -1)


def reseated(form: Simultaneous) -> Reseated:
    """Build the debate of two rounds in which agents exchange their seats after the first.

    Raises:
        ValueError: The agents have several roles.
    """
    if form.roles:
        raise ValueError(
            "roles: found some; agents can exchange their seats only where all are equals"
        )
    settings = form.model_dump(exclude_unset=True) | {"max_rounds": 2, "gate_after": ()}
    return Reseated.model_validate(settings)


def among_strangers(form: Simultaneous) -> AmongStrangers:
    """Build the debate in which agents are shown answers to another question."""
    return AmongStrangers.model_validate(form.model_dump(exclude_unset=True))
