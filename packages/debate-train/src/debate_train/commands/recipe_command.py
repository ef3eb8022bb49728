"""The shared course of commands with a recipe: arguments, reading, checking, exit codes."""

import argparse
import errno
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from debate_protocol.command_line import heed_options, is_quiet, typed_name
from debate_protocol.transcripts.showing import escaped
from debate_rewards.reward import ScoreError
from debate_rollout.engine import EngineFailure, RolloutError
from debate_train.errors import REFUSALS, RunFailure, UsageError
from debate_train.interrupts import ignore_interrupts, raise_interrupts
from debate_train.monitoring.progress import steady_streams
from debate_train.recipe import Recipe
from debate_train.recipe.check import CheckReport
from debate_train.recipe.describe import explain
from debate_train.recipe.files import LoadedRecipe, load_recipe
from debate_train.recipe.resolved import resolved_yaml

DONE = 0
FAILED = 1
BAD_USAGE = 2
INTERRUPTED = 130
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_WRONG_PATH = {errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.EEXIST}


@dataclass(frozen=True, slots=True)
class CheckedRecipe:
    """A runnable recipe, and the resolved text without values of the environment."""

    recipe: Recipe
    text: str


def command(
    program: str,
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    act: Callable[[argparse.Namespace], int],
) -> int:
    """Parse the arguments of a command, run it, and return the exit code."""
    arguments = parser.parse_intermixed_args(argv)
    heed_options(arguments)
    # A run that is resumed has its recipe in its folder.
    resumes_by_folder = "changed" in arguments and arguments.resume
    needs_recipe = "explain" in arguments and arguments.explain is None and not resumes_by_folder
    if needs_recipe and arguments.recipe is None:
        parser.error("the following arguments are required: RECIPE")

    def act_on_readable() -> int:
        for name, value in vars(arguments).items():
            if not isinstance(value, str | Path):
                continue
            # Such a path could be neither printed nor written to a file.
            text = str(value)
            if "\0" in text or text.encode(errors="replace").decode() != text:
                raise UsageError(f"{name}: found {text[:200]!a}, which is not UTF-8; expected text")
        return act(arguments)

    return exit_code(program, act_on_readable)


def run_recipe(
    arguments: argparse.Namespace,
    check: Callable[[Recipe], CheckReport],
    act: Callable[[CheckedRecipe], int],
    *,
    opening: Callable[[LoadedRecipe[Recipe]], Sequence[str]] | None = None,
) -> int:
    """Read the recipe, print the report of `check`, and `act` on the recipe unless --check is set.

    Args:
        arguments: Of the command line.
        check: Looks for problems, and writes the plan.
        act: Does the work of the command and returns the exit code.
        opening: Lines in the place of the plan; then only --check prints the plan.

    Raises:
        UsageError: The recipe is wrong, or cannot be run here.
    """
    if arguments.recipe is None:
        return _explain(arguments.explain, None)
    loaded = load_recipe(arguments.recipe, arguments.overrides, model=Recipe)
    if arguments.print:
        print(resolved_yaml(loaded), end="")
        return DONE
    if arguments.explain is not None:
        return _explain(arguments.explain, loaded)

    report = check(loaded.recipe)
    # Values from the environment, such as keys, are never printed.
    redact = loaded.reading.redact
    if report.errors and not arguments.check:
        lines = []  # A plan that cannot be followed would only hide what is wrong.
    elif arguments.check or opening is None:
        lines = [f"recipe: {loaded.path}", *loaded.notes, *report.lines]
    else:
        lines = [*opening(loaded), *loaded.notes]
    if not is_quiet():
        for line in lines:
            print(_printable(redact(line)))
    for warning in report.warnings:
        print(_printable(redact(f"warning: {warning}")), file=sys.stderr)
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
    """Announce the loading of libraries, several seconds without other output."""
    if not is_quiet():
        print("loading libraries and model …", file=sys.stderr, flush=True)


def _explain(key: str, loaded: LoadedRecipe[Recipe] | None) -> int:
    values: dict[str, object] = {}
    if loaded is not None:
        phases = {name: phase.model_dump(mode="json") for name, phase in loaded.phases.items()}
        values = {**loaded.recipe.model_dump(mode="json"), "phases": phases}
    for line in explain(key, Recipe, values):
        print(_printable(line if loaded is None else loaded.reading.redact(line)))
    return DONE


def _printable(text: str) -> str:
    """Escape control characters, and characters beyond the terminal's encoding."""
    return escaped(text).encode(errors="backslashreplace").decode()


def exit_code(program: str, act: Callable[[], int]) -> int:
    """Run a command and return the exit code; print a message where it failed.

    Lost output, to a closed pipe or a full disk, changes neither.
    """
    with steady_streams():
        try:
            return act()
        except KeyboardInterrupt:
            ignore_interrupts()  # Another would end the message with a traceback.
            print("interrupted", file=sys.stderr)
            return INTERRUPTED
        except Exception as error:
            code, message = _failure(error)
            if message:
                print(_printable(f"{typed_name(program)}: {message}"), file=sys.stderr)
            else:
                print(traceback.format_exc(), file=sys.stderr)
            return code


def _failure(error: Exception) -> tuple[int, str]:
    """Choose the exit code and the message of a failure; "" for an unforeseen failure."""
    if isinstance(error, REFUSALS):
        return BAD_USAGE, str(error)
    if isinstance(error, EngineFailure):
        # An engine's own errors are clear; of any other the traceback is needed, too.
        if not isinstance(error.__cause__, OSError | RolloutError):
            traceback.print_exception(error.__cause__)
        return FAILED, str(error)
    # RolloutError: also an engine that took no weights.
    if isinstance(error, RunFailure | RolloutError | ScoreError):
        return FAILED, str(error)
    if isinstance(error, OSError) and error.errno in _WRONG_PATH:
        return BAD_USAGE, f"{str(error.filename)[:200]!r}: {error.strerror}"
    if isinstance(error, OSError) and error.errno in _DISK_FULL:
        return FAILED, f"{error}; make room on the disk"
    return FAILED, ""
