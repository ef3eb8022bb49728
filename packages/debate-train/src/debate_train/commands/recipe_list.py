"""`debate-train recipes`: names and headings of recipes."""

import argparse
import sys
from collections.abc import Sequence

from debate_protocol.command_line import DONE, heed_options, run_command
from debate_protocol.plugins import did_you_mean
from debate_protocol.transcripts.showing import escaped
from debate_train.commands.options import TRAIN, part_parser
from debate_train.errors import UsageError
from debate_train.recipe_names import headings


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    arguments = part_parser("recipes").parse_args(sys.argv[2:] if argv is None else argv)
    heed_options(arguments)
    return run_command(TRAIN, lambda: list_recipes(arguments))


def list_recipes(arguments: argparse.Namespace) -> int:
    """Print each recipe with the word in name or heading."""
    all_headings = headings()
    matches = {}
    for name, heading in all_headings.items():
        if arguments.word.lower() in f"{name} {heading}".lower():
            matches[name] = heading
    if not matches:
        raise UsageError(
            f"recipes: found none with {arguments.word!r:.60} in name or heading; expected another "
            f"word, or none for all{did_you_mean(arguments.word, all_headings)}"
        )
    name_width = max(map(len, matches))
    for name, heading in matches.items():
        print(escaped(f"{name:{name_width}}  {heading}"))
    return DONE
