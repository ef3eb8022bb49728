"""Transcripts as JSON Lines: schema `debate-transcript/1`, one debate a line.

Unknown keys are kept. A transcript without `shown` gets it from schedule, roles, topology
and history.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, cast, get_args

from debate_protocol.parsing import Contract, get_contract
from debate_protocol.suggestions import did_you_mean
from debate_protocol.transcripts.showing import escaped_json
from debate_protocol.types import (
    MAX_AGENTS,
    MAX_ROUNDS,
    TOKENS,
    TRAINED,
    AgentRole,
    Branch,
    Protocol,
    Question,
    Role,
    Schedule,
    Transcript,
    Turn,
    TurnKey,
    check_roles,
    check_topology,
    shown_turns,
    turn_problems,
)

SCHEMA = "debate-transcript/1"
MEAN_LOGP = "mean_logp"
"""Key of `Turn.extra` for the mean log-probability of the sampled tokens."""
_REQUIRED = object()
_KINDS = {str: "text", int: "an integer", dict: "an object", list: "a list", bool: "true or false"}
_RULES = ("topology", "history_rounds", "degree", "center")
_ROLE_DEFAULTS = AgentRole("")
_QUESTION_META = ("kind", "choices", "accept", "passage", "wrong_answers")
# What a line may raise that was cut off anywhere; a value that is refused was read whole.
_CUT_OFF = (json.JSONDecodeError, UnicodeDecodeError)


class TranscriptError(ValueError):
    """A file has an unexpected value; the message names the place, the value and the expected."""

    def __init__(self, where: str, found: object, expected: str) -> None:
        text = "nothing" if found is _REQUIRED else repr(found)
        shown = text if len(text) <= 60 else f"{text[:60]}…"
        super().__init__(f"{where}: found {shown}, expected {expected}")

    @classmethod
    def at(cls, where: str, message: str) -> Self:
        """Build an error with a free message after the place."""
        error = cls(where, None, "")
        error.args = (f"{where}: {message}",)
        return error


class TornLineWarning(UserWarning):
    """The last line of a file was cut off while it was written; the other lines were read."""


class JsonObject:
    """A JSON object that is read key by key; `rest` has the keys that were not taken yet.

    Args:
        data: A parsed JSON value.
        where: Place of the value, for messages; empty at the top of a line.
        expected: Expected kind of value, for messages.
        name: Name of an object at the top of a line, for messages.

    Raises:
        TranscriptError: The value is no object.
    """

    def __init__(
        self, data: object, where: str = "", expected: str = "an object", name: str = "transcript"
    ) -> None:
        if not isinstance(data, Mapping):
            raise TranscriptError(where or name, data, expected)
        self.rest: dict[str, object] = dict(data)
        self._prefix = f"{where}." if where else ""

    def place(self, key: str) -> str:
        """Name the place of a key's value, for messages."""
        return f"{self._prefix}{key}"

    def take(self, key: str, *kinds: type, default: object = _REQUIRED) -> Any:
        """Take a value of one of these types; the default where it is missing or null.

        Raises:
            TranscriptError: The value is of another type, or missing without a default.
        """
        value = self.rest.pop(key, _REQUIRED)
        if default is not _REQUIRED and (value is None or value is _REQUIRED):
            return default
        # In Python true is an integer, in a transcript it is not.
        if isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool)):
            return value
        raise TranscriptError(self.place(key), value, " or ".join(_KINDS[kind] for kind in kinds))

    def number(self, key: str, limit: int, default: object = _REQUIRED) -> int:
        """Take an integer that is not above a limit.

        Raises:
            TranscriptError: The value is above the limit, or no integer.
        """
        value: int = self.take(key, int, default=default)
        if value > limit:
            raise TranscriptError(self.place(key), value, f"at most {limit}")
        return value

    def objects(self, key: str, default: object = ()) -> list["JsonObject"]:
        """Take a list of objects."""
        values = self.take(key, list, default=default)
        return [JsonObject(value, f"{self.place(key)}[{i}]") for i, value in enumerate(values)]

    def child(self, key: str) -> "JsonObject":
        """Take an object."""
        return JsonObject(self.take(key, dict), self.place(key))


def json_line(value: object) -> bytes:
    """Write a value as one line of UTF-8 JSON; control characters and surrogates are escaped."""
    try:
        return escaped_json(json_text(value)).encode() + b"\n"
    except UnicodeEncodeError:
        # A lone surrogate has no UTF-8; as an escape in ASCII it survives.
        return escaped_json(json.dumps(value, allow_nan=False)).encode() + b"\n"


