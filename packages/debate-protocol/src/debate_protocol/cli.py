"""The command `debate-protocol`: parse responses, validate and show transcripts."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

from debate_protocol import __version__
from debate_protocol.contract import CONTRACTS, Contract, get_contract
from debate_protocol.fields import TranscriptError, optional, required
from debate_protocol.parsing import Parsed, parse, turn_failed
from debate_protocol.showing import shown_debate
from debate_protocol.tags import ThinkMode
from debate_protocol.transcript_checks import transcript_problems
from debate_protocol.transcripts import json_line, json_lines, read_lines
from debate_protocol.types import Transcript

DONE, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130


class UsageError(Exception):
    """The command cannot do what it was asked; the message is for the user."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 failed, 2 bad usage, 130 interrupted."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        code = command(options)
        sys.stdout.flush()
        return code
    except UsageError as problem:
        print(f"debate-protocol: {problem}", file=sys.stderr)
        return BAD_USAGE
    except BrokenPipeError:
        # The reader has seen enough; without this, Python complains when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="debate-protocol", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="parse | validate | show")
    one = commands.add_parser("parse", help="read responses, one JSON object a line")
    one.add_argument("file", help='JSON Lines of {"id", "text"[, "author", "num_agents"]}, or -')
    one.add_argument("--contract", default="three_section", help=", ".join(CONTRACTS))
    one.add_argument("--think", choices=("unwrap", "drop"), default="unwrap")
    one.add_argument("--strict", action="store_true", help="exit 1 when a response has problems")
    one.set_defaults(command=_parse)
    one = commands.add_parser("validate", help="check a file of transcripts")
    one.add_argument("file", help="transcripts, JSON Lines, or -")
    one.set_defaults(command=_validate)
    one = commands.add_parser("show", help="print one debate to read")
    one.add_argument("file", help="transcripts, JSON Lines, or -")
    one.add_argument("--id", help="which debate; the first by default")
    one.set_defaults(command=_show)
    return parser


def _parse(options: argparse.Namespace) -> int:
    try:
        contract = get_contract(options.contract)
    except ValueError as problem:
        raise UsageError(f"--{problem}") from None
    code = DONE
    with _opened(options.file) as stream:
        for number, row, _ in json_lines(stream, options.file):
            where = f"{options.file}:{number}"
            if isinstance(row, TranscriptError):
                raise UsageError(str(row))
            told, parsed = _parsed_row(row, where, contract, options.think)
            _write(told)
            if options.strict and parsed.problems:
                print(f"{where}: {'; '.join(parsed.problems)}", file=sys.stderr)
                code = FAILED
    return code


def _parsed_row(
    row: object, where: str, contract: Contract, think: ThinkMode
) -> tuple[dict[str, Any], Parsed]:
    try:
        if not isinstance(row, dict):
            raise TranscriptError("row", row, 'an object {"id", "text"}')
        parsed = parse(
            required(row, "text", str, ""),
            contract,
            author=optional(row, "author", int, "", None),
            num_agents=optional(row, "num_agents", int, "", None),
            think=think,
        )
    except TranscriptError as problem:
        raise UsageError(f"{where}: {problem}") from None
    return _told(row.get("id"), parsed, contract), parsed


def _told(name: object, parsed: Parsed, contract: Contract) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": name,
        "sections": {
            name: {"text": one.text, "span": one.span, "truncated": one.truncated}
            for name, one in parsed.sections.items()
        },
        "comparisons": [
            {"left": one.left, "op": one.op, "right": one.right, "span": one.span}
            for one in parsed.comparisons
        ],
        "invalid_lines": parsed.invalid_lines,
        "self_dropped": parsed.self_dropped,
        "malformed": parsed.malformed,
        "consensus": parsed.consensus,
        "problems": parsed.problems,
    }
    return told if contract.kind == "xml" else told | {"answer": parsed.answer}


def _validate(options: argparse.Namespace) -> int:
    debates = turns = failed = wrong = 0
    with _opened(options.file) as stream:
        for number, read, _ in read_lines(stream, options.file):
            if isinstance(read, TranscriptError):
                wrong += 1
                print(read)
                continue
            problems = transcript_problems(read)
            for problem in problems:
                print(f"{options.file}:{number}: {problem}")
            debates, turns = debates + 1, turns + len(read.turns)
            wrong += bool(problems)
            if read.protocol.contract in CONTRACTS:
                failed += sum(turn_failed(read, turn) for turn in read.turns)
    if not debates and not wrong:
        raise UsageError(f"{options.file}: found no transcripts, expected one a line")
    print(f"{debates} debates, {turns} turns, {failed} failed turns, {wrong} lines with problems")
    return FAILED if wrong else DONE


def _show(options: argparse.Namespace) -> int:
    with _opened(options.file) as stream:
        chosen = _chosen(stream, options.file, options.id)
    text = shown_debate(chosen, emphasis=sys.stdout.isatty())
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
    return DONE


def _chosen(stream: BinaryIO, name: str, wanted: str | None) -> Transcript:
    seen: list[str] = []
    for _, read, torn in read_lines(stream, name):
        if isinstance(read, Transcript):
            if wanted is None or read.id == wanted:
                return read
            seen.append(read.id)
        elif torn:
            print(read, file=sys.stderr)
        else:
            raise UsageError(str(read))
    if wanted is None:
        raise UsageError(f"{name}: found no transcripts, expected one a line")
    few = ", ".join(repr(one) for one in seen[:8])
    raise UsageError(f"{name}: found no debate with id {wanted!r}; it holds {few}")


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        stream = open(file, "rb")  # noqa: SIM115 - closed below; only opening may be misuse
    except OSError as problem:
        raise UsageError(f"{file}: cannot be read ({problem.strerror})") from None
    with stream:
        yield stream


def _write(value: object) -> None:
    sys.stdout.buffer.write(json_line(value))


if __name__ == "__main__":
    sys.exit(main())
