"""What `debate-train` does without a recipe: `debate-train recipes`, `debate-train study`."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from debate_protocol.command_options import add_options, heed_options
from debate_protocol.transcripts.control_characters import escaped
from debate_train.commands.recipe_command import DONE, exit_code
from debate_train.errors import UsageError
from debate_train.interrupts import raise_interrupts

NAME = "debate-train"


def describing_main(argv: Sequence[str]) -> int:
    """Run one of `COMMANDS`, named by the first argument; return its exit code."""
    name, *rest = argv
    arguments = part_parser(name).parse_intermixed_args(rest)
    heed_options(arguments)
    return exit_code(NAME, lambda: COMMANDS[name][1](arguments))


def part_parser(name: str) -> argparse.ArgumentParser:
    """Return what one of `COMMANDS` takes."""
    add, act = COMMANDS[name]
    parser = argparse.ArgumentParser(prog=f"{NAME} {name}", description=act.__doc__)
    add(parser)
    add_options(parser, "debate_train")
    return parser


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


def _init(arguments: argparse.Namespace) -> int:
    """Write a commented recipe to begin with, made of one that ships."""
    from debate_train.describing.templates import template

    path: Path = arguments.file
    text = template(arguments.method, arguments.size, path.stem, arguments.overrides)
    try:
        with path.open("x", encoding="utf-8") as file:  # Not through a link either.
            file.write(text)
    except FileExistsError as error:
        raise UsageError(f"{path}: found a file; expected the name of a new one") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
    print(escaped(f"{path}: next, {NAME} {path} --check"))
    return DONE


def _add_start(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="the recipe to write, new")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="settings of it"
    )
    parser.add_argument(
        "--method", required=True, help="selfplay, sdrl, acc, dapo, grpo, curriculum"
    )
    parser.add_argument(
        "--size", default="cpu", help="cpu (default), or the model's parameters, such as 8b"
    )


def _schema(arguments: argparse.Namespace) -> int:
    """Print the JSON Schema of recipes, for editors: `# yaml-language-server: $schema=FILE`."""
    from debate_train.describing.json_schema import recipe_schema
    from debate_train.recipe import Recipe

    print(json.dumps(recipe_schema(Recipe), indent=1))
    return DONE


def _completion(arguments: argparse.Namespace) -> int:
    """Print what a shell completes of all commands: eval "$(debate-train completion bash)"."""
    from debate_train.describing.completion import completion

    print(completion(arguments.shell, list(COMMANDS)))
    return DONE


def _import(arguments: argparse.Namespace) -> int:
    """Print what verifiers or TRL have written as transcripts: `… > debates.jsonl`."""
    from debate_protocol.transcripts.files import to_json
    from debate_protocol.transcripts.json_lines import json_line
    from debate_train.rollout_files.debate_files import debates_in

    choices = {"contract": arguments.contract, "kind": arguments.kind, "answer": arguments.answer}
    for debate in debates_in(arguments.file, "FILE", **choices):
        sys.stdout.buffer.write(json_line(to_json(debate)))
    return DONE


def _add_rollouts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="rollouts, .jsonl or .parquet")
    parser.add_argument("--contract", default="boxed", help="how replies mark answers (boxed)")
    parser.add_argument("--kind", help="how answers are compared (mathematics)")
    parser.add_argument("--answer", metavar="COLUMN", help="with the right answers")


def _study(arguments: argparse.Namespace) -> int:
    """Run arms of recipes over seeds, as FILE says and as far as they are missing; compare them."""
    from debate_train.studies.command import study

    raise_interrupts()
    study(arguments)
    return DONE


def _add_study(parser: argparse.ArgumentParser) -> None:
    from debate_train.studies.options import add_study_options

    add_study_options(parser)


def _add_shell(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"))


def _add_nothing(parser: argparse.ArgumentParser) -> None:
    """Take no arguments."""


def _add_word(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("word", nargs="?", default="", help="only those that this stands in")


Part = tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]
COMMANDS: Mapping[str, Part] = {
    "recipes": (_add_word, _recipes),
    "init": (_add_start, _init),
    "schema": (_add_nothing, _schema),
    "import": (_add_rollouts, _import),
    "study": (_add_study, _study),
    "completion": (_add_shell, _completion),
}
"""What can stand in the place of a recipe: its arguments, and what it does."""
