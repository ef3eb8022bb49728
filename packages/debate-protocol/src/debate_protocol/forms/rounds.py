"""Debates in rounds: parallel, sequential and one direct answer; their state, asks and records."""

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

from debate_protocol.forms.settings import DebateForm, DebateSettings, DebateStart
from debate_protocol.parsing import Contract, Parsed, get_contract, parse, says_nothing
from debate_protocol.prompts import SeenTurn, View, insertable, news, opening, without_comparison
from debate_protocol.types import (
    DebateRun,
    Gate,
    Message,
    Protocol,
    Reply,
    Schedule,
    Sent,
    Transcript,
    Turn,
    TurnKey,
    TurnRequest,
    check_roles,
    gives_answers,
    shown_turns,
    speaking_agents,
)


def turn_seed(seed: int, agent: int, round: int) -> int:
    """Return the sampling seed of a turn, from 0 to 2**31 - 1, the same on every machine."""
    return _hashed(f"{seed}:{agent}:{round}")


def side_seed(seed: int, name: str) -> int:
    """Return a seed for what is sampled beside a debate, such as a continuation, by its name."""
    return _hashed(f"{seed}/{name}")


def _hashed(text: str) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") & 0x7FFFFFFF


def new_turn_request(
    form: DebateForm,
    seed: int,
    view: View,
    messages: tuple[Message, ...],
    shown: tuple[TurnKey, ...] = (),
) -> TurnRequest:
    """Return an ask of the view's agent, with its temperature, stop strings and the turn's seed.

    `seed` is that of the debate.
    """
    return TurnRequest(
        question=view.question,
        agent=view.agent,
        round=view.round,
        messages=messages,
        shown=shown,
        temperature=form.temperature_of(view.agent),
        stop=form.stop_strings(view.contract),
        seed=turn_seed(seed, view.agent, view.round),
        contract=view.contract,
        policy=form.policy_of(view.agent),
        adapter=form.adapter_of(view.agent),
        claims=claims(view),
        answers=view.answers,
    )


def claims(view: View) -> dict[int, str]:
    """Return the newest answer that a prompt shows of each agent, whole where it has no section."""
    section = view.contract.answer_section
    said = {
        turn.agent: turn.fields.get(section or "") or "".join([*turn.fields.values()][-1:])
        for turn in view.turns
        if turn.fields is not None
    }
    return {agent: text for agent, text in said.items() if text}


def record_replies(
    form: DebateForm, rules: Protocol, requests: Sequence[TurnRequest], sent: Sent
) -> list[Turn]:
    """Return the replies that a form was sent as turns.

    Raises:
        TypeError: It was sent something else than replies.
        ValueError: There is not one reply an ask.
    """
    replies = replies_to(requests, sent)
    return [record_reply(form, rules, *one) for one in zip(requests, replies, strict=True)]


def replies_to(requests: Sequence[TurnRequest], sent: Sent) -> list[Reply]:
    """Return the replies that a form was sent; as `record_replies`."""
    if not isinstance(sent, list | tuple) or not all(isinstance(one, Reply) for one in sent):
        raise TypeError(f"the form yielded asks and was sent {sent!r}; send a list of replies")
    if len(sent) != len(requests):
        raise ValueError(
            f"{len(requests)} asks were sent {len(sent)} replies; send one each, in order"
        )
    return list(sent)


def record_reply(form: DebateForm, rules: Protocol, request: TurnRequest, reply: Reply) -> Turn:
    """Return the reply as a turn, failed or not, with what it says.

    A turn of a role that owes no answer fails when it says nothing, and any other when no answer
    can be read.
    """
    failure: str | None = None
    if reply.finish == "context_overflow":
        reply = replace(reply, text="", token_ids=(), logps=(), starts=())
        failure = "context_overflow"
    contract = request.contract or form.contract_rules()
    parsed = parse(
        reply.text, contract, author=request.agent, num_agents=rules.num_agents, think=form.think
    )
    if failure is None and not gives_answers(rules, request.agent, request.round):
        failure = None if parsed.spoken else "no_feedback"
    elif failure is None and parsed.answer is None:
        failure = "no_solution" if contract.kind == "xml" else "no_answer"
    return Turn(
        agent=request.agent,
        round=request.round,
        text=reply.text,
        shown=request.shown,
        prompt=request.messages,
        failure=failure,
        reply=reply,
        parsed=parsed,
    )


