"""Debates in rounds, parallel or sequential, and one direct answer: turn requests and records."""

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from debate_protocol.forms.settings import (
    DebateForm,
    DebateSettings,
    DebateStart,
    SampledSettings,
)
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
    """Derive the sampling seed of a turn, from 0 to 2**31 - 1, the same on every machine."""
    return _hashed(f"{seed}:{agent}:{round}")


def side_seed(seed: int, name: str) -> int:
    """Derive the seed of a named sample outside of the debate, such as a continuation."""
    return _hashed(f"{seed}/{name}")


def _hashed(text: str) -> int:
    # Python's own hash of a string differs between processes.
    digest = hashlib.blake2b(text.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") & 0x7FFFFFFF


def new_turn_request(
    form: DebateForm,
    seed: int,
    view: View,
    messages: tuple[Message, ...],
    shown: tuple[TurnKey, ...] = (),
) -> TurnRequest:
    """Build a request to the view's agent, with its temperature, stop strings and seed.

    `seed` is the seed of the debate.
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


def first_view(begin: DebateStart, contract: Contract) -> View:
    """Build what agent 0 sees before anybody has spoken, without a persona."""
    return View(
        question=begin.question,
        contract=contract,
        agent=0,
        round=0,
        persona=None,
        turns=(),
        peers=(),
    )


def equal_requests(
    form: SampledSettings, begin: DebateStart, view: View, num_agents: int
) -> list[TurnRequest]:
    """Build requests to the first agents, all with the prompt of one view."""
    prompt = opening(form.style, view)
    return [
        new_turn_request(form, begin.seed, replace(view, agent=agent), prompt)
        for agent in range(num_agents)
    ]


def claims(view: View) -> dict[int, str]:
    """Collect each agent's newest answer in a prompt, or last section without an answer section.

    Agents without any text are left out.
    """
    answer_section = view.contract.answer_section or ""
    newest_texts: dict[int, str] = {}
    for turn in view.turns:
        if turn.fields is None:
            continue
        section_texts = list(turn.fields.values())
        last_text = section_texts[-1] if section_texts else ""
        # Turns are in order, so that a newer answer replaces an older one.
        newest_texts[turn.agent] = turn.fields.get(answer_section) or last_text
    return {agent: text for agent, text in newest_texts.items() if text}


def record_replies(
    form: DebateForm, rules: Protocol, requests: Sequence[TurnRequest], sent: Sent
) -> list[Turn]:
    """Parse and record all replies sent to a form.

    Raises:
        TypeError: Something other than replies was sent.
        ValueError: There is not one reply per request.
    """
    replies = replies_to(requests, sent)
    return [
        record_reply(form, rules, request, reply)
        for request, reply in zip(requests, replies, strict=True)
    ]


def replies_to(requests: Sequence[TurnRequest], sent: Sent) -> list[Reply]:
    """Check the replies sent to a form; raises as `record_replies`."""
    # Whoever drives a form by hand may send a gate's decision here, or a single reply.
    if not isinstance(sent, list | tuple) or not all(isinstance(reply, Reply) for reply in sent):
        raise TypeError(
            f"the form yielded turn requests and was sent {sent!r}; send a list of replies"
        )
    if len(sent) != len(requests):
        raise ValueError(
            f"{len(requests)} turn requests were sent {len(sent)} replies; send one each, in order"
        )
    return list(sent)


def record_reply(form: DebateForm, rules: Protocol, request: TurnRequest, reply: Reply) -> Turn:
    """Parse the reply and record it as a turn, failed or not.

    A turn of a role without answers fails if it is empty, any other if no answer can be read.
    """
    is_too_long = reply.finish == "context_overflow"
    if is_too_long:
        # The prompt did not fit: nothing was sampled, so nothing may be trained on.
        reply = replace(reply, text="", token_ids=(), logps=(), starts=())
    contract = request.contract or form.contract_rules()
    parsed = parse(
        reply.text, contract, author=request.agent, num_agents=rules.num_agents, think=form.think
    )
    failure: str | None = None
    if is_too_long:
        failure = "context_overflow"
    elif not gives_answers(rules, request.agent, request.round):
        failure = None if parsed.spoken else "no_feedback"
    elif parsed.answer is None:
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
    """Get the content of a turn, parsed when it was recorded."""
    assert turn.parsed is not None
    return turn.parsed


@dataclass(frozen=True, slots=True)
class Dialogue:
    """The context of one agent after a turn."""

    messages: tuple[Message, ...]
    previous: Reply | None
    shown: tuple[TurnKey, ...]


class DebateState:
    """The state of one debate; it makes turn requests and records replies."""

    def __init__(self, form: DebateSettings, begin: DebateStart) -> None:
        self.form = form
        self.begin = begin
        self.rules: Protocol = form.protocol()
        check_roles(self.rules)
        contracts = self.rules.contracts or (self.rules.contract,)
        self._contracts = [get_contract(contract) for contract in contracts]
        # Quoted text may not contain the tags of any round, so one contract names them all.
        self._tags = self._contracts[0]
        if len(self._contracts) > 1:
            # A dict for a set in order: each name once, the same on every run.
            tag_names: dict[str, None] = {}
            for contract in self._contracts:
                tag_names |= dict.fromkeys(contract.sections)
            self._tags = Contract("tags", tuple(tag_names))
        self.turns: dict[TurnKey, Turn] = {}
        self._dialogues: dict[int, Dialogue] = {}

    def request_turn(self, agent: int, round: int) -> TurnRequest:
        """Build the request for this turn, with everything visible to the agent."""
        key = TurnKey(agent, round)
        dialogue = self._dialogues.get(agent)
        # A growing conversation only gets what is new; all others are written again each turn.
        if dialogue is not None and self.form.conversation == "append":
            return self._continued(key, dialogue)
        shown = self.shown_to(key)
        visible_turns = self._presented(agent, (*shown, *self.own_turns(key)))
        view = self._view(key, visible_turns, shown)
        messages = opening(self.form.style, view)
        return new_turn_request(self.form, self.begin.seed, view, messages, shown)

    def shown_to(self, key: TurnKey) -> tuple[TurnKey, ...]:
        """List the turns of others shown to the author of a turn."""
        return tuple(shown_turns(self.rules, key, self.turns))

    def own_turns(self, key: TurnKey) -> list[TurnKey]:
        """List the author's own earlier turns in the prompt of a turn."""
        num_rounds = self.form.own_rounds
        # -1 is all rounds, as in `history_rounds`.
        first_round = 0 if num_rounds < 0 else key.round - num_rounds
        return [
            earlier
            for earlier in self.turns
            if earlier.agent == key.agent and earlier.round >= first_round
        ]

    def record(self, requests: Sequence[TurnRequest], sent: Sent) -> bool:
        """Record the replies as turns; return whether the debate may go on after them.

        Raises:
            TypeError: Something other than replies was sent.
            ValueError: There is not one reply per request.
        """
        turns = record_replies(self.form, self.rules, requests, sent)
        for request, turn in zip(requests, turns, strict=True):
            self.turns[turn.key] = turn
            messages = request.messages
            previous = request.previous
            # A prompt without room for a reply stays the last message, see `_continued`.
            if turn.failure != "context_overflow":
                messages = (*messages, Message(role="assistant", content=turn.text))
                previous = turn.reply
            self._dialogues[request.agent] = Dialogue(messages, previous, request.shown)
        return self.form.on_failure == "continue" or all(turn.failure is None for turn in turns)

    def agreed(self, round: int) -> str | None:
        """Find the reason to end the debate early after this round, `None` to go on."""
        turns = [turn for key, turn in self.turns.items() if key.round == round]
        answering_turns = [turn for turn in turns if gives_answers(self.rules, *turn.key)]
        if not answering_turns or any(turn.failure is not None for turn in turns):
            return None
        if all(parsed_of(turn).consensus for turn in answering_turns):
            return "consensus"
        if not self.form.stop_when_agreed:
            return None
        # Compared with one answer only: all pairs would take the square of the agents.
        first, *others = [parsed_of(turn).answer or "" for turn in answering_turns]
        is_agreed = all(self.begin.same_answer(first, other) for other in others)
        return "agreed" if is_agreed else None

    def transcript(self, ended: str) -> Transcript:
        """Build the transcript; `meta` has the seed and the reason for the debate's end."""
        return self.begin.transcript(self.rules, self.turns.values(), ended)

    def gate(self, round: int) -> Gate:
        """Build the gate after a round."""
        return Gate(self.transcript("gate"), f"round_{round}")

    def _continued(self, key: TurnKey, dialogue: Dialogue) -> TurnRequest:
        shown = self.shown_to(key)
        new_turns = self._presented(key.agent, set(shown).difference(dialogue.shown))
        view = self._view(key, new_turns, shown)
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
        """Sort turns into the order in which an agent reads them."""
        position_of_agent = list(range(self.rules.num_agents))
        if self.form.presentation == "drawn":
            # By reader and not by round: an agent reads the others in one order all through.
            chance = random.Random(side_seed(self.begin.seed, f"presentation/{reader}"))
            chance.shuffle(position_of_agent)
        return sorted(keys, key=lambda key: (key.round, position_of_agent[key.agent]))

    def _view(self, key: TurnKey, turns: Sequence[TurnKey], shown: Sequence[TurnKey]) -> View:
        last_turn = self.turns.get(TurnKey(key.agent, key.round - 1))
        # A turn without room for a reply is not the agent's fault, and gets no reminder.
        last_turn_failed = last_turn is not None and last_turn.failure not in (
            None,
            "context_overflow",
        )
        valid_agents = {other.agent for other in shown if self.turns[other].failure is None}
        answering_agents = {other.agent for other in shown if gives_answers(self.rules, *other)}
        # Answers are judged and compared; comments are where nobody else answers.
        peers = valid_agents & answering_agents or valid_agents
        return View(
            question=self.begin.question,
            contract=self._contract(key.round),
            agent=key.agent,
            round=key.round,
            persona=self.form.persona(key.agent),
            turns=tuple(self._seen(turn_key, key.agent) for turn_key in turns),
            peers=tuple(sorted(peers)),
            own_turn_failed=last_turn_failed,
            central=self.rules.topology == "central" and key.agent == self.rules.center,
            answers=gives_answers(self.rules, *key),
            shared=self.form.conversation == "shared",
        )

    def _seen(self, key: TurnKey, reader: int) -> SeenTurn:
        turn = self.turns[key]
        if turn.failure is not None:
            return SeenTurn(key.agent, key.round, None)
        parsed = parsed_of(turn)
        contract = self._contract(key.round)
        # Each style looks for its own field: `compact` for the answer, on the speaker's line.
        is_compact = self.form.style == "compact"
        is_comment = not parsed.sections and not gives_answers(self.rules, *key)
        if is_comment:
            section_name = contract.answer_section or "answer"
            texts = {section_name if is_compact else "response": parsed.spoken}
        elif contract.kind == "xml":
            # A shared text is the same for all readers: the author's comparisons are hidden, too.
            is_for_others = key.agent != reader or self.form.conversation == "shared"
            texts = seen_sections(parsed, contract, blind=self.form.blind_review and is_for_others)
        elif is_compact:
            texts = {"answer": parsed.answer or ""}
        else:
            texts = {"response": parsed.spoken}
        limit = self.form.max_chars_per_field
        fields = {name: insertable(text, self._tags, limit) for name, text in texts.items()}
        return SeenTurn(key.agent, key.round, fields)


def seen_sections(parsed: Parsed, contract: Contract, *, blind: bool) -> dict[str, str]:
    """Collect the sections of a turn with content; `blind` hides comparisons."""
    texts = {name: section.text for name, section in parsed.sections.items()}
    if blind and "comparison" in contract.sections:
        texts.pop("comparison", None)
        # Comparisons under a misspelt tag are a part of the section before them.
        texts = {name: without_comparison(text) for name, text in texts.items()}
    return {name: text for name, text in texts.items() if not says_nothing(text)}


def shown_fields(form: DebateForm, turn: Turn, tags: Contract) -> dict[str, str] | None:
    """Collect the fields of a first answer for others; None where its sections cannot be read.

    Args:
        form: The form.
        turn: The answer.
        tags: The tags that quoted text may not contain.
    """
    contract = form.contract_rules()
    if contract.kind != "xml":
        field_name = "answer" if form.style == "compact" else "response"
        texts = {field_name: parsed_of(turn).spoken}
    elif turn.failure is not None:
        return None
    else:
        texts = seen_sections(parsed_of(turn), contract, blind=True)
    limit = form.max_chars_per_field
    return {name: insertable(text, tags, limit) for name, text in texts.items()}


class RoundForm(DebateSettings):
    """A debate of rounds, in which agents speak at once or one after the other."""

    def opened(self, begin: DebateStart) -> DebateState:
        """Build the state of a debate before its first turn."""
        return DebateState(self, begin)

    def debate(self, begin: DebateStart) -> DebateRun:
        """Play a debate."""
        state = self.opened(begin)
        for round in range(self.max_rounds):
            agents = speaking_agents(state.rules, round)
            # Agents of a group speak at once, so that their requests are sampled together.
            groups = [agents] if self.schedule == "parallel" else [(agent,) for agent in agents]
            for group in groups:
                requests = [state.request_turn(agent, round) for agent in group]
                replies = yield requests
                if not state.record(requests, replies):
                    return state.transcript("aborted")
            # Before the gate: a debate that has ended needs no decision.
            reason = state.agreed(round)
            if reason is not None:
                return state.transcript(reason)
            if round in self.gate_after:
                decision = yield state.gate(round)
                if decision == "keep":
                    return state.transcript("gate")
        return state.transcript("max_rounds")


class Simultaneous(RoundForm):
    """A debate with rounds that are spoken in parallel.

    Source: the Tinker debate note, section 2.1.
    """

    type: Literal["simultaneous"] = "simultaneous"


class Sequential(RoundForm):
    """A debate in which agent i also sees the agents before i of the same round.

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
        """Count the turns that are sampled."""
        return 1

    def debate(self, begin: DebateStart) -> DebateRun:
        """Request one answer."""
        rules = self.protocol()
        view = replace(first_view(begin, self.contract_rules()), persona=self.persona(0))
        requests = [new_turn_request(self, begin.seed, view, opening(self.style, view))]
        replies = yield requests
        (turn,) = record_replies(self, rules, requests, replies)
        ended = "max_rounds" if turn.failure is None else "failed"
        transcript = begin.transcript(rules, [turn], ended)
        if self.gate_after:
            yield Gate(transcript, "round_0")
        return transcript
