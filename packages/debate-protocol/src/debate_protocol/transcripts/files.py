"""Transcripts as JSON Lines: schema `debate-transcript/1`, one debate a line.

Unknown keys are kept. A transcript without `shown` gets it from schedule, roles, topology
and history.
"""

import json
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast, get_args

from debate_protocol.transcripts.records import (
    TranscriptError,
    at_most,
    contract_to_json,
    optional,
    read_contract,
    read_roles,
    read_turn,
    required,
    role_to_json,
    turn_to_json,
    unknown_keys,
)
from debate_protocol.transcripts.showing import escaped_json
from debate_protocol.types import (
    MAX_AGENTS,
    MAX_ROUNDS,
    Protocol,
    Question,
    Schedule,
    Transcript,
    Turn,
    shown_turns,
)

_MAX_DIGITS = 1000
MAX_LINE_BYTES = 1 << 25
"""Longest line that is read: its values take up to thirty times as much memory."""
MAX_NESTING = 500
"""Deepest list or object in a value; releases of Python differ in what they could hold."""
# What a line may give that was cut anywhere; a value that is refused was read whole.
_CUT_OFF = (json.JSONDecodeError, UnicodeDecodeError)


def json_line(value: object) -> bytes:
    """Return a value as one line of UTF-8 JSON; control characters and surrogates are escaped.

    Raises:
        RecursionError: It is nested deeper than `MAX_NESTING`.
    """
    text = json_text(value)
    try:
        return escaped_json(text).encode() + b"\n"
    except UnicodeEncodeError:
        return escaped_json(json.dumps(value, allow_nan=False)).encode() + b"\n"


def json_text(value: object) -> str:
    """Return a value as JSON.

    Raises:
        RecursionError: It is nested deeper than `MAX_NESTING`.
        ValueError: It holds NaN or an infinity.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    _refuse_deep(value, text.count("[") + text.count("{"))
    return text


def bounded_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a stream, no more than is needed to see that one is too long."""
    return iter(lambda: stream.readline(MAX_LINE_BYTES + 1), b"")


def json_lines(stream: Iterable[bytes], name: str) -> Iterator[tuple[int, object, bool]]:
    """Yield line number, value and whether it is a torn last line, for each line with content.

    The value of a line that is not JSON is a `TranscriptError` that names file and line.
    """
    lines = ((number, raw) for number, raw in enumerate(stream, 1) if raw.strip())
    current = next(lines, None)
    while current is not None:
        number, raw = current
        if len(raw) > MAX_LINE_BYTES:
            what = f"a line of more than {MAX_LINE_BYTES} bytes; expected one value a line"
            yield number, TranscriptError.at(f"{name}:{number}", what), False
            return
        following = next(lines, None)
        try:
            yield number, json_value(raw), False
        except (ValueError, RecursionError) as problem:
            torn = following is None and isinstance(problem, _CUT_OFF)
            what = "the last line is cut off" if torn else "not JSON"
            error = TranscriptError.at(f"{name}:{number}", f"{what} ({problem})")
            yield number, error, torn
        current = following


def json_value(text: str | bytes) -> object:
    """Return the value of a JSON text; bytes are UTF-8, 16 or 32.

    Raises:
        ValueError: It is none, holds NaN or an infinity, or a number of too many digits.
        RecursionError: It is nested deeper than `MAX_NESTING`.
    """
    if isinstance(text, bytes):
        # Python would take bytes of surrogates, which JSON cannot say again where two meet.
        text = text.decode(json.detect_encoding(text))
    value = json.loads(
        text, parse_constant=_refuse_constant, parse_int=integer, parse_float=_number
    )
    _refuse_deep(value, text.count("[") + text.count("{"))
    return value


def _refuse_deep(value: object, openings: int) -> None:
    """Refuse deep values; with few opening brackets in its text none is."""
    layer, depth = ([value] if openings > MAX_NESTING else []), 0
    while layer := [one for one in layer if isinstance(one, dict | list | tuple)]:
        depth += 1
        if depth > MAX_NESTING:
            raise RecursionError(f"lists and objects nested deeper than {MAX_NESTING}")
        layer = [inner for one in layer for inner in _items(one)]


def _items(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON value")


def integer(digits: str) -> int:
    """Return the whole number that these digits say.

    Raises:
        ValueError: They are none, or more than are read.
    """
    # Python's own refusal would advise to change a setting of Python.
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits, expected at most {_MAX_DIGITS}")
    return int(digits)


def _number(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:20]} is beyond the largest number")
    return value


SCHEMA = "debate-transcript/1"
MAX_DERIVED = 1000
"""Most turns of a transcript whose `shown` is derived, which takes time that grows with their
square."""
_TOP_KEYS = ("schema", "id", "question", "protocol", "turns", "meta")
_QUESTION_KEYS = ("id", "text", "answer", "meta")
_PROTOCOL_KEYS = (
    "num_agents",
    "max_rounds",
    "schedule",
    "contract",
    "topology",
    "history_rounds",
    "degree",
    "center",
)
_ROLES = "roles"


class TornLineWarning(UserWarning):
    """The last line of a file was cut off while it was written; the other lines were read."""