def parsed_of(turn: Turn) -> Parsed:
    """Return what a turn says, which was read when it was recorded."""
    assert turn.parsed is not None
    return turn.parsed


@dataclass(frozen=True, slots=True)
class Dialogue:
    """What one agent has in its context after a turn."""

    messages: tuple[Message, ...]
    previous: Reply | None
    given: tuple[TurnKey, ...]


class DebateState:
    """The state of one debate; it makes asks and records replies."""

    def __init__(self, form: DebateSettings, begin: DebateStart) -> None:
        self.form = form
        self.begin = begin
        self.rules: Protocol = form.protocol()
        check_roles(self.rules)
        named = self.rules.contracts or (self.rules.contract,)
        self._contracts = [get_contract(one) for one in named]
        sections = dict.fromkeys(section for one in self._contracts for section in one.sections)
        # No text may hold a tag of any round.
        is_one = len(self._contracts) == 1
        self._tags = self._contracts[0] if is_one else Contract("tags", tuple(sections))
        self.turns: dict[TurnKey, Turn] = {}
        self._dialogues: dict[int, Dialogue] = {}

    def request_turn(self, agent: int, round: int) -> TurnRequest:
        """Return the request for this turn, with all that the agent is to see."""
        key = TurnKey(agent, round)
        dialogue = self._dialogues.get(agent)
        if dialogue is not None and self.form.conversation == "append":
            return self._continued(key, dialogue)
        shown = self.shown_to(key)
        turns = self._presented(agent, (*shown, *self.own_turns(key)))
        view = self._view(key, turns, shown)
        return new_turn_request(
            self.form, self.begin.seed, view, opening(self.form.style, view), shown
        )

    def shown_to(self, key: TurnKey) -> tuple[TurnKey, ...]:
        """Return the turns of others that the author of a turn is given."""
        return tuple(shown_turns(self.rules, key, self.turns))

    def own_turns(self, key: TurnKey) -> list[TurnKey]:
        """Return the earlier turns of its own that the author of a turn reads again."""
        last = self.form.own_rounds
        since = 0 if last < 0 else key.round - last
        return [one for one in self.turns if one.agent == key.agent and one.round >= since]

    def record(self, requests: Sequence[TurnRequest], sent: Sent) -> bool:
        """Write the turns down; return whether the debate may go on after them.

        Raises:
            TypeError: Something else than replies was sent.
            ValueError: There is not one reply an ask.
        """
        turns = record_replies(self.form, self.rules, requests, sent)
        for request, turn in zip(requests, turns, strict=True):
            self.turns[turn.key] = turn
            messages, last = request.messages, request.previous
            if turn.failure != "context_overflow":
                messages = (*messages, Message(role="assistant", content=turn.text))
                last = turn.reply
            self._dialogues[request.agent] = Dialogue(messages, last, request.shown)
        return self.form.on_failure == "continue" or all(turn.failure is None for turn in turns)

    def agreed(self, round: int) -> str | None:
        """Return why the debate ends early after this round, or None."""
        spoken = [turn for key, turn in self.turns.items() if key.round == round]
        said = [parsed_of(turn) for turn in spoken if gives_answers(self.rules, *turn.key)]
        if not said or any(turn.failure is not None for turn in spoken):
            return None
        if all(parsed.consensus for parsed in said):
            return "consensus"
        if not self.form.stop_when_agreed:
            return None
        first, *others = [parsed.answer or "" for parsed in said]
        same = self.begin.same_answer
        return "agreed" if all(same(first, other) for other in others) else None

    def transcript(self, ended: str) -> Transcript:
        """Return the record; `meta` holds the seed and why the debate ended."""
        return self.begin.transcript(self.rules, self.turns.values(), ended)

    def gate(self, round: int) -> Gate:
        """Return the gate after a round."""
        return Gate(self.transcript("gate"), f"round_{round}")

    def _continued(self, key: TurnKey, dialogue: Dialogue) -> TurnRequest:
        shown = self.shown_to(key)
        fresh = self._presented(key.agent, set(shown).difference(dialogue.given))
        view = self._view(key, fresh, shown)
        text = news(self.form.style, view)
        messages = dialogue.messages
        if messages[-1]["role"] == "user":
            # The last prompt found no room and has no reply: two user messages become one.
            gap = "\n" if self.form.style == "compact" else "\n\n"
            text = f"{messages[-1]['content']}{gap}{text}"
            messages = messages[:-1]
        messages = (*messages, Message(role="user", content=text))
        request = new_turn_request(self.form, self.begin.seed, view, messages, shown)
        return replace(request, previous=dialogue.previous)

    def _contract(self, round: int) -> Contract:
        return self._contracts[min(round, len(self._contracts) - 1)]

    def _presented(self, reader: int, keys: Iterable[TurnKey]) -> list[TurnKey]:
        """Return turns in the order in which an agent is given them."""
        place = list(range(self.rules.num_agents))
        if self.form.presentation == "drawn":
            random.Random(side_seed(self.begin.seed, f"presentation/{reader}")).shuffle(place)
        return sorted(keys, key=lambda key: (key.round, place[key.agent]))

    def _view(self, key: TurnKey, turns: Sequence[TurnKey], shown: Sequence[TurnKey]) -> View:
        own_last = self.turns.get(TurnKey(key.agent, key.round - 1))
        valid = {k.agent for k in shown if self.turns[k].failure is None}
        # Answers are judged and compared; comments are where nobody else answers.
        answered = {k.agent for k in shown if gives_answers(self.rules, *k)}
        peers = valid & answered or valid
        return View(
            question=self.begin.question,
            contract=self._contract(key.round),
            agent=key.agent,
            round=key.round,
            persona=self.form.persona(key.agent),
            turns=tuple(self._seen(k, key.agent) for k in turns),
            peers=tuple(sorted(peers)),
            own_turn_failed=own_last is not None
            and own_last.failure not in (None, "context_overflow"),
            central=self.rules.topology == "central" and key.agent == self.rules.center,
            answers=gives_answers(self.rules, *key),
            shared=self.form.conversation == "shared",
        )

    def _seen(self, key: TurnKey, reader: int) -> SeenTurn:
        turn, parsed = self.turns[key], parsed_of(self.turns[key])
        contract = self._contract(key.round)
        if turn.failure is not None:
            return SeenTurn(key.agent, key.round, None)
        is_comment = not parsed.sections and not gives_answers(self.rules, *key)
        if is_comment:
            name = contract.answer_section or "answer"
            fields = {name if self.form.style == "compact" else "response": parsed.spoken}
        elif contract.kind == "xml":
            hides_own = key.agent != reader or self.form.conversation == "shared"
            fields = seen_sections(parsed, contract, blind=self.form.blind_review and hides_own)
        elif self.form.style == "compact":
            fields = {"answer": parsed.answer or ""}
        else:
            fields = {"response": parsed.spoken}
        limit = self.form.max_chars_per_field
        ready = {n: insertable(text, self._tags, limit) for n, text in fields.items()}
        return SeenTurn(key.agent, key.round, ready)


