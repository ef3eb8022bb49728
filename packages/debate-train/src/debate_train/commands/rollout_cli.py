"""The `debate-rollout` command."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from debate_train.commands.recipe_command import (
    DONE,
    CheckedRecipe,
    exit_code,
    parsed,
    recipe_parser,
    run_recipe,
    say_loading,
)
from debate_train.errors import UsageError
from debate_train.interrupts import SIGNALS

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
    arguments = parsed(command_parser(), argv)
    return exit_code("debate-rollout", lambda: _main(arguments))


def _main(arguments: argparse.Namespace) -> int:
    from debate_train.checks.check import check_collecting

    def act(checked: CheckedRecipe) -> int:
        if arguments.output is None:
            raise UsageError("--output: found none; expected a folder for the transcripts")
        say_loading()
        from debate_train.commands.collecting import collect

        ends = [n for n in SIGNALS if signal.getsignal(n) == signal.SIG_DFL]
        before = {number: signal.signal(number, _interrupt) for number in ends}
        try:
            collect(checked.recipe, checked.text, arguments.output)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return DONE

    return run_recipe(arguments, check_collecting, act)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def command_parser() -> argparse.ArgumentParser:
    """Return what the command takes."""
    parser = recipe_parser("debate-rollout", _DESCRIPTION, _EPILOG)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="new or empty folder, or that of an earlier call to go on with",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
