"""The `debate-rollout` command."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from debate_train.cli import DONE, exit_code
from debate_train.errors import UsageError

_DESCRIPTION = """\
Collect transcripts of debates as a recipe says, with any engine; nothing is trained.

Plays steps x data.batch_size training questions of the recipe, with its model, debate and
rollout; its phases, reward and trainer are not used, and gates always go on. Each debate is
appended to DIR/transcripts.jsonl as it ends. The same command goes on after any stop, and with a
larger `steps` after its end; no debate is played or written twice."""

_EPILOG = """\
examples:
  debate-rollout recipes/selfplay_v2.yaml steps=4 --output debates
  debate-rollout quickstart steps=2 rollout.engine.type=demonstrations --output shown
  debate-protocol show debates/transcripts.jsonl

exit codes:
  0 done; 1 a failure while running; 2 bad usage or recipe; 130 interrupted, debates are kept"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    arguments = _parser().parse_intermixed_args(argv)
    return exit_code("debate-rollout", lambda: _main(arguments))


def _main(arguments: argparse.Namespace) -> int:
    from debate_train.check import check_collecting
    from debate_train.recipe import Recipe
    from debate_train.recipe_file import load_recipe
    from debate_train.recipe_written import resolved_yaml

    loaded = load_recipe(
        arguments.recipe, arguments.overrides, model=Recipe, allow_code=arguments.allow_code
    )
    report = check_collecting(loaded.recipe)
    redact = loaded.reading.redact
    for line in (f"recipe: {loaded.path}", *loaded.notes, *report.lines):
        print(redact(line))
    if report.errors:
        raise UsageError(redact("\n".join(report.errors)))
    if arguments.check:
        return DONE
    if arguments.output is None:
        raise UsageError("--output: found none; expected a folder for the transcripts")
    from debate_train.collecting import collect

    sys.stdout.flush()
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        collect(loaded.recipe, resolved_yaml(loaded), arguments.output)
    except UsageError as error:
        raise UsageError(redact(str(error))) from error
    finally:
        signal.signal(signal.SIGTERM, before)
    return DONE


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="debate-rollout",
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
        "--output",
        type=Path,
        metavar="DIR",
        help="new or empty folder, or that of an earlier call to go on with",
    )
    parser.add_argument(
        "--check", action="store_true", help="say what would be collected, then stop"
    )
    parser.add_argument(
        "--allow-code",
        action="store_true",
        help="let the recipe name Python code to run (type: python, trust_remote_code)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
