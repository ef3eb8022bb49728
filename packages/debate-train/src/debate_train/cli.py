"""The `debate-train` command."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from debate_train.recipe_command import CheckedRecipe, exit_code, recipe_parser, run_recipe

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


def _main(arguments: argparse.Namespace) -> int:
    from debate_train.check import check

    def act(checked: CheckedRecipe) -> int:
        from debate_train.run import run

        return run(checked.recipe, checked.text, arguments.output, arguments.resume)

    return run_recipe(arguments, check, act)


def _parser() -> argparse.ArgumentParser:
    parser = recipe_parser("debate-train", _DESCRIPTION, _EPILOG)
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on from the last checkpoint in --output",
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="run directory (default: runs/NAME-TIME)"
    )
    parser.add_argument("--local_rank", type=int, default=-1, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
