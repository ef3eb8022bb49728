"""The command `debate-protocol`: parse responses; validate, show and export transcripts."""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from debate_protocol.command_line import (
    DONE,
    FAILED,
    NO_TRANSCRIPTS,
    UsageError,
    add_options,
    heed_options,
    is_quiet,
    opened,
    read_debates,
    run_command,
    transcripts_in,
)
from debate_protocol.parsing import CONTRACTS, Contract, Parsed, get_contract, parse
from debate_protocol.transcripts.files import (
    JsonObject,
    TranscriptError,
    json_line,
    json_lines,
    to_json,
    transcript_problems,
)
from debate_protocol.transcripts.showing import escaped, shown_debate
from debate_protocol.types import Transcript, turn_failed

_FILE = "transcripts, JSON Lines or XML, or -"
NAME = "debate-protocol"
EXPORTS = ("xml", "jsonl", "inspect", "verifiers", "trl")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 failed, 2 bad usage, 130 interrupted."""

    def run() -> int:
        options = command_parser().parse_args(arguments)
        heed_options(options)
        command: Callable[[argparse.Namespace], int] = options.command
        return command(options)

    return run_command(NAME, run)


def command_parser() -> argparse.ArgumentParser:
    """Return what the command takes."""
    parser = argparse.ArgumentParser(prog=NAME, description=__doc__)
    add_options(parser, "debate_protocol")
    commands = parser.add_subparsers(required=True, metavar="parse | validate | show | export")
    subparser = commands.add_parser("parse", help="read responses, one JSON object a line")
    subparser.add_argument(
        "file", help='JSON Lines of {"id", "text"[, "author", "num_agents"]}, or -'
    )
    subparser.add_argument("--contract", default="three_section", help=", ".join(CONTRACTS))
    subparser.add_argument("--think", choices=("unwrap", "drop"), default="unwrap")
    subparser.set_defaults(command=_parse)
    subparser = commands.add_parser("validate", help="check a file of transcripts")
    subparser.add_argument("file", help=_FILE)
    subparser.set_defaults(command=_validate)
    subparser = commands.add_parser("show", help="print one debate to read")
    subparser.add_argument("file", help=_FILE)
    subparser.add_argument("--id", help="which debate; the first by default")
    subparser.set_defaults(command=_show)
    subparser = commands.add_parser("export", help="write transcripts in another form to stdout")
    subparser.add_argument("file", help=_FILE)
    subparser.add_argument("--to", choices=EXPORTS, required=True)
    subparser.set_defaults(command=_export)
    for subparser in commands.choices.values():
        add_options(subparser, "debate_protocol", part=True)
    return parser


def _parse(options: argparse.Namespace) -> int:
    try:
        contract = get_contract(options.contract)
    except ValueError as problem:
        raise UsageError(f"--{problem}") from None
    with opened(options.file) as (stream, name):
        for number, row, _ in json_lines(stream, name):
            where = f"{name}:{number}"
            if isinstance(row, TranscriptError):
                raise UsageError(str(row))
            try:
                data = JsonObject(row, "", 'an object {"id", "text"}', "row")
                parsed = parse(
                    data.take("text", str),
                    contract,
                    author=data.take("author", int, default=None),
                    num_agents=data.take("num_agents", int, default=None),
                    think=options.think,
                )
            except TranscriptError as problem:
                raise UsageError(f"{where}: {problem}") from None
            record = _record(data.rest.get("id"), parsed, contract)
            sys.stdout.buffer.write(json_line(record))
    return DONE


def _record(name: object, parsed: Parsed, contract: Contract) -> dict[str, object]:
    record: dict[str, object] = {
        "id": name,
        "sections": {
            name: {key: getattr(item, key) for key in ("text", "span", "truncated")}
            for name, item in parsed.sections.items()
        },
        "comparisons": [
            {key: getattr(item, key) for key in ("left", "op", "right", "span")}
            for item in parsed.comparisons
        ],
    }
    other_keys = ("invalid_lines", "self_dropped", "malformed", "consensus", "problems")
    record |= {key: getattr(parsed, key) for key in other_keys}
    return record if contract.kind == "xml" else record | {"answer": parsed.answer}


def _validate(options: argparse.Namespace) -> int:
    debates = turns = failed = wrong = 0
    with opened(options.file) as (stream, name):
        for number, read, _ in read_debates(stream, name):
            if isinstance(read, TranscriptError):
                wrong += 1
                _say(escaped(str(read)))
                continue
            problems = transcript_problems(read)
            for problem in problems:
                _say(escaped(f"{name}:{number}: {problem}"))
            debates, turns = debates + 1, turns + len(read.turns)
            wrong += bool(problems)
            with suppress(ValueError):  # an unknown contract, which is among the problems
                failed += sum(turn_failed(read, turn) for turn in read.turns)
    if not debates and not wrong:
        raise UsageError(f"{name}: {NO_TRANSCRIPTS}")
    if not is_quiet():
        counts = f"{debates} debates, {turns} turns, {failed} failed turns"
        _say(f"{counts}, {wrong} lines with problems")
    return FAILED if wrong else DONE


def _show(options: argparse.Namespace) -> int:
    chosen = _chosen(options.file, options.id)
    _say(shown_debate(chosen, emphasis=sys.stdout.isatty()).removesuffix("\n"))
    return DONE


def _chosen(file: str, asked_id: str | None) -> Transcript:
    debate_ids: list[str] = []
    for transcript in transcripts_in(NAME, file):
        if asked_id is None or transcript.id == asked_id:
            return transcript
        debate_ids.append(transcript.id)
    few = ", ".join(repr(debate_id) for debate_id in debate_ids[:8])
    raise UsageError(f"{file}: found no debate with id {asked_id!r}; it holds {few}")


def _export(options: argparse.Namespace) -> int:
    transcripts = list(transcripts_in(NAME, options.file))
    if options.to == "xml":
        from debate_protocol.transcripts.xml import to_xml

        sys.stdout.buffer.write(to_xml(transcripts))
    elif options.to == "jsonl":
        sys.stdout.buffer.writelines(json_line(to_json(transcript)) for transcript in transcripts)
    else:
        from debate_protocol.transcripts.log_files import lines_for

        sys.stdout.buffer.writelines(lines_for(options.to, transcripts, options.file))
    return DONE


def _say(text: str) -> None:
    """Print a line that may hold what the terminal's encoding has no place for."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace") + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
