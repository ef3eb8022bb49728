"""`debate-train recipes`: the recipes that a name stands for."""

import argparse
import sys
from collections.abc import Sequence

from debate_protocol.command_line import DONE, heed_options, run_command
from debate_protocol.transcripts.showing import escaped
from debate_train.commands.options import TRAIN, part_parser
from debate_train.recipe_names import headings


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    arguments = part_parser("recipes").parse_args(sys.argv[2:] if argv is None else argv)
    heed_options(arguments)
    return run_command(TRAIN, lambda: list_recipes(arguments))


def list_recipes(arguments: argparse.Namespace) -> int:
    """Print the names that hold a word, or whose heading does, each with its heading."""
    listed = {
        name: heading for name, heading in headings().items() if arguments.word in name + heading
    }
    width = max(map(len, listed), default=0)
    for name, heading in listed.items():
        print(escaped(f"{name:{width}}  {heading}"))
    return DONE
