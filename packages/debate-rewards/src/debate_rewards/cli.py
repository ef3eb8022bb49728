"""The `debate-rewards` command: score, verify, stats and what-if."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from debate_protocol.command_line import (
    BAD_USAGE,
    DONE,
    FAILED,
    add_options,
    complain,
    heed_options,
    run_command,
)

NAME = "debate-rewards"
# Of each subcommand: its line of `--help`, and the function that adds its arguments.
SUBCOMMANDS = {
    "score": ("one JSON line of credits per debate", "score_commands.add_score"),
    "verify": ("one JSON line of verdict per prediction", "score_commands.add_verify"),
    "stats": ("statistics of all debates, with intervals", "score_commands.add_stats"),
    "what-if": ("recorded debates under other rewards", "what_if_command.add_what_if"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 failed, 2 bad usage, 130 interrupted."""
    words = sys.argv[1:] if argv is None else argv

    def run() -> int:
        arguments = command_parser(words).parse_args(words)
        heed_options(arguments)
        try:
            arguments.run(arguments)
        except ValueError as error:
            complain(NAME, error)
            return BAD_USAGE
        except RuntimeError as error:
            complain(NAME, error)
            return FAILED
        return DONE

    return run_command(NAME, run)


def command_parser(words: Sequence[str] = tuple(SUBCOMMANDS)) -> argparse.ArgumentParser:
    """Build the parser of the command, with the arguments of the subcommands among some words.

    Subcommands import rewards, which takes half a second; the command's own help needs none.
    """
    parser = argparse.ArgumentParser(
        prog=NAME, description="Score debates, verify answers, print statistics."
    )
    add_options(parser, "debate_rewards")
    commands = parser.add_subparsers(required=True, metavar=" | ".join(SUBCOMMANDS))
    for name, (summary, function) in SUBCOMMANDS.items():
        subparser = commands.add_parser(name, help=summary)
        if name in words:
            module, _, add_arguments = function.partition(".")
            getattr(import_module(f"debate_rewards.{module}"), add_arguments)(subparser)
        subparser.set_defaults(command=NAME)
        add_options(subparser, "debate_rewards", part=True)
    return parser
