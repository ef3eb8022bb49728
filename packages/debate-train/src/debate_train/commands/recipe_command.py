"""What every command that takes a recipe shares: arguments, reading, checking, exit codes."""

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

DONE, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_FILE = {errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.EEXIST}


@dataclass(frozen=True, slots=True)
class CheckedRecipe:
    """A recipe that can be run, and its resolved text without the values of the environment."""

    recipe: Recipe
    text: str


def command(
    program: str,
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    act: Callable[[argparse.Namespace], int],
) -> int:
    """Run a command; return its exit code."""
    arguments = parser.parse_intermixed_args(argv)
    heed_options(arguments)
    resumes_by_folder = "changed" in arguments and arguments.resume
    needs_recipe = "explain" in arguments and arguments.explain is None and not resumes_by_folder
    if needs_recipe and arguments.recipe is None:
        parser.error("the following arguments are required: RECIPE")

    def checked() -> int:
        for name, value in vars(arguments).items():
            _refuse_unreadable(name, value)
        return act(arguments)

    return exit_code(program, checked)


def run_recipe(
    arguments: argparse.Namespace,
    check: Callable[[Recipe], CheckReport],
    act: Callable[[CheckedRecipe], int],
    *,
    opening: Callable[[LoadedRecipe[Recipe]], Sequence[str]] | None = None,
) -> int:
    """Read the recipe, print what `check` says of it, and `act` on it unless --check is set.

    Args:
        arguments: Of the command line.
        check: Looks for problems, and writes the plan.
        act: Does what the command is for; returns the exit code.
        opening: Lines in the place of the plan, which then only --check prints.

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
    redact = loaded.reading.redact
    if report.errors and not arguments.check:
        lines = []  # A plan that cannot be followed would only hide what is wrong.
    elif arguments.check or opening is None:
        lines = [f"recipe: {loaded.path}", *loaded.notes, *report.lines]
    else:
        lines = [*opening(loaded), *loaded.notes]
    warnings = [f"warning: {line}" for line in report.warnings]
    for stream, texts in ((sys.stdout, [] if is_quiet() else lines), (sys.stderr, warnings)):
        for text in texts:
            print(_shown(redact(text)), file=stream)
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


def _explain(key: str, loaded: LoadedRecipe[Recipe] | None) -> int:
    held: dict[str, object] = {}
    if loaded is not None:
        phases = {name: phase.model_dump(mode="json") for name, phase in loaded.phases.items()}
        held = {**loaded.recipe.model_dump(mode="json"), "phases": phases}
    for line in explain(key, Recipe, held):
        print(_shown(line if loaded is None else loaded.reading.redact(line)))
    return DONE


def _refuse_unreadable(name: str, value: object) -> None:
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
        try:
            return act()
        except KeyboardInterrupt:
            ignore_interrupts()  # Another would end the message with a traceback.
            print("interrupted", file=sys.stderr)
            return INTERRUPTED
        except Exception as error:
            code, said = _failure(error)
            print(
                _shown(f"{typed_name(program)}: {said}") if said else traceback.format_exc(),
                file=sys.stderr,
            )
            return code


def _failure(error: Exception) -> tuple[int, str]:
    """Return the exit code of a failure and what is said of it; nothing where a trace is wanted."""
    if isinstance(error, REFUSALS):
        return BAD_USAGE, str(error)
    if isinstance(error, EngineFailure):
        # What an engine itself reports is clear; of anything else the place is wanted, too.
        if not isinstance(error.__cause__, OSError | RolloutError):
            traceback.print_exception(error.__cause__)
        return FAILED, str(error)
    if isinstance(error, RunFailure | RolloutError | ScoreError):
        return FAILED, str(error)  # Also an engine that took no weights.
    if isinstance(error, OSError) and error.errno in _NO_FILE:
        return BAD_USAGE, f"{str(error.filename)[:200]!r}: {error.strerror}"
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return FAILED, f"{error}; make room on the disk"
    return FAILED, ""