def json_text(value: object) -> str:
    """Write a value as JSON.

    Raises:
        ValueError: The value contains NaN or an infinity.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def json_value(text: str | bytes) -> object:
    """Parse a JSON text; bytes are UTF-8, 16 or 32.

    Raises:
        ValueError: The text is no JSON, or contains NaN or an infinity.
        RecursionError: The value is nested too deeply.
    """
    if isinstance(text, bytes):
        # Python would take bytes of surrogates, which JSON cannot say again where two meet.
        text = text.decode(json.detect_encoding(text))
    return json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON value")


def json_lines(stream: Iterable[bytes], name: str) -> Iterator[tuple[int, object, bool]]:
    """Yield line number, value and whether it is a torn last line, for each line with content.

    The value of a line that is not JSON is a `TranscriptError` that names file and line.
    """
    lines = ((number, line) for number, line in enumerate(stream, 1) if line.strip())
    current = next(lines, None)
    while current is not None:
        number, line = current
        # One line ahead: only the last line can be torn.
        following = next(lines, None)
        try:
            yield number, json_value(line), False
        except (ValueError, RecursionError) as problem:
            is_torn = following is None and isinstance(problem, _CUT_OFF)
            description = "the last line is cut off" if is_torn else "not JSON"
            error = TranscriptError.at(f"{name}:{number}", f"{description} ({problem})")
            yield number, error, is_torn
        current = following


def read_lines(
    stream: Iterable[bytes], name: str
) -> Iterator[tuple[int, Transcript | TranscriptError, bool]]:
    """Yield line number, transcript or error, and whether it is a torn last line."""
    for number, value, torn in json_lines(stream, name):
        if isinstance(value, TranscriptError):
            yield number, value, torn
            continue
        try:
            yield number, from_json(cast(dict[str, object], value), default_id=str(number)), False
        except TranscriptError as problem:
            yield number, TranscriptError.at(f"{name}:{number}", str(problem)), False


def read_transcripts(path: str | os.PathLike[str]) -> list[Transcript]:
    """Read a file of transcripts; blank lines are skipped.

    A last line that was cut off is reported as `TornLineWarning` and left out. A transcript
    without an id takes its line number, from 1.

    Raises:
        TranscriptError: Another line cannot be read; the message names file and line.
        OSError: The file cannot be opened.
    """
    transcripts = []
    with Path(path).open("rb") as file:
        for _, read, torn in read_lines(file, str(path)):
            if isinstance(read, Transcript):
                transcripts.append(read)
            elif torn:
                warnings.warn(TornLineWarning(str(read)), stacklevel=2)
            else:
                raise read
    return transcripts


def write_transcripts(path: str | os.PathLike[str], transcripts: Iterable[Transcript]) -> None:
    """Write a file of transcripts as a whole: it appears complete or not at all.

    Raises:
        OSError: The file cannot be written.
        ValueError: A value has no place in JSON, such as NaN.
    """
    target = Path(path)
    # In the same folder, since only a rename within one file system is atomic.
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with unfinished.open("wb") as file:
            file.writelines(json_line(to_json(transcript)) for transcript in transcripts)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def to_json(transcript: Transcript) -> dict[str, object]:
    """Convert the transcript to the JSON of a file, without tokens."""
    question = transcript.question
    extra = dict(transcript.extra)
    record: dict[str, object] = {
        "text": question.text,
        "answer": question.answer,
        "meta": dict(question.meta),
    }
    # Most debates are named after their question: `from_json` takes the debate's id then.
    if question.id != transcript.id:
        record["id"] = question.id
    return {
        "schema": SCHEMA,
        "id": transcript.id,
        "question": record | dict(cast(dict[str, object], extra.pop("question", {}))),
        "protocol": _protocol_to_json(transcript.protocol),
        "turns": [_turn_to_json(turn) for turn in transcript.turns],
        "meta": dict(transcript.meta),
        **extra,
    }


def from_json(data: Mapping[str, object], *, default_id: str = "") -> Transcript:
    """Read one transcript.

    Unknown keys go to `extra` of transcript, protocol and turn; those of the question go to
    `transcript.extra["question"]`, those of a contract to `protocol.extra["contract"]`.

    Args:
        data: A parsed JSON object.
        default_id: The id of a transcript that brings none.

    Raises:
        TranscriptError: A key is missing, its value has another type, or there are more agents
            or rounds than are read; the message says where.
    """
    top = JsonObject(data)
    schema = top.take("schema", str, default=SCHEMA)
    if schema != SCHEMA:
        version = schema.removeprefix("debate-transcript/")
        hint = "; a newer debate-protocol reads it" if version.isdecimal() else ""
        raise TranscriptError("schema", schema, f"{SCHEMA!r}{hint}")
    transcript_id = str(top.take("id", str, int, default=default_id))
    question_data = top.child("question")
    question = Question(
        id=str(question_data.take("id", str, int, default=transcript_id)),
        text=question_data.take("text", str),
        answer=question_data.take("answer", str, default=None),
        meta=question_data.take("meta", dict, default={}),
    )
    turns_data = top.objects("turns", _REQUIRED)
    # Before the turns are read, which takes the key.
    lacks_shown = [turn_data.rest.get("shown") is None for turn_data in turns_data]
    try:
        turns = [_read_turn(turn_data) for turn_data in turns_data]
    except RecursionError:
        raise TranscriptError.at("turns", "branches are nested too deeply") from None
    last_round = max((turn.round for turn in turns), default=0)
    rules = _read_protocol(top.child("protocol"), last_round)
    meta = top.take("meta", dict, default={})

    # An empty list says that nothing was shown; only a missing one follows from the rules.
    spoken = {turn.key for turn in turns}
    for i, turn in enumerate(turns):
        if not lacks_shown[i]:
            continue
        try:
            shown = tuple(shown_turns(rules, turn.key, spoken))
        except ValueError as problem:
            raise TranscriptError.at("turns", f"without shown, but {problem}") from None
        turns[i] = replace(turn, shown=shown)

    extra = top.rest
    if question_data.rest:
        extra = extra | {"question": question_data.rest}
    return Transcript(
        id=transcript_id,
        question=question,
        protocol=rules,
        turns=tuple(turns),
        meta=meta,
        extra=extra,
    )


def _protocol_to_json(rules: Protocol) -> dict[str, object]:
    extra = dict(rules.extra)
    contract = contract_to_json(rules.contract)
    if isinstance(contract, dict):
        contract |= cast(dict[str, object], extra.pop("contract", {}))
    record: dict[str, object] = {
        "num_agents": rules.num_agents,
        "max_rounds": rules.max_rounds,
        "schedule": rules.schedule,
        "contract": contract,
    }
    for key in _RULES:
        if getattr(rules, key) is not None:
            record[key] = getattr(rules, key)
    if rules.roles:
        record["roles"] = [_role_to_json(role) for role in rules.roles]
    if rules.contracts:
        record["contracts"] = [contract_to_json(contract) for contract in rules.contracts]
    return record | extra


def _read_protocol(data: JsonObject, last_round: int) -> Protocol:
    schedule = data.take("schedule", str, default="parallel")
    if schedule not in get_args(Schedule):
        raise TranscriptError(data.place("schedule"), schedule, " or ".join(get_args(Schedule)))
    contract_data = data.rest.pop("contract", None)
    contract, unknown_keys = _read_contract(
        "three_section" if contract_data is None else contract_data
    )
    num_agents = data.number("num_agents", MAX_AGENTS)
    # Files of other programs may not say how many rounds there could have been.
    max_rounds = data.number("max_rounds", MAX_ROUNDS, last_round + 1)
    topology = data.take("topology", str, default="all")
    history_rounds = data.take("history_rounds", int, default=-1)
    degree = data.take("degree", int, default=None)
    center = data.take("center", int, default=None)
    roles = tuple(map(_read_role, data.objects("roles")))
    contracts_data = data.take("contracts", list, default=[])
    contracts = tuple(_read_contract(contract_data)[0] for contract_data in contracts_data)
    # The rest only after all known keys were taken from it.
    extra = data.rest
    if unknown_keys:
        extra = extra | {"contract": unknown_keys}
    return Protocol(
        num_agents=num_agents,
        max_rounds=max_rounds,
        schedule=schedule,
        contract=contract,
        topology=topology,
        history_rounds=history_rounds,
        degree=degree,
        center=center,
        roles=roles,
        contracts=contracts,
        extra=extra,
    )


def contract_to_json(contract: str | Contract) -> str | dict[str, object]:
    """Write a contract as files have it: a built-in one by name; defaults are left out."""
    if isinstance(contract, str):
        return contract
    record: dict[str, object] = {
        "name": contract.name,
        "sections": list(contract.sections),
        "stop": contract.stop,
        "kind": contract.kind,
    }
    if contract.instructions:
        record["instructions"] = dict(contract.instructions)
    if not contract.answers:
        record["answers"] = False
    if contract.ranks_own:
        record["ranks_own"] = True
    return record


def _read_contract(data: object) -> tuple[str | Contract, dict[str, object]]:
    """Read a contract by name or as an object; the second value is the object's unknown keys."""
    where = "protocol.contract"
    if isinstance(data, str):
        return data, {}
    contract = JsonObject(data, where, "a name or an object with name and sections")
    sections = contract.take("sections", list, default=[])
    instructions = contract.take("instructions", dict, default={})
    for key, texts in (("sections", sections), ("instructions", instructions.values())):
        for text in texts:
            if not isinstance(text, str):
                raise TranscriptError(contract.place(key), text, "text")
    name = contract.take("name", str)
    stop = contract.take("stop", str, default=None)
    kind = contract.take("kind", str, default="xml")
    answers = contract.take("answers", bool, default=True)
    ranks_own = contract.take("ranks_own", bool, default=False)
    try:
        rules = Contract(
            name=name,
            sections=tuple(sections),
            stop=stop,
            kind=kind,
            instructions=instructions,
            answers=answers,
            ranks_own=ranks_own,
        )
    except ValueError as problem:
        raise TranscriptError.at(where, str(problem)) from None
    return rules, contract.rest


