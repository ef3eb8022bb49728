"""Roles as JSON objects."""

from typing import Any, cast

from debate_protocol.transcripts.fields import (
    TranscriptError,
    at_most,
    optional,
    required,
    unknown_keys,
)
from debate_protocol.types import MAX_AGENTS, MAX_ROUNDS, TRAINED, AgentRole

_KEYS = ("name", "count", "answers", "rounds", "sees", "policy", "adapter", "trains")


def role_to_json(role: AgentRole) -> dict[str, object]:
    """Return a role as it stands in a file; what is the default is left out but for `count`."""
    record: dict[str, object] = {"name": role.name, "count": role.count}
    if not role.answers:
        record["answers"] = False
    if role.rounds is not None:
        record["rounds"] = list(role.rounds)
    if role.sees is not None:
        record["sees"] = role.sees if isinstance(role.sees, str) else dict(role.sees)
    if role.policy != TRAINED:
        record["policy"] = role.policy
    if role.adapter is not None:
        record["adapter"] = role.adapter
    if not role.trains:
        record["trains"] = False
    return record | dict(role.extra)


def read_roles(data: list[object], at: str) -> tuple[AgentRole, ...]:
    """Read the roles of a debate.

    Raises:
        TranscriptError: A key is missing, its value has another type, or there are more roles,
            agents or rounds than are read.
    """
    if len(data) > MAX_AGENTS:
        raise TranscriptError.at(at, f"found {len(data)}, expected at most {MAX_AGENTS}")
    return tuple(_role(one, f"{at}[{i}]") for i, one in enumerate(data))


def _role(data: object, at: str) -> AgentRole:
    if not isinstance(data, dict):
        raise TranscriptError(at, data, "an object")
    where = f"{at}."
    rounds = optional(data, "rounds", list, where, None)
    for one in rounds or ():
        if type(one) is not int or not 0 <= one < MAX_ROUNDS:
            raise TranscriptError(f"{where}rounds", one, f"rounds, 0 to {MAX_ROUNDS - 1}")
    return AgentRole(
        name=required(data, "name", str, where),
        count=at_most(optional(data, "count", int, where, 1), MAX_AGENTS, f"{where}count"),
        answers=_flag(data, "answers", where),
        rounds=None if rounds is None else tuple(rounds),
        sees=_sees(data.get("sees"), f"{where}sees"),
        policy=optional(data, "policy", str, where, TRAINED),
        adapter=optional(data, "adapter", str, where, None),
        trains=_flag(data, "trains", where),
        extra=unknown_keys(data, _KEYS),
    )


def _flag(data: dict[str, object], key: str, where: str) -> bool:
    value = data.get(key)
    if not (value is None or isinstance(value, bool)):
        raise TranscriptError(f"{where}{key}", value, "true or false")
    return value is not False


def _sees(value: object, where: str) -> Any:
    if value is None or value == "drawn":
        return value
    if isinstance(value, dict) and all(type(last) is int for last in value.values()):
        return cast(dict[str, int], value)
    raise TranscriptError(where, value, "drawn, or the number of rounds of each role")
