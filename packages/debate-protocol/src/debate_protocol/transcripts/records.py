"""Transcripts as JSON objects: typed fields, roles, turns, and what a transcript must keep."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Self, TypeVar, cast, get_args

from debate_protocol.parsing import Contract, ContractKind, get_contract
from debate_protocol.types import (
    MAX_AGENTS,
    MAX_ROUNDS,
    TOKENS,
    TRAINED,
    AgentRole,
    Branch,
    Message,
    Protocol,
    Role,
    Transcript,
    Turn,
    TurnKey,
    check_roles,
    check_topology,
)

__all__ = ["MEAN_LOGP", "mean_logp", "with_counts"]


T = TypeVar("T")
D = TypeVar("D")
_MISSING = object()
_NAMES = {str: "text", int: "an integer", dict: "an object", list: "a list"}


class TranscriptError(ValueError):
    """A file does not hold what it should: where, what was found, what was expected."""

    def __init__(self, where: str, found: object, expected: str) -> None:
        shown = "nothing" if found is _MISSING else _short(found)
        super().__init__(f"{where}: found {shown}, expected {expected}")

    @classmethod
    def at(cls, where: str, message: str) -> Self:
        """Return an error with a message of its own behind the place."""
        error = cls(where, None, "")
        error.args = (f"{where}: {message}",)
        return error


def required(data: Mapping[str, object], key: str, kind: type[T], where: str) -> T:
    """Return `data[key]`, checked to be of this type.

    Raises:
        TranscriptError: It is missing or of another type.
    """
    return _checked(data.get(key, _MISSING), kind, f"{where}{key}")


def optional(
    data: Mapping[str, object],
    key: str,
    kind: type[T] | tuple[type[T], ...],
    where: str,
    default: D,
) -> T | D:
    """Return `data[key]`, checked to be of this type, or the default if it is missing or null.

    Raises:
        TranscriptError: It is of another type.
    """
    value = data.get(key)
    return default if value is None else _checked(value, kind, f"{where}{key}")


def at_most(value: int, limit: int, where: str) -> int:
    """Return a number that is not above a limit.

    Raises:
        TranscriptError: It is.
    """
    if value > limit:
        raise TranscriptError(where, value, f"at most {limit}")
    return value


def unknown_keys(data: Mapping[str, object], known: Collection[str]) -> dict[str, object]:
    """Return what stands under other keys."""
    return {key: value for key, value in data.items() if key not in known}


def _checked(value: object, kind: type[T] | tuple[type[T], ...], where: str) -> T:
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    kinds = kind if isinstance(kind, tuple) else (kind,)
    raise TranscriptError(where, value, " or ".join(_NAMES[one] for one in kinds))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


_CONTRACT_KEYS = ("name", "sections", "stop", "kind", "instructions")


def contract_to_json(contract: str | Contract) -> str | dict[str, object]:
    """Return a contract as it stands in a file."""
    if isinstance(contract, str):
        return contract
    record: dict[str, object] = {
        "name": contract.name,
        "sections": list(contract.sections),
        "stop": contract.stop,
        "kind": contract.kind,
    }
    return record | ({"instructions": dict(contract.instructions)} if contract.instructions else {})


def read_contract(data: object, at: str) -> tuple[str | Contract, dict[str, object]]:
    """Read a contract by name or as an object; also return the object's unknown keys.

    Args:
        data: A parsed JSON value. Whether a name is known is not looked at.
        at: Where it stands, for messages.

    Raises:
        TranscriptError: It is neither, or the object describes no contract.
    """
    if isinstance(data, str):
        return data, {}
    if not isinstance(data, Mapping):
        raise TranscriptError(at, data, "a name or an object with name and sections")
    where = f"{at}."
    kind = optional(data, "kind", str, where, "xml")
    sections = optional(data, "sections", list, where, [])
    instructions = optional(data, "instructions", dict, where, {})
    for part, texts in (("sections", sections), ("instructions", instructions.values())):
        for text in texts:
            if not isinstance(text, str):
                raise TranscriptError(f"{where}{part}", text, "text")
    try:
        contract = Contract(
            name=required(data, "name", str, where),
            sections=tuple(sections),
            stop=optional(data, "stop", str, where, None),
            kind=cast(ContractKind, kind),
            instructions=instructions,
        )
    except TranscriptError:
        raise
    except ValueError as problem:
        raise TranscriptError.at(at, str(problem)) from None
    return contract, unknown_keys(data, _CONTRACT_KEYS)


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


def transcript_problems(transcript: Transcript) -> list[str]:
    """Return everything that contradicts itself, in words; empty when all is well."""
    rules = transcript.protocol
    problems = _rule_problems(rules)
    spoken: set[TurnKey] = set()
    for turn in transcript.turns:
        if turn.key in spoken:
            problems.append(f"{_name(turn.key)} is there twice")
        spoken.add(turn.key)
        if not 0 <= turn.agent < rules.num_agents:
            problems.append(f"{_name(turn.key)}: expected agents 0 to {rules.num_agents - 1}")
        if not 0 <= turn.round < rules.max_rounds:
            problems.append(f"{_name(turn.key)}: expected rounds 0 to {rules.max_rounds - 1}")
    for turn in transcript.turns:
        problems += _shown_problems(rules, turn, spoken)
        problems += _beside_problems(rules, turn)
    return problems


def _rule_problems(rules: Protocol) -> list[str]:
    problems = []
    if rules.num_agents < 1:
        problems.append(f"protocol.num_agents: found {rules.num_agents}, expected at least 1")
    if rules.max_rounds < 1:
        problems.append(f"protocol.max_rounds: found {rules.max_rounds}, expected at least 1")
    try:
        get_contract(rules.contract)
    except ValueError as problem:
        problems.append(f"protocol.{problem}")
    for check in (check_topology, check_roles):
        try:
            check(rules)
        except ValueError as problem:
            problems.append(f"protocol.{problem}")
    return problems


def _shown_problems(rules: Protocol, turn: Turn, spoken: set[TurnKey]) -> list[str]:
    problems = []
    if len(set(turn.shown)) < len(turn.shown):
        problems.append(f"{_name(turn.key)}: a turn stands twice in shown")
    for key in turn.shown:
        same_round = key.round == turn.round
        earlier = key.round < turn.round or (
            rules.schedule == "sequential" and same_round and key.agent < turn.agent
        )
        if key not in spoken:
            problems.append(f"{_name(turn.key)}: shown {list(key)} is no turn of this debate")
        elif key.agent == turn.agent:
            problems.append(f"{_name(turn.key)}: shown {list(key)} is its own; expected others'")
        elif not earlier:
            problems.append(f"{_name(turn.key)}: shown {list(key)} was spoken later")
    return problems


def _beside_problems(rules: Protocol, turn: Turn) -> list[str]:
    problems = []
    for branch in turn.branches:
        if branch.turn.key != turn.key:
            problems.append(f"{_name(turn.key)}: found a branch that is {_name(branch.turn.key)}")
        problems += _beside_problems(rules, branch.turn)
    for following in turn.continuations:
        is_next = following.round > turn.round or (
            rules.schedule == "sequential"
            and following.round == turn.round
            and following.agent > turn.agent
        )
        if not is_next:
            found = _name(following.key)
            problems.append(f"{_name(turn.key)}: continued by {found}; expected a later turn")
        if not 0 <= following.agent < rules.num_agents:
            problems.append(f"{_name(following.key)}: expected agents 0 to {rules.num_agents - 1}")
        problems += _beside_problems(rules, following)
    return problems


def _name(key: TurnKey) -> str:
    return f"turn of agent {key.agent} in round {key.round}"


MEAN_LOGP = "mean_logp"
"""Key of `Turn.extra` for the mean log-probability of the sampled tokens."""


def mean_logp(turn: Turn) -> float | None:
    """Return the mean log-probability of a turn's sampled tokens, None where it is not known.

    It is natural, and under the distribution that was sampled from; its exponential is the
    geometric mean of the tokens' probabilities.
    """
    if turn.reply is not None:
        logps = turn.reply.logps
        return sum(logps) / len(logps) if logps else None
    known = turn.extra.get(MEAN_LOGP)
    return float(known) if isinstance(known, int | float) else None


def with_counts(transcript: Transcript) -> Transcript:
    """Return a transcript with the numbers of tokens and their mean log-probability in its turns.

    They stand in `Turn.extra`, as `tokens` ([prompt tokens, sampled tokens]) and `mean_logp`, of
    every turn that holds its reply. What stands beside the turns stays as it is.
    """
    turns = []
    for turn in transcript.turns:
        kept: dict[str, object] = {}
        if turn.reply is not None and turn.token_counts is not None:
            kept[TOKENS] = [*turn.token_counts]
            known = mean_logp(turn)
            kept |= {} if known is None else {MEAN_LOGP: known}
        turns.append(replace(turn, extra={**turn.extra, **kept}) if kept else turn)
    return replace(transcript, turns=tuple(turns))
