"""The command `python -m debate_train.theory`."""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from debate_protocol.command_options import add_options, heed_options
from debate_protocol.command_streams import BAD_USAGE, DONE, complain, run_command
from debate_protocol.types import Transcript
from debate_train.errors import UsageError
from debate_train.theory.grid import BY_ROUND, VOTES, drift_row, round_rows, settings, vote_row
from debate_train.theory.run_comparison import in_words, lay_beside

NAME = "debate_train.theory"
_LEAST, _MOST = 100, 1_000_000


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables and return the exit code: 0 done, 2 bad usage, 130 interrupted."""

    def run() -> int:
        arguments = command_parser().parse_args(argv)
        heed_options(arguments)
        try:
            found = _of_run(arguments) if arguments.transcripts else _of_grid(arguments)
        except ValueError as error:
            complain(NAME, error)
            return BAD_USAGE
        print(json.dumps(found, ensure_ascii=False) if arguments.json else as_text(found))
        return DONE

    return run_command(NAME, run)


def command_parser() -> argparse.ArgumentParser:
    """Return what the command takes."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {NAME}",
        description="The belief model of SDRL, simulated, beside what the paper says of it; or a "
        "finished run beside the theory.",
    )
    parser.add_argument("--debates", type=int, default=100_000, help="simulated for each setting")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.add_argument(
        "--transcripts", metavar="FILE.jsonl", help="debates of a finished run, or - for stdin"
    )
    add_options(parser, "debate_train")
    return parser


def _of_grid(arguments: argparse.Namespace) -> dict[str, Any]:
    debates, seed = arguments.debates, arguments.seed
    if not _LEAST <= debates <= _MOST:
        raise UsageError(f"--debates: found {debates}, expected {_LEAST} to {_MOST:,}")
    if seed < 0:
        raise UsageError(f"--seed: found {seed}, expected at least 0")
    by_round = [row for name in BY_ROUND for row in round_rows(name, 6, debates, seed)]
    return {
        "drift": [asdict(drift_row(names, debates, seed)) for names in settings()],
        "votes": [asdict(vote_row(cell, debates, seed)) for cell in VOTES],
        "rounds": [asdict(row) for row in by_round],
    }


def _of_run(arguments: argparse.Namespace) -> dict[str, Any]:
    from debate_rewards.command_input import transcripts_in

    return of_debates(transcripts_in(arguments.transcripts), arguments.transcripts)


def of_debates(transcripts: Sequence[Transcript], name: str) -> dict[str, Any]:
    """Return finished debates beside the theory: rows of rounds, and sentences.

    Raises:
        UsageError: They are of several numbers of agents; `name` is where they come from.
        ValueError: No question has an answer that is known.
    """
    from debate_rewards.metrics.debate_metrics import debate_statistics

    sizes = sorted({one.protocol.num_agents for one in transcripts})
    if len(sizes) > 1:
        raise UsageError(
            f"{name}: found debates of {sizes[0]} and of {sizes[1]} agents, "
            "expected the same number in all"
        )
    rows = lay_beside(debate_statistics(transcripts), sizes[0])
    return {
        "run": [asdict(row) for row in rows],
        "words": in_words(rows, transcripts[0].protocol.topology),
    }


def as_text(found: Mapping[str, Any]) -> str:
    """Return tables, and sentences where there are some."""
    parts = [_table(rows) for name, rows in found.items() if name != "words"]
    return "\n\n".join([*parts, *found.get("words", ())])


def _table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as a Markdown table."""
    rows = list(rows)
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    lines += [[_cell(name, value) for name, value in row.items()] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(name: str, value: object) -> str:
    if isinstance(value, float):
        digits = 1 if name.startswith("z") or name == "slack" else 4
        return f"{value:.{digits}f}"
    if isinstance(value, list | tuple):
        return ", ".join(f"{part:g}" for part in value)
    return "" if value is None else str(value)