def _role_to_json(role: AgentRole) -> dict[str, object]:
    """Write a role as files have it: name, count, and all else that is no default."""
    record: dict[str, object] = {"name": role.name, "count": role.count}
    for key in ("answers", "rounds", "sees", "policy", "adapter", "trains"):
        value = getattr(role, key)
        if value != getattr(_ROLE_DEFAULTS, key):
            plain = list(value) if isinstance(value, tuple) else value
            record[key] = dict(plain) if isinstance(plain, Mapping) else plain
    return record | dict(role.extra)


def _read_role(data: JsonObject) -> AgentRole:
    rounds = data.take("rounds", list, default=None)
    for round in rounds or ():
        # Not `isinstance`: to Python true is an integer.
        if type(round) is not int or not 0 <= round < MAX_ROUNDS:
            raise TranscriptError(data.place("rounds"), round, f"rounds, 0 to {MAX_ROUNDS - 1}")
    sees = data.rest.pop("sees", None)
    if isinstance(sees, dict):
        is_valid = all(type(num_rounds) is int for num_rounds in sees.values())
    else:
        is_valid = sees in (None, "drawn")
    if not is_valid:
        expected = "drawn, or the number of rounds of each role"
        raise TranscriptError(data.place("sees"), sees, expected)
    return AgentRole(
        name=data.take("name", str),
        count=data.number("count", MAX_AGENTS, 1),
        answers=data.take("answers", bool, default=True),
        rounds=None if rounds is None else tuple(rounds),
        sees=cast(Any, sees),
        policy=data.take("policy", str, default=TRAINED),
        adapter=data.take("adapter", str, default=None),
        trains=data.take("trains", bool, default=True),
        extra=data.rest,
    )


