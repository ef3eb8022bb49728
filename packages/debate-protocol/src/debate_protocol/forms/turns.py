"""One turn: its ask, and how its reply is heard."""

import hashlib
from dataclasses import replace

from debate_protocol.forms.settings import SpeakingSettings
from debate_protocol.parsing.parsed import Parsed
from debate_protocol.parsing.replies import parse, spoken_text
from debate_protocol.roles import gives_answers
from debate_protocol.types import (
    Ask,
    Message,
    Protocol,
    Question,
    Reply,
    Sent,
    Turn,
    TurnKey,
    Yielded,
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


def heard(
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
