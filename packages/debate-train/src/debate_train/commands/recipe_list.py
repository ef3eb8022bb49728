"""`debate-train recipes`: names and headings of recipes."""

import argparse
import sys
from collections.abc import Sequence

from debate_protocol.command_line import DONE, heed_options, run_command
from debate_protocol.transcripts.showing import escaped
from debate_train.commands.options import TRAIN, part_parser
from debate_train.recipe_names import headings


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    arguments = part_parser("recipes").parse_args(sys.argv[2:] if argv is None else argv)
    heed_options(arguments)
    return run_command(TRAIN, lambda: list_recipes(arguments))


def list_recipes(arguments: argparse.Namespace) -> int:
    """Print each recipe with the word in name or heading."""
    matches = {}
    for name, heading in headings().items():
        if arguments.word in name + heading:
            matches[name] = heading
    name_width = max(map(len, matches), default=0)
    for name, heading in matches.items():
        print(escaped(f"{name:{name_width}}  {heading}"))
    return DONE