def _turn_to_json(turn: Turn) -> dict[str, object]:
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
            {"guide": branch.guide, "turn": _turn_to_json(branch.turn)} for branch in turn.branches
        ]
    if turn.continuations:
        record["continuations"] = [
            _turn_to_json(continuation) for continuation in turn.continuations
        ]
    return record | dict(turn.extra)


def _read_turn(data: JsonObject) -> Turn:
    shown = data.take("shown", list, default=[])
    prompt = data.take("prompt", list, default=None)
    for key in shown:
        if not isinstance(key, list) or [type(part) for part in key] != [int, int]:
            raise TranscriptError(data.place("shown"), key, "pairs [agent, round]")
    for message in prompt or ():
        is_message = isinstance(message, dict) and message.get("role") in get_args(Role)
        if not is_message or not isinstance(message.get("content"), str):
            raise TranscriptError(data.place("prompt"), message, "messages with role and content")
    return Turn(
        agent=data.number("agent", MAX_AGENTS - 1),
        round=data.number("round", MAX_ROUNDS - 1),
        text=data.take("text", str),
        shown=tuple(TurnKey(*key) for key in shown),
        prompt=None if prompt is None else tuple(prompt),
        failure=data.take("failure", str, default=None),
        branches=tuple(
            Branch(turn=_read_turn(branch.child("turn")), guide=branch.take("guide", str))
            for branch in data.objects("branches")
        ),
        continuations=tuple(_read_turn(turn) for turn in data.objects("continuations")),
        extra=data.rest,
    )