def to_json(transcript: Transcript) -> dict[str, object]:
    """Return the transcript as it stands in a file; tokens are left out."""
    question, rules = transcript.question, transcript.protocol
    extra = dict(transcript.extra)
    record: dict[str, object] = {"text": question.text, "answer": question.answer}
    record |= {"meta": dict(question.meta)}
    if question.id != transcript.id:
        record["id"] = question.id
    return {
        "schema": SCHEMA,
        "id": transcript.id,
        "question": record | dict(cast(dict[str, object], extra.pop("question", {}))),
        "protocol": _protocol_to_json(rules),
        "turns": [turn_to_json(turn) for turn in transcript.turns],
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
        TranscriptError: A key is missing, its value has another type, or there are more agents,
            rounds or turns than are read; the message says where.
    """
    if not isinstance(data, Mapping):
        raise TranscriptError("transcript", data, "an object")
    schema = optional(data, "schema", str, "", SCHEMA)
    if schema != SCHEMA:
        hint = "; a newer debate-protocol reads it" if _is_newer(schema) else ""
        raise TranscriptError("schema", schema, f"{SCHEMA!r}{hint}")
    name = optional(data, "id", (str, int), "", default_id)
    question, question_extra = _question(required(data, "question", dict, ""), str(name))
    turns_data = required(data, "turns", list, "")
    turns = [read_turn(turn, f"turns[{i}]") for i, turn in enumerate(turns_data)]
    rules = _protocol(required(data, "protocol", dict, ""), turns)
    turns = _with_shown(rules, turns, turns_data)
    extra = unknown_keys(data, _TOP_KEYS)
    if question_extra:
        extra["question"] = question_extra
    meta = optional(data, "meta", dict, "", {})
    return Transcript(str(name), question, rules, tuple(turns), meta, extra)


def _is_newer(schema: str) -> bool:
    name, _, version = schema.partition("/")
    return name == SCHEMA.partition("/")[0] and version.isdecimal() and version != "1"


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
        for _, read, torn in read_lines(bounded_lines(file), str(path)):
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
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with unfinished.open("wb") as file:
            for transcript in transcripts:
                file.write(json_line(to_json(transcript)))
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def read_lines(
    stream: Iterable[bytes], name: str
) -> Iterator[tuple[int, Transcript | TranscriptError, bool]]:
    """Yield line number, transcript or what is wrong, and whether it is a torn last line."""
    for number, value, torn in json_lines(stream, name):
        if isinstance(value, TranscriptError):
            yield number, value, torn
            continue
        try:
            yield number, from_json(cast(dict[str, object], value), default_id=str(number)), False
        except TranscriptError as problem:
            yield number, TranscriptError.at(f"{name}:{number}", str(problem)), False


def _question(data: dict[str, object], transcript_id: str) -> tuple[Question, dict[str, object]]:
    where = "question."
    question = Question(
        id=str(optional(data, "id", (str, int), where, transcript_id)),
        text=required(data, "text", str, where),
        answer=optional(data, "answer", str, where, None),
        meta=optional(data, "meta", dict, where, {}),
    )
    return question, unknown_keys(data, _QUESTION_KEYS)


def _protocol_to_json(rules: Protocol) -> dict[str, object]:
    record = {key: getattr(rules, key) for key in _PROTOCOL_KEYS}
    record = {key: value for key, value in record.items() if value is not None}
    extra = dict(rules.extra)
    record["contract"] = contract_to_json(rules.contract)
    if isinstance(record["contract"], dict):
        record["contract"] |= cast(dict[str, object], extra.pop("contract", {}))
    if rules.roles:
        record[_ROLES] = [role_to_json(role) for role in rules.roles]
    return record | extra


def _protocol(data: dict[str, object], turns: list[Turn]) -> Protocol:
    where = "protocol."
    schedule = optional(data, "schedule", str, where, "parallel")
    if schedule not in get_args(Schedule):
        raise TranscriptError("protocol.schedule", schedule, " or ".join(get_args(Schedule)))
    last_round = max((turn.round for turn in turns), default=0)
    extra = unknown_keys(data, (*_PROTOCOL_KEYS, _ROLES))
    given = data.get("contract")
    contract, contract_extra = read_contract(
        "three_section" if given is None else given, "protocol.contract"
    )
    if contract_extra:
        extra["contract"] = contract_extra
    return Protocol(
        num_agents=at_most(
            required(data, "num_agents", int, where), MAX_AGENTS, f"{where}num_agents"
        ),
        max_rounds=at_most(
            optional(data, "max_rounds", int, where, last_round + 1),
            MAX_ROUNDS,
            f"{where}max_rounds",
        ),
        schedule=cast(Schedule, schedule),
        contract=contract,
        topology=optional(data, "topology", str, where, "all"),
        history_rounds=optional(data, "history_rounds", int, where, -1),
        degree=optional(data, "degree", int, where, None),
        center=optional(data, "center", int, where, None),
        roles=read_roles(optional(data, _ROLES, list, where, []), f"{where}{_ROLES}"),
        extra=extra,
    )


def _with_shown(rules: Protocol, turns: list[Turn], data: list[Any]) -> list[Turn]:
    if all(one.get("shown") is not None for one in data):
        return turns
    if len(turns) > MAX_DERIVED:
        raise TranscriptError.at(
            "turns",
            f"found {len(turns)}, not all with shown; expected at most {MAX_DERIVED}, or shown "
            "in each",
        )
    spoken = {turn.key for turn in turns}
    completed = []
    for turn, one in zip(turns, data, strict=True):
        if one.get("shown") is None:
            try:
                shown = tuple(shown_turns(rules, turn.key, spoken))
            except ValueError as problem:
                raise TranscriptError.at("turns", f"without shown, but {problem}") from None
            turn = replace(turn, shown=shown)
        completed.append(turn)
    return completed
