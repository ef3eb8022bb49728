"""What every command that takes a recipe shares: arguments, reading, checking, exit codes."""

import argparse
import errno
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from debate_protocol.command_line import add_options, heed_options, is_quiet
from debate_protocol.transcripts.showing import escaped
from debate_rewards.reward import ScoreError
from debate_rollout.engine import EngineFailure, RolloutError
from debate_train.interrupts import (
    REFUSALS,
    RunFailure,
    UsageError,
    ignore_interrupts,
    raise_interrupts,
)
from debate_train.monitoring.progress import steady_streams

if TYPE_CHECKING:
    from debate_train.recipe import Recipe
    from debate_train.recipe.check import CheckReport
    from debate_train.recipe.files import LoadedRecipe


DONE, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_NAME = {errno.ENAMETOOLONG, errno.ELOOP}


@dataclass(frozen=True, slots=True)
class CheckedRecipe:
    """A recipe that can be run, and its resolved text without the values of the environment."""

    recipe: "Recipe"
    text: str


def recipe_parser(program: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """Return a parser for RECIPE, key=value and --check."""
    parser = argparse.ArgumentParser(
        prog=program,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "recipe",
        nargs="?",  # --explain needs none.
        metavar="RECIPE",
        help="a YAML file, or a name of `debate-train recipes`",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],  # Without one argparse calls them required.
        metavar="key=value",
        help="settings that replace the recipe's",
    )
    add_options(parser, "debate_train")
    parser.add_argument(
        "--check",
        action="store_true",
        help="say what the recipe would do and whether it can, then stop; loads no weights",
    )
    parser.add_argument(
        "--print",
        action="store_true",
        help="print the whole recipe, with what it extends, overrides and defaults, then stop",
    )
    parser.add_argument(
        "--explain",
        metavar="KEY",
        help="say what a key of recipes means, such as reward.components, then stop",
    )
    return parser


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments of a parser of `recipe_parser`; exits where they are wrong."""
    arguments = parser.parse_intermixed_args(argv)
    heed_options(arguments)
    if arguments.recipe is None and arguments.explain is None:
        parser.error("the following arguments are required: RECIPE")
    return arguments


def run_recipe(
    arguments: argparse.Namespace,
    check: "Callable[[Recipe], CheckReport]",
    act: Callable[[CheckedRecipe], int],
    *,
    says_plan: bool = True,
) -> int:
    """Read the recipe, print what `check` says of it, and `act` on it unless --check is set.

    Without `says_plan` only warnings and errors are printed.

    Raises:
        UsageError: The recipe is wrong, or cannot be run here.
    """
    for name, value in vars(arguments).items():
        refuse_unreadable(name, value)
    from debate_train.recipe import Recipe
    from debate_train.recipe.files import load_recipe, resolved_yaml

    if arguments.recipe is None:
        return _explain(arguments.explain, None)
    loaded = load_recipe(arguments.recipe, arguments.overrides, model=Recipe)
    if arguments.print:
        print(resolved_yaml(loaded), end="")
        return DONE
    if arguments.explain is not None:
        return _explain(arguments.explain, loaded)
    report = check(loaded.recipe)
    redact = loaded.reading.redact
    is_silent = is_quiet() or not says_plan
    for line in () if is_silent else (f"recipe: {loaded.path}", *loaded.notes, *report.lines):
        print(_fitted(_shown(redact(line)), sys.stdout))
    for line in report.warnings:
        print(_fitted(_shown(redact(f"warning: {line}")), sys.stderr), file=sys.stderr)
    if report.errors:
        raise UsageError(redact("\n".join(report.errors)))
    if arguments.check:
        return DONE
    sys.stdout.flush()
    raise_interrupts()
    try:
        return act(CheckedRecipe(loaded.recipe, resolved_yaml(loaded)))
    except UsageError as error:
        raise UsageError(redact(str(error))) from error


def say_loading() -> None:
    """Say what the next seconds, in which nothing else is shown, are spent on."""
    if not is_quiet():
        print("loading libraries and model …", file=sys.stderr, flush=True)


def _fitted(line: str, stream: TextIO) -> str:
    """Return a line as a terminal of its width breaks it: between words, further lines indented."""
    if not stream.isatty():
        return line
    indent = " " * (len(line) - len(line.lstrip()))
    width = max(20, shutil.get_terminal_size().columns)
    return textwrap.fill(
        line.lstrip(),
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _explain(key: str, loaded: "LoadedRecipe[Recipe] | None") -> int:
    from debate_train.recipe import Recipe
    from debate_train.recipe.explain import explain

    held: dict[str, object] = {}
    if loaded is not None:
        phases = {name: phase.model_dump(mode="json") for name, phase in loaded.phases.items()}
        held = {**loaded.recipe.model_dump(mode="json"), "phases": phases}
    for line in explain(key, Recipe, held):
        print(_shown(line if loaded is None else loaded.reading.redact(line)))
    return DONE


def refuse_unreadable(name: str, value: object) -> None:
    """Refuse paths that are no text: they could be neither printed nor kept."""
    if isinstance(value, str | Path):
        text = str(value)
        if "\0" in text or text.encode(errors="replace").decode() != text:
            raise UsageError(f"{name}: found {text[:200]!a}, which is not UTF-8; expected text")


def _shown(text: str) -> str:
    """Return text that changes nothing in a terminal and can be written to any."""
    return escaped(text).encode(errors="backslashreplace").decode()


def exit_code(program: str, act: Callable[[], int]) -> int:
    """Run a command; return its exit code, with a message where it failed.

    Output that cannot be written, to a pipe that was closed or a full disk, changes nothing.
    """
    with steady_streams():
        return _exit_code(program, act)


def _exit_code(program: str, act: Callable[[], int]) -> int:
    try:
        return act()
    except KeyboardInterrupt:
        ignore_interrupts()  # Another would end the message with a traceback.
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except REFUSALS as error:
        print(_shown(f"{program}: {error}"), file=sys.stderr)
        return BAD_USAGE
    except EngineFailure as error:
        # What an engine itself reports is clear; of anything else the place is wanted, too.
        if not isinstance(error.__cause__, OSError | RolloutError):
            traceback.print_exception(error.__cause__)
        print(_shown(f"{program}: {error}"), file=sys.stderr)
        return FAILED
    except (RunFailure, RolloutError, ScoreError) as error:  # also an engine that took no weights
        print(_shown(f"{program}: {error}"), file=sys.stderr)
        return FAILED
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NO_NAME:
            named = str(error.filename)[:200]
            print(_shown(f"{program}: {named!r}: {error.strerror}"), file=sys.stderr)
            return BAD_USAGE
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            print(f"{program}: {error}; make room on the disk", file=sys.stderr)
        else:
            traceback.print_exc()
        return FAILED