def seen_sections(parsed: Parsed, contract: Contract, *, blind: bool) -> dict[str, str]:
    """Return the sections of a turn that say something; `blind` hides what it compares."""
    fields = {name: section.text for name, section in parsed.sections.items()}
    if blind and "comparison" in contract.sections:
        fields.pop("comparison", None)
        fields = {name: without_comparison(text) for name, text in fields.items()}
    return {name: text for name, text in fields.items() if not says_nothing(text)}


class RoundForm(DebateSettings):
    """A debate of rounds, in which agents speak at once or one after the other."""

    def opened(self, begin: DebateStart) -> DebateState:
        """Return the state of a debate before its first turn."""
        return DebateState(self, begin)

    def debate(self, begin: DebateStart) -> DebateRun:
        """Hold a debate."""
        state = self.opened(begin)
        for round in range(self.max_rounds):
            agents = speaking_agents(state.rules, round)
            turns = [agents] if self.schedule == "parallel" else [(agent,) for agent in agents]
            for speakers in turns:
                requests = [state.request_turn(agent, round) for agent in speakers]
                if not state.record(requests, (yield requests)):
                    return state.transcript("aborted")
            reason = state.agreed(round)
            if reason is not None:
                return state.transcript(reason)
            if round in self.gate_after and (yield state.gate(round)) == "keep":
                return state.transcript("gate")
        return state.transcript("max_rounds")


