"""What the `debate-rewards` command reads: transcripts, and answers to verify."""

import reprlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

from debate_protocol.command_streams import complain
from debate_protocol.transcripts.files import read_lines
from debate_protocol.transcripts.json_lines import bounded_lines, json_lines
from debate_protocol.types import Question, Transcript
from debate_rewards.answers.checking import is_texts
from debate_rewards.answers.final_answers import Kind

EXPECTED = '"id", "gold" and "prediction"'


class UsageError(ValueError):
    """The command was called wrongly or its input cannot be read."""


class Pair(NamedTuple):
    """One line of `verify`'s input, with what the kind of answer needs to know."""

    id: object
    gold: str | None
    prediction: str | None
    meta: dict[str, Any]

    def question(self, kind: Kind) -> Question:
        """Return the question that the prediction answers."""
        return Question(str(self.id), "", self.gold, self.meta | {"kind": kind})


def transcripts_in(file: str) -> list[Transcript]:
    """Read transcripts from a file, or from standard input for `-`.

    A last line that was cut off is reported on standard error, and the others are read.

    Raises:
        UsageError: The file, or a line of it, cannot be read, or it holds no transcript.
    """
    transcripts = []
    with _opened(file) as stream:
        for _, read, torn in read_lines(bounded_lines(stream), _name(file)):
            if isinstance(read, Transcript):
                transcripts.append(read)
            elif torn:
                complain("debate-rewards", f"{read}; the other lines are read")
            else:
                raise UsageError(str(read))
    if not transcripts:
        raise UsageError(f"{_name(file)}: found no debates, expected one transcript a line")
    return transcripts


def pairs_in(file: str) -> list[Pair]:
    """Read answers to verify, one object a line; `choices` and `accept` may stand in it.

    Raises:
        UsageError: The file, or a line of it, cannot be read, or it holds none.
    """
    pairs = []
    with _opened(file) as stream:
        for number, row, _ in json_lines(bounded_lines(stream), _name(file)):
            where = f"{_name(file)}:{number}"
            if isinstance(row, Exception):
                raise UsageError(str(row))
            if not isinstance(row, dict):
                raise UsageError(f"{where}: expected an object with {EXPECTED}")
            if "id" not in row:
                raise UsageError(f"{where}: 'id' is missing; expected {EXPECTED}")
            gold, prediction = _text(row, "gold", where), _text(row, "prediction", where)
            pairs.append(Pair(row["id"], gold, prediction, _meta(row, where)))
    if not pairs:
        raise UsageError(f"{_name(file)}: found no answers, expected one a line with {EXPECTED}")
    return pairs


def _meta(row: dict[str, object], where: str) -> dict[str, object]:
    meta = {key: row[key] for key in ("choices", "accept") if row.get(key) is not None}
    for key, value in meta.items():
        texts = list(value.values()) if key == "choices" and isinstance(value, dict) else value
        if not is_texts(texts):
            found = reprlib.repr(value)
            raise UsageError(f"{where}, {key}: found {found}, expected a list of texts")
    return meta


def _text(row: dict[str, object], key: str, where: str) -> str | None:
    """Return a text of a line; a number becomes its text, null is None."""
    if key not in row:
        raise UsageError(f"{where}: {key!r} is missing; expected {EXPECTED}")
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise UsageError(f"{where}, {key}: found {value!r}, expected a text or null")
    return None if value is None else str(value)


def _name(file: str) -> str:
    return "standard input" if file == "-" else file


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if "\0" in file:
        raise UsageError(f"{file!r}: no file can have this name")
    try:
        if file == "-":
            if sys.stdin is None:
                raise UsageError("standard input: cannot be read: it is closed")
            yield sys.stdin.buffer
        else:
            with open(file, "rb") as stream:
                yield stream
    except OSError as error:
        raise UsageError(f"{_name(file)}: cannot be read: {error.strerror or error}") from None