def transcript_problems(transcript: Transcript) -> list[str]:
    """List everything that contradicts itself, in words; empty for a sound transcript."""
    rules = transcript.protocol
    problems = []
    for key in ("num_agents", "max_rounds"):
        if getattr(rules, key) < 1:
            problems.append(f"protocol.{key}: found {getattr(rules, key)}, expected at least 1")
    checks: list[Callable[[], object]] = []
    for contract in (rules.contract, *rules.contracts):
        checks.append(partial(get_contract, contract))
    checks.append(partial(check_topology, rules))
    checks.append(partial(check_roles, rules))
    for check in checks:
        try:
            check()
        except ValueError as problem:
            problems.append(f"protocol.{problem}")
    spoken = {turn.key for turn in transcript.turns}
    problems += turn_problems(transcript)
    for turn in transcript.turns:
        where = f"turn of agent {turn.agent} in round {turn.round}"
        problems += [f"{where}: {problem}" for problem in _shown_problems(rules, turn, spoken)]
    problems += _misnamed_keys(transcript)
    return problems


def _misnamed_keys(transcript: Transcript) -> Iterator[str]:
    """Name unknown keys that look like known ones: they are kept, and change nothing."""
    objects: list[tuple[str, Protocol | AgentRole | Turn]] = [("protocol", transcript.protocol)]
    objects += [(f"protocol.roles, {role.name}", role) for role in transcript.protocol.roles]
    for turn in transcript.turns:
        objects.append((f"turn of agent {turn.agent} in round {turn.round}", turn))
    for where, record in objects:
        known = [field.name for field in fields(record)]
        for key in record.extra:
            hint = did_you_mean(key, known, cutoff=0.8)
            if hint and key not in known:
                yield f"{where}: {key} is not read{hint}"
    for key in cast(Mapping[str, object], transcript.extra.get("question", {})):
        if key in _QUESTION_META:
            yield f"question.{key}: is not read; expected question.meta.{key}"


def _shown_problems(rules: Protocol, turn: Turn, spoken: set[TurnKey]) -> Iterator[str]:
    if len(set(turn.shown)) < len(turn.shown):
        yield "a turn stands twice in shown"
    for key in turn.shown:
        if key not in spoken:
            yield f"shown {list(key)} is no turn of this debate"
        elif key.agent == turn.agent:
            yield f"shown {list(key)} is its own; expected others'"
        elif not _is_earlier(rules, key, turn.key):
            yield f"shown {list(key)} was spoken later"


def _is_earlier(rules: Protocol, first: TurnKey, second: TurnKey) -> bool:
    # Turns of a parallel round are spoken at once: none of them can have been shown another.
    if first.round == second.round:
        return rules.schedule == "sequential" and first.agent < second.agent
    return first.round < second.round


def mean_logp(turn: Turn) -> float | None:
    """Compute the mean log-probability of a turn's sampled tokens, `None` if unknown.

    The logarithm is natural, under the distribution that was sampled from; the exponential of the
    mean is the geometric mean of the tokens' probabilities.
    """
    if turn.reply is not None:
        logps = turn.reply.logps
        return sum(logps) / len(logps) if logps else None
    known = turn.extra.get(MEAN_LOGP)
    return float(known) if isinstance(known, int | float) else None


def with_counts(transcript: Transcript) -> Transcript:
    """Add token counts and mean log-probabilities to the turns of a transcript.

    `Turn.extra` of every turn with a reply gets `tokens` ([prompt tokens, sampled tokens]) and
    `mean_logp`. Branches and continuations stay as they are.
    """
    turns = []
    for turn in transcript.turns:
        if turn.reply is not None:
            extra = {**turn.extra, TOKENS: [*turn.reply.token_counts]}
            turn_mean_logp = mean_logp(turn)
            if turn_mean_logp is not None:
                extra[MEAN_LOGP] = turn_mean_logp
            turn = replace(turn, extra=extra)
        turns.append(turn)
    return replace(transcript, turns=tuple(turns))