class Simultaneous(RoundForm):
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

    def among_strangers(self) -> "AmongStrangers":
        """Return the debate whose agents are shown answers to another question."""
        return AmongStrangers.model_validate(self.model_dump(exclude_unset=True))


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
        requests = cast(Sequence[TurnRequest], next(plain))
        replies = replies_to(requests, (yield requests))
        plain.close()
        state = DebateState(self._in_their_seats(), begin)
        first = [state.request_turn(seat, 0) for seat in range(self.num_agents)]
        if not state.record(first, [replies[agent] for agent in self.seats()]):
            return state.transcript("aborted")
        # What a seat's agent said answered another prompt, that of its first seat.
        second = [
            replace(state.request_turn(seat, 1), previous=None) for seat in range(self.num_agents)
        ]
        state.record(second, (yield second))
        return state.transcript("max_rounds")

    def _in_their_seats(self) -> "Reseated":
        changes: dict[str, object] = {}
        if self.personas != "none":
            changes["personas"] = tuple(self.persona(agent) for agent in self.seats())
        if self.topology == "central":
            changes["center"] = self.num_agents - 1 - (self.center or 0)
        return self.changed(changes) if changes else self


class AmongStrangers(Simultaneous):
    """A debate whose agents are shown, in the place of each other, agents of another debate.

    That debate is held on another question (`DebateStart.other`) under the same rules and seeds as
    if it were alone. What agents change their minds for here is not what their peers say. Nobody is
    shown what this debate's agents say, so its turns have no `shown`. Without another question it
    is held on this one, with other seeds.
    """

    def debate(self, begin: DebateStart) -> DebateRun:
        """Hold a debate."""
        question, seed = begin.other or (begin.question, side_seed(begin.seed, "other"))
        there = DebateState(self, replace(begin, question=question, seed=seed))
        here = _Among(self, begin, there)
        for round in range(self.max_rounds):
            agents = speaking_agents(here.rules, round)
            requests = [
                state.request_turn(agent, round) for state in (there, here) for agent in agents
            ]
            replies = replies_to(requests, (yield requests))
            there.record(requests[: len(agents)], replies[: len(agents)])
            here.record(requests[len(agents) :], replies[len(agents) :])
        ended = here.transcript("max_rounds")
        return replace(ended, turns=tuple(replace(turn, shown=()) for turn in ended.turns))


class _Among(DebateState):
    def __init__(self, form: DebateSettings, begin: DebateStart, others: DebateState) -> None:
        super().__init__(form, begin)
        self._others = others

    def _seen(self, key: TurnKey, reader: int) -> SeenTurn:
        return super()._seen(key, reader) if key.agent == reader else self._others._seen(key, -1)


class Sequential(RoundForm):
    """A debate in which agent i also sees agents before i of its own round.

    Source: the exact multi-agent debate formulation, "Observation Construction" and "Episode
    Structure". There an unreadable turn ends the debate, which is the default here.
    """

    type: Literal["sequential"] = "sequential"
    on_failure: Literal["abort", "continue"] = "abort"

    schedule: ClassVar[Schedule] = "sequential"


class Direct(DebateForm):
    """One answer of one agent; it gets the prompt of agent 0 in round 0 of a debate."""

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
        requests = [new_turn_request(self, begin.seed, view, opening(self.style, view))]
        (turn,) = record_replies(self, rules, requests, (yield requests))
        ended = "max_rounds" if turn.failure is None else "failed"
        transcript = begin.transcript(rules, [turn], ended)
        if self.gate_after:
            yield Gate(transcript, "round_0")
        return transcript
