"""The `debate-eval` command."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from debate_train.commands.recipe_command import (
    DONE,
    CheckedRecipe,
    exit_code,
    parsed,
    recipe_parser,
    run_recipe,
    say_loading,
)
from debate_train.data.source import Split
from debate_train.errors import UsageError
from debate_train.interrupts import interruptible

if TYPE_CHECKING:
    from debate_train.checks.check import CheckReport
    from debate_train.evaluating.evaluating import Evaluating
    from debate_train.recipe import Recipe

_DESCRIPTION = """\
Measure policies as a recipe's `evaluation` says, and keep what is found so that it can be compared.

Every mode of `evaluation.modes` is played on the same held-out questions with the recipe's engine;
nothing is trained. Without --policy the recipe's own model is measured."""

_EPILOG = """\
A policy is [NAME=]RUN_DIR[@STEP|@best], a checkpoint, a folder or hub id of a model, or recipe.

examples:
  debate-eval quickstart --policy runs/first --output evaluations/first
  debate-eval quickstart --policy before=runs/first@280 --policy after=runs/first --runs 3
  debate-eval quickstart --policy runs/first --against runs/first@280
  debate-eval recipes/selfplay_v2.yaml --check
  debate-eval own.yaml --benchmark math500 --benchmark aime24,evaluation.direct_samples=32
  debate-eval compare evaluations/first:before evaluations/first:after
  debate-eval theory evaluations/first
  debate-eval --transcripts debates/transcripts.jsonl

exit codes:
  0 done; 1 a failure while running; 2 bad usage or recipe; 130 interrupted, replies are kept"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["compare"]:
        from debate_train.evaluating.finished.comparison import compare_main

        return compare_main(argv[1:])
    if argv[:1] == ["theory"]:
        from debate_train.evaluating.finished.beside_theory import theory_main

        return theory_main(argv[1:])
    if any(word.split("=")[0] == "--transcripts" for word in argv):
        from debate_train.evaluating.finished.from_files import files_main

        return files_main(argv)
    arguments = parsed(command_parser(), argv)
    return exit_code("debate-eval", lambda: _main(arguments))


def _main(arguments: argparse.Namespace) -> int:
    if arguments.resume and arguments.output is None:
        raise UsageError("--resume: found no --output; expected the folder of the evaluation")
    if not arguments.benchmark:
        planned = _planned(arguments, arguments.overrides)
        for wanted, text in planned:
            _run(wanted, text, arguments, arguments.output, resume=arguments.resume)
        return DONE
    from debate_train.evaluating.benchmark_table import chosen_benchmarks, finished_table

    chosen = chosen_benchmarks(arguments.benchmark)
    plans = [_planned(arguments, [*arguments.overrides, *keys]) for keys in chosen.values()]
    if not all(plans):  # Nothing but what was asked about is said.
        return DONE
    folder = arguments.output or Path("runs") / time.strftime("benchmarks-%Y%m%d-%H%M%S")
    if not arguments.resume:
        from debate_train.run_files.directory_layout import refuse_used

        refuse_used(folder)
    for name, ((wanted, text),) in zip(chosen, plans, strict=True):
        resume = arguments.resume and (folder / name).is_dir()
        _run(wanted, text, arguments, folder / name, resume=resume)
    finished_table(folder, list(chosen))
    return DONE


def _planned(
    arguments: argparse.Namespace, overrides: Sequence[str]
) -> "list[tuple[Evaluating, str]]":
    """Check an evaluation; return it with its recipe's text, nothing where that was all."""
    made: list[Evaluating] = []
    texts: list[str] = []

    def check(recipe: "Recipe") -> "CheckReport":
        from debate_train.evaluating.checking import check_evaluating

        made.append(_wanted(recipe, arguments))
        return check_evaluating(made[0])

    def act(checked: CheckedRecipe) -> int:
        texts.append(checked.text)
        return DONE

    run_recipe(argparse.Namespace(**{**vars(arguments), "overrides": overrides}), check, act)
    return list(zip(made, texts, strict=False))


def _run(
    wanted: "Evaluating",
    text: str,
    arguments: argparse.Namespace,
    output: Path | None,
    resume: bool,
) -> None:
    say_loading()
    from debate_train.evaluating.evaluating import run_evaluation

    interruptible(
        lambda: run_evaluation(wanted, text, output, resume=resume, all_figures=arguments.all)
    )


def _wanted(recipe: "Recipe", arguments: argparse.Namespace) -> "Evaluating":
    from debate_train.evaluating.evaluating import Evaluating, measured_phase, with_opponents
    from debate_train.evaluating.policies import named_policies, named_policy

    count = arguments.questions
    if count is not None and count < 1:
        raise UsageError(f"--questions: found {count}; expected at least 1")
    against = [named_policy(text, "--against") for text in arguments.against]
    phase = with_opponents(measured_phase(recipe, count), against)
    return Evaluating(phase, named_policies(arguments.policy), arguments.split, against)


def command_parser() -> argparse.ArgumentParser:
    """Return what the command takes."""
    parser = recipe_parser("debate-eval", _DESCRIPTION, _EPILOG)
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="POLICY",
        help="what is measured, once for each; by default the recipe's own model",
    )
    parser.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="POLICY",
        help="also measure in each seat among opponents that are this policy",
    )
    parser.add_argument(
        "--split", choices=get_args(Split), default="test", help="questions (default: test)"
    )
    parser.add_argument(
        "--questions",
        type=int,
        metavar="N",
        help="most questions (default: evaluation.questions of the recipe)",
    )
    parser.add_argument(
        "--benchmark",
        action="append",
        default=[],
        metavar="NAME[,key=value]",
        help="a published benchmark in place of the recipe's data, with changes of the recipe; of "
        "several there is a table with their average",
    )
    parser.add_argument(
        "--all", action="store_true", help="print also the figures that the table does not list"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="new or empty folder; with --resume that of an evaluation that was stopped",
    )
    parser.add_argument(
        "--resume", action="store_true", help="measure only what --output does not hold yet"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
