"""The state of a debate: its turns, what each agent was given, and what a form offers callers."""

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from debate_protocol.forms.settings import DebateSettings, SameAnswer, SpeakingSettings
from debate_protocol.parsing import Contract, Parsed, parse, says_nothing, spoken_text
from debate_protocol.prompts import SeenTurn, View, insertable, news, opening, without_comparison
from debate_protocol.types import (
    Ask,
    Gate,
    Message,
    Protocol,
    Question,
    Reply,
    Sent,
    Transcript,
    Turn,
    TurnKey,
    Yielded,
    check_roles,
    gives_answers,
    shown_turns,
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


def new_ask(
    settings: SpeakingSettings,
    question: Question,
    key: TurnKey,
    seed: int,
    messages: tuple[Message, ...],
) -> Ask:
    """Return an ask with the agent's temperature, stop strings and the turn's own seed."""
    return Ask(
        question=question,
        agent=key.agent,
        round=key.round,
        messages=messages,
        temperature=settings.temperature_of(key.agent),
        stop=settings.stop_strings(),
        seed=turn_seed(seed, key.agent, key.round),
        contract=settings.contract_rules(),
        policy=settings.policy_of(key.agent),
        adapter=settings.adapter_of(key.agent),
    )


def record_reply(
    settings: SpeakingSettings, rules: Protocol, ask: Ask, reply: Reply
) -> tuple[Turn, Parsed]:
    """Return the reply as a turn, failed or not, and what it says.

    A turn of a role that owes no answer fails when it says nothing, and any other when no answer
    can be read.
    """
    failure: str | None = None
    if reply.finish == "context_overflow":
        reply = replace(reply, text="", token_ids=(), logps=(), starts=())
        failure = "context_overflow"
    contract = settings.contract_rules()
    parsed = parse(
        reply.text, contract, author=ask.agent, num_agents=rules.num_agents, think=settings.think
    )
    if failure is None and not gives_answers(rules, ask.agent):
        failure = None if spoken_text(reply.text, settings.think) else "no_feedback"
    elif failure is None and parsed.answer is None:
        failure = "no_solution" if contract.kind == "xml" else "no_answer"
    turn = Turn(
        agent=ask.agent,
        round=ask.round,
        text=reply.text,
        shown=ask.shown,
        prompt=ask.messages,
        failure=failure,
        reply=reply,
        parsed=parsed,
    )
    return turn, parsed


def replies_to(asks: Yielded, sent: Sent) -> list[Reply]:
    """Return the replies a form was sent.

    Raises:
        TypeError: It was sent something else than replies.
        ValueError: There is not one reply an ask.
    """
    if not isinstance(sent, list | tuple) or not all(isinstance(one, Reply) for one in sent):
        raise TypeError(f"the form yielded asks and was sent {sent!r}; send a list of replies")
    expected = len(asks) if isinstance(asks, list | tuple) else 0
    if len(sent) != expected:
        raise ValueError(f"{expected} asks were sent {len(sent)} replies; send one each, in order")
    return list(sent)


@dataclass(frozen=True, slots=True)
class Dialogue:
    """What one agent has in its context after a turn."""

    messages: tuple[Message, ...]
    previous: Reply | None
    given: tuple[TurnKey, ...]


class DebateState:
    """The state of one debate; it makes asks and records replies."""

    def __init__(
        self, form: DebateSettings, question: Question, seed: int, debate_id: str | None
    ) -> None:
        self.form = form
        self.rules: Protocol = form.protocol()
        check_roles(self.rules)
        self.question = question
        self.seed = seed
        self.debate_id = question.id if debate_id is None else debate_id
        self.contract = form.contract_rules()
        self.turns: dict[TurnKey, Turn] = {}
        self.parsed: dict[TurnKey, Parsed] = {}
        self._dialogues: dict[int, Dialogue] = {}

    def ask(self, agent: int, round: int) -> Ask:
        """Return the request for this turn, with all that the agent is to see."""
        key = TurnKey(agent, round)
        dialogue = self._dialogues.get(agent)
        if dialogue is not None and self.form.conversation == "append":
            return self._continued(key, dialogue)
        shown = tuple(shown_turns(self.rules, key, self.turns))
        last = self.form.own_rounds
        since = 0 if last < 0 else round - last
        own = [spoken for spoken in self.turns if spoken.agent == agent and spoken.round >= since]
        turns = self._presented(agent, (*shown, *own))
        messages = opening(self.form.style, self._view(key, turns, shown))
        return replace(new_ask(self.form, self.question, key, self.seed, messages), shown=shown)

    def record(self, asks: Sequence[Ask], sent: Sent) -> bool:
        """Write the turns down; return whether the debate may go on after them.

        Raises:
            TypeError: Something else than replies was sent.
            ValueError: There is not one reply an ask.
        """
        valid = True
        for ask, reply in zip(asks, replies_to(asks, sent), strict=True):
            turn, parsed = record_reply(self.form, self.rules, ask, reply)
            self.turns[turn.key], self.parsed[turn.key] = turn, parsed
            valid = valid and turn.failure is None
            if turn.failure == "context_overflow":
                self._dialogues[ask.agent] = Dialogue(ask.messages, ask.previous, ask.shown)
            else:
                said = Message(role="assistant", content=reply.text)
                self._dialogues[ask.agent] = Dialogue((*ask.messages, said), reply, ask.shown)
        return valid or self.form.on_failure == "continue"

    def agreed(self, round: int, same_answer: SameAnswer) -> str | None:
        """Return why the debate ends early after this round, or None."""
        spoken = [key for key in self.turns if key.round == round]
        if any(self.turns[key].failure is not None for key in spoken):
            return None
        keys = [key for key in spoken if gives_answers(self.rules, key.agent)]
        if not keys:
            return None
        if all(self.parsed[key].consensus for key in keys):
            return "consensus"
        if not self.form.stop_when_agreed:
            return None
        first, *others = [self.parsed[key].answer or "" for key in keys]
        return "agreed" if all(same_answer(first, other) for other in others) else None

    def transcript(self, ended: str) -> Transcript:
        """Return the record; `meta` holds the seed and why the debate ended."""
        return Transcript(
            id=self.debate_id,
            question=self.question,
            protocol=self.rules,
            turns=tuple(self.turns.values()),
            meta={"seed": self.seed, "ended": ended},
        )

    def gate(self, round: int) -> Gate:
        """Return the gate after a round."""
        return Gate(self.transcript("gate"), f"round_{round}")

    def _continued(self, key: TurnKey, dialogue: Dialogue) -> Ask:
        shown = tuple(shown_turns(self.rules, key, self.turns))
        fresh = self._presented(key.agent, set(shown).difference(dialogue.given))
        text = news(self.form.style, self._view(key, fresh, shown))
        messages = dialogue.messages
        if messages[-1]["role"] == "user":
            # The last prompt found no room and has no reply: two user messages become one.
            gap = "\n" if self.form.style == "compact" else "\n\n"
            text = f"{messages[-1]['content']}{gap}{text}"
            messages = messages[:-1]
        messages = (*messages, Message(role="user", content=text))
        ask = new_ask(self.form, self.question, key, self.seed, messages)
        return replace(ask, shown=shown, previous=dialogue.previous)

    def _presented(self, reader: int, keys: Iterable[TurnKey]) -> list[TurnKey]:
        """Return turns in the order in which an agent is given them."""
        place = list(range(self.rules.num_agents))
        if self.form.presentation == "drawn":
            random.Random(side_seed(self.seed, f"presentation/{reader}")).shuffle(place)
        return sorted(keys, key=lambda key: (key.round, place[key.agent]))

    def _view(self, key: TurnKey, turns: Sequence[TurnKey], shown: Sequence[TurnKey]) -> View:
        own_last = self.turns.get(TurnKey(key.agent, key.round - 1))
        valid = {k.agent for k in shown if self.turns[k].failure is None}
        # Answers are judged and compared; comments are where nobody else answers.
        peers = {agent for agent in valid if gives_answers(self.rules, agent)} or valid
        return View(
            question=self.question,
            contract=self.contract,
            agent=key.agent,
            round=key.round,
            persona=self.form.persona(key.agent),
            turns=tuple(self._seen(k, key.agent) for k in turns),
            peers=tuple(sorted(peers)),
            own_turn_failed=own_last is not None
            and own_last.failure not in (None, "context_overflow"),
            central=self.rules.topology == "central" and key.agent == self.rules.center,
            answers=gives_answers(self.rules, key.agent),
        )

    def _seen(self, key: TurnKey, reader: int) -> SeenTurn:
        turn, parsed = self.turns[key], self.parsed[key]
        if turn.failure is not None:
            return SeenTurn(key.agent, key.round, None)
        is_comment = not parsed.sections and not gives_answers(self.rules, key.agent)
        if is_comment:
            text = spoken_text(turn.text, self.form.think)
            name = self.contract.answer_section or "answer"
            fields = {name if self.form.style == "compact" else "response": text}
        elif self.contract.kind == "xml":
            fields = seen_sections(
                parsed, self.contract, blind=self.form.blind_review and key.agent != reader
            )
        elif self.form.style == "compact":
            fields = {"answer": parsed.answer or ""}
        else:
            fields = {"response": spoken_text(turn.text, self.form.think)}
        limit = self.form.max_chars_per_field
        ready = {n: insertable(text, self.contract, limit) for n, text in fields.items()}
        return SeenTurn(key.agent, key.round, ready)


def seen_sections(parsed: Parsed, contract: Contract, *, blind: bool) -> dict[str, str]:
    """Return the sections of a turn that say something; `blind` hides what it compares."""
    fields = {name: section.text for name, section in parsed.sections.items()}
    if blind and "comparison" in contract.sections:
        fields.pop("comparison", None)
        fields = {name: without_comparison(text) for name, text in fields.items()}
    return {name: text for name, text in fields.items() if not says_nothing(text)}
