"""Turns as JSON objects, with what was sampled beside them."""

from typing import cast, get_args

from debate_protocol.transcripts.fields import (
    TranscriptError,
    at_most,
    optional,
    required,
    unknown_keys,
)
from debate_protocol.types import (
    MAX_AGENTS,
    MAX_ROUNDS,
    Branch,
    Message,
    Role,
    Turn,
    TurnKey,
)

MAX_DEPTH = 64
"""Most turns on a path of branches and continuations, so that no file exhausts the stack."""
_TURN_KEYS = (
    "agent",
    "round",
    "text",
    "shown",
    "prompt",
    "failure",
    "branches",
    "continuations",
)


def turn_to_json(turn: Turn) -> dict[str, object]:
    """Return a turn as it stands in a file; branches and continuations only where there are any."""
    record: dict[str, object] = {
        "agent": turn.agent,
        "round": turn.round,
        "text": turn.text,
        "shown": [list(key) for key in turn.shown],
        "prompt": None if turn.prompt is None else [dict(message) for message in turn.prompt],
    }
    if turn.failure is not None:
        record["failure"] = turn.failure
    if turn.branches:
        record["branches"] = [
            {"guide": branch.guide, "turn": turn_to_json(branch.turn)} for branch in turn.branches
        ]
    if turn.continuations:
        record["continuations"] = [turn_to_json(one) for one in turn.continuations]
    return record | dict(turn.extra)


def read_turn(data: object, at: str, depth: int = 1) -> Turn:
    """Read a turn.

    Args:
        data: A parsed JSON value.
        at: Where it stands, for messages.
        depth: How many turns the path to it has, itself included.

    Raises:
        TranscriptError: A key is missing, its value has another type, an agent or round is beyond
            `MAX_AGENTS` or `MAX_ROUNDS`, or branches and continuations are nested above
            `MAX_DEPTH`.
    """
    if not isinstance(data, dict):
        raise TranscriptError(at, data, "an object")
    if depth > MAX_DEPTH:
        raise TranscriptError.at(at[:80], f"nested deeper than {MAX_DEPTH} turns")
    where = f"{at}."
    prompt = optional(data, "prompt", list, where, None)
    return Turn(
        agent=at_most(required(data, "agent", int, where), MAX_AGENTS - 1, f"{where}agent"),
        round=at_most(required(data, "round", int, where), MAX_ROUNDS - 1, f"{where}round"),
        text=required(data, "text", str, where),
        shown=tuple(_turn_key(key, f"{where}shown") for key in _list(data, "shown", where)),
        prompt=None if prompt is None else tuple(_message(m, f"{where}prompt") for m in prompt),
        failure=optional(data, "failure", str, where, None),
        extra=unknown_keys(data, _TURN_KEYS),
        branches=tuple(
            _branch(one, f"{where}branches[{i}]", depth)
            for i, one in enumerate(_list(data, "branches", where))
        ),
        continuations=tuple(
            read_turn(one, f"{where}continuations[{i}]", depth + 1)
            for i, one in enumerate(_list(data, "continuations", where))
        ),
    )


def _branch(data: object, at: str, depth: int) -> Branch:
    if not isinstance(data, dict):
        raise TranscriptError(at, data, "an object with guide and turn")
    where = f"{at}."
    turn = read_turn(required(data, "turn", dict, where), f"{where}turn", depth + 1)
    return Branch(required(data, "guide", str, where), turn)


def _list(data: dict[str, object], key: str, where: str) -> list[object]:
    return cast(list[object], optional(data, key, list, where, []))


def _turn_key(value: object, where: str) -> TurnKey:
    if isinstance(value, list) and len(value) == 2 and all(type(part) is int for part in value):
        return TurnKey(*value)
    raise TranscriptError(where, value, "pairs [agent, round]")


def _message(value: object, where: str) -> Message:
    if isinstance(value, dict) and value.get("role") in get_args(Role):
        required(value, "content", str, f"{where}.")
        return cast(Message, value)
    raise TranscriptError(where, value, "messages with role and content")
