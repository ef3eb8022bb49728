"""JSON Lines: one value a line, with what is wrong of each line that cannot be read."""

import json
import math
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from debate_protocol.transcripts.control_characters import escaped_json
from debate_protocol.transcripts.fields import TranscriptError

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
