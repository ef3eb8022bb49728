"""One run from recipe to report."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import torch
import yaml

from debate_report import write_report
from debate_train.checkpointing.checkpoints import Checkpoint, Checkpoints, Origin, RunState
from debate_train.checkpointing.directory_layout import refuse_unusable
from debate_train.checkpointing.resume_checks import ResumeCheck
from debate_train.checkpointing.resumes import (
    note_resume,
    refuse_another_run,
    shown_changes,
)
from debate_train.checkpointing.run_directory import RunDirectory
from debate_train.checkpointing.tensor_files import model_print, seed_all, weight_prints
from debate_train.interrupts import Interrupts, RecipeError
from debate_train.models.loaded_model import LoadedModel
from debate_train.monitoring.progress import Progress
from debate_train.recipe import Recipe
from debate_train.recipe.check_parts import refuse_absent_devices
from debate_train.running.phases import run_phases
from debate_train.running.run_context import (
    RunContext,
    StepEnd,
    open_engine,
    refuse_unusable_engine,
)
from debate_train.tracking.tracker import Tracker
from debate_train.trainers.processes import Init, broadcast


def run(
    recipe: Recipe,
    resolved_yaml: str,
    output: Path | None = None,
    resume: bool = False,
    echo_s: float = 0.0,
    on_step_end: Callable[[StepEnd], object] | None = None,
) -> int:
    """Train as the recipe says; return the exit code.

    Args:
        recipe: what to do.
        resolved_yaml: the recipe as it is kept in the run directory.
        output: the run directory; None makes `runs/<name>-<time>`.
        resume: go on from the directory's last complete checkpoint.
        echo_s: seconds after an interrupt in which another is taken for the same.
        on_step_end: called after each step.
    """
    if resume and output is None:
        raise RecipeError("--resume: found no --output; expected the directory of the run")
    path = output or Path("runs") / f"{recipe.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    _refuse_early(recipe, path, resume)
    source = recipe.data.open(recipe.seed)
    loaded = _load_model(recipe)
    weights = {"weights": weight_prints(loaded)}
    known = yaml.safe_load(resolved_yaml) | weights
    new = None if resume else RunDirectory.create(path, resolved_yaml, weights)
    directory = new or RunDirectory.open(path)
    with _held(directory, is_new=not resume):
        checkpoints, start, begin = _checkpoints(recipe, directory, loaded), None, directory.begin
        if resume:
            start, begin = _plan_return(recipe, loaded, directory, checkpoints, resolved_yaml)
        seed_all(recipe.seed)
        reports: list[Path | None] = []
        with ExitStack() as closing:  # Each is closed, whatever closing another ends with.
            engine = open_engine(recipe, loaded)
            closing.callback(engine.close)
            tracker = recipe.tracking.open(directory, recipe.name, known)
            closing.push(lambda kind, *_: tracker.close(failed=kind is not None))
            closing.callback(lambda: reports.append(_keep_files(directory, tracker, checkpoints)))
            with Progress() as progress, _interrupts(recipe, echo_s) as interrupts:
                context = RunContext(
                    recipe=recipe,
                    directory=directory,
                    tracker=tracker,
                    progress=progress,
                    interrupts=interrupts,
                    source=source,
                    engine=engine,
                    loaded=loaded,
                    checkpoints=checkpoints,
                    state=RunState() if start is None else start.state,
                    start=None if start is None else start.path,
                    begin=cache(begin),
                    on_step_end=on_step_end,
                )
                code = run_phases(context)
    _print_files(reports, checkpoints)
    return code


def _print_files(reports: Sequence[Path | None], checkpoints: Checkpoints) -> None:
    for report in reports:
        if report is not None:
            print(f"report: {report}")
    if written := checkpoints.complete():
        print(f"weights: {written[-1]}")


@contextmanager
def _held(directory: RunDirectory, is_new: bool) -> Iterator[None]:
    """Keep others out; a new run that ends before its first step is complete leaves nothing."""
    try:
        yield
    except BaseException:
        if is_new:
            directory.discard_unused()
        raise
    finally:
        directory.close()


def _refuse_early(recipe: Recipe, path: Path, resume: bool) -> None:
    """Refuse before a model is loaded, which takes minutes and may not fit beside another."""
    refuse_unusable_engine(recipe)
    for phase in recipe.phase_recipes().values():
        if problem := phase.sampling_problem():
            raise RecipeError(problem)
    for problem in recipe.keep_problems():
        raise RecipeError(problem)
    refuse_absent_devices(recipe)
    refuse_unusable(path, is_there=resume)


def _interrupts(recipe: Recipe, echo_s: float) -> Interrupts:
    phases = recipe.phase_recipes().values()
    return Interrupts(echo_s, plays_ahead=any(phase.pipeline.max_staleness > 0 for phase in phases))


def _load_model(recipe: Recipe) -> LoadedModel:
    """Load the model on every rank; on the others only once it is known to load."""
    if not torch.cuda.is_available():  # Keeps DeepSpeed, which transformers imports, quiet.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    loaded = recipe.model.load(recipe.seed)
    shardings = [r.trainer.sharding() for r in recipe.phase_recipes().values()]
    sharded = all(one is not None and one.stage == 3 for one in shardings)
    broadcast(Init(recipe.model, recipe.seed, with_values=not sharded))
    return loaded


def _checkpoints(recipe: Recipe, directory: RunDirectory, loaded: LoadedModel) -> Checkpoints:
    origin = Origin.of(directory.recipe, model_print(loaded))
    keep_last = recipe.checkpoint.keep_last
    return Checkpoints(directory.checkpoints_path, origin, keep_last, directory.recipe)


def _plan_return(
    recipe: Recipe,
    loaded: LoadedModel,
    directory: RunDirectory,
    checkpoints: Checkpoints,
    text: str,
) -> tuple[Checkpoint | None, Callable[[], None]]:
    """Return the checkpoint to go on from, None for the start, and what goes back there.

    Nothing of the run is changed until that is called: a recipe may still be refused.
    """
    refuse_another_run(directory, text)
    start = checkpoints.newest(ResumeCheck(recipe, directory, loaded))
    if start is None:
        print("warning: no checkpoint was written yet: the run begins again", file=sys.stderr)
    for note in () if start is None else start.notes:
        print(f"warning: {note}", file=sys.stderr)
    state = RunState() if start is None else start.state
    directory.return_to(state)
    is_finished = state.phase == len(recipe.phase_recipes())

    def begin() -> None:
        directory.begin()
        changes = note_resume(directory, state.step, text)
        if changes:
            print(f"warning: {shown_changes(changes, state.step)}", file=sys.stderr)
        if not is_finished or any("evaluation" in key.split(".") for key in changes):
            directory.drop_results()

    return start, begin


def _keep_files(directory: RunDirectory, tracker: Tracker, checkpoints: Checkpoints) -> Path | None:
    """Write the report, and send it and the last checkpoint before the tracked run ends."""
    report = _write_report(directory)
    tracker.keep(report, next(reversed(checkpoints.complete()), None))
    return report


def _write_report(directory: RunDirectory) -> Path | None:
    """Write the report; whatever becomes of it does not hide what the run itself ended with."""
    if not directory.has_begun:
        return None
    try:
        return write_report(directory.path)
    except Exception as error:
        print(f"warning: no report: {type(error).__name__}: {error}", file=sys.stderr)
        return None
