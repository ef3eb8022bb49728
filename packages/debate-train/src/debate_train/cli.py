"""The `debate-train` command."""

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from debate_rollout.errors import (
    EngineConfigError,
    EngineFailure,
    MissingExtraError,
    RolloutError,
)
from debate_train.errors import UsageError

DONE, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130

_DESCRIPTION = """\
Train a language model through debate, as a recipe says.

A recipe is a YAML file; docs/recipes.md describes its keys. Any of them can be set on the
command line with a dotted name. The run is written to a directory of its own: the recipe as
resolved, metrics, transcripts, checkpoints and a report."""

_EPILOG = """\
examples:
  debate-train recipes/quickstart.yaml
  debate-train quickstart --check
  debate-train recipes/selfplay_v2.yaml model.name=./my-model trainer.type=torch steps=10
  debate-train recipes/quickstart.yaml --output runs/first --resume

exit codes:
  0 done; 1 a failure while running; 2 bad usage or recipe; 130 interrupted, after a checkpoint"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    arguments = _parser().parse_intermixed_args(argv)
    return exit_code("debate-train", lambda: _main(arguments))


def exit_code(program: str, act: Callable[[], int]) -> int:
    """Run a command; return its exit code, with a message where it failed."""
    try:
        return act()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return FAILED
    except (UsageError, EngineConfigError, MissingExtraError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return BAD_USAGE
    except EngineFailure as error:
        # What an engine itself reports is clear; of anything else the place is wanted, too.
        if not isinstance(error.__cause__, OSError | RolloutError):
            traceback.print_exception(error.__cause__)
        print(f"{program}: {error}", file=sys.stderr)
        return FAILED
    except RolloutError as error:  # an engine that did not start, or took no weights
        print(f"{program}: {error}", file=sys.stderr)
        return FAILED
    except Exception:
        traceback.print_exc()
        return FAILED


def _main(arguments: argparse.Namespace) -> int:
    from debate_train.check import check
    from debate_train.recipe import Recipe
    from debate_train.recipe_file import load_recipe
    from debate_train.recipe_written import resolved_yaml

    loaded = load_recipe(
        arguments.recipe, arguments.overrides, model=Recipe, allow_code=arguments.allow_code
    )
    report = check(loaded.recipe)
    redact = loaded.reading.redact
    for line in (f"recipe: {loaded.path}", *loaded.notes, *report.lines):
        print(redact(line))
    for line in report.warnings:
        print(redact(f"warning: {line}"), file=sys.stderr)
    if report.errors:
        raise UsageError(redact("\n".join(report.errors)))
    if arguments.check:
        return DONE
    from debate_train.run import run

    sys.stdout.flush()
    try:
        return run(loaded.recipe, resolved_yaml(loaded), arguments.output, arguments.resume)
    except UsageError as error:
        raise UsageError(redact(str(error))) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="debate-train",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "recipe", metavar="RECIPE", help="a YAML file, or the name of one below recipes/"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings that replace the recipe's"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="say what the recipe would do and whether it can, then stop; loads no weights",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on from the last checkpoint in --output",
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="run directory (default: runs/NAME-TIME)"
    )
    parser.add_argument(
        "--allow-code",
        action="store_true",
        help="let the recipe name Python code to run (type: python, trust_remote_code)",
    )
    parser.add_argument("--local_rank", type=int, default=-1, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
