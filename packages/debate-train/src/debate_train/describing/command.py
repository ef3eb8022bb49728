"""What `debate-train` says without a recipe: `debate-train recipes`."""

import argparse
from collections.abc import Callable, Mapping, Sequence

from debate_protocol.transcripts.control_characters import escaped
from debate_train.commands.recipe_command import DONE, exit_code

NAME = "debate-train"


def describing_main(argv: Sequence[str]) -> int:
    """Run one of `COMMANDS`, named by the first argument; return its exit code."""
    name, *rest = argv
    add, act = COMMANDS[name]
    parser = argparse.ArgumentParser(prog=f"{NAME} {name}", description=act.__doc__)
    add(parser)
    arguments = parser.parse_args(rest)
    return exit_code(NAME, lambda: act(arguments))


def _recipes(arguments: argparse.Namespace) -> int:
    """List the recipes that a name stands for, each with its first sentences."""
    from debate_train.reading.shipped_recipes import headings

    found = {
        name: heading for name, heading in headings().items() if arguments.word in name + heading
    }
    width = max(map(len, found), default=0)
    for name, heading in found.items():
        print(escaped(f"{name:{width}}  {heading}"))
    return DONE


def _add_word(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("word", nargs="?", default="", help="only those that this stands in")


Part = tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]
COMMANDS: Mapping[str, Part] = {"recipes": (_add_word, _recipes)}
"""What can stand in the place of a recipe: its arguments, and what it does."""
