"""One run from recipe to report, by command and from Python: `debate_train.train`."""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import yaml
from pydantic import TypeAdapter, ValidationError

from debate_report import write_report
from debate_report.page import run_html
from debate_rewards import RewardConfig
from debate_rewards.reward import RewardFunction
from debate_rewards.rewards import RewardChoice
from debate_train.checkpoints import Checkpoint, Checkpoints, RunState, run_hash
from debate_train.checkpoints.policy_files import model_print, weight_prints
from debate_train.checkpoints.resumes import (
    note_resume,
    refuse_another_run,
    refuse_changes,
    refuse_other_files,
    shown_changes,
)
from debate_train.checkpoints.run_directory import METRICS, MetricsFile, RunDirectory, new_folder
from debate_train.checkpoints.trainer_state import seed_all
from debate_train.errors import RecipeError, UsageError
from debate_train.interrupts import Interrupts
from debate_train.models.loaded_model import LoadedModel
from debate_train.monitoring.progress import Progress
from debate_train.monitoring.tracking import Tracker
from debate_train.recipe import Recipe
from debate_train.recipe.check import check
from debate_train.recipe.files import load_recipe
from debate_train.recipe.reading import Overrides
from debate_train.recipe.refusals import Launch, refuse
from debate_train.recipe.resolved import resolved_yaml
from debate_train.recipe.schema import WHOLE_PHASES
from debate_train.running.open_engines import open_engine
from debate_train.running.phases import run_phases
from debate_train.running.run_context import RunContext, StepEnd, cpu_threads
from debate_train.trainers.processes import Init, broadcast


def run(
    recipe: Recipe,
    resolved_yaml: str,
    output: Path | None = None,
    resume: bool = False,
    echo_s: float = 0.0,
    on_step_end: Callable[[StepEnd], object] | None = None,
    changed: bool = False,
) -> int:
    """Train as the recipe says; return the exit code.

    Args:
        recipe: what to do.
        resolved_yaml: the recipe as it is kept in the run directory.
        output: the run directory; None makes `runs/<name>-<time>`.
        resume: go on from the directory's last complete checkpoint.
        echo_s: seconds after an interrupt in which another is taken for the same.
        on_step_end: called after each step.
        changed: resume although the recipe is not the one that the run was trained with.
    """
    if resume and output is None:
        raise RecipeError("--resume: found no directory of a run; expected one, or --output")
    path = output or new_folder(recipe.name)
    refuse(recipe, Launch(is_here=True))
    directory = RunDirectory.open(path) if resume else RunDirectory.create(path, resolved_yaml)
    with cpu_threads(recipe), _held(directory, is_new=not resume):
        if resume:
            refuse_another_run(directory, resolved_yaml)
        if resume and not changed:
            refuse_changes(directory, resolved_yaml)
        source = recipe.data.open(recipe.seed)
        loaded = _load_model(recipe)
        prints = weight_prints(loaded)
        own = run_hash(directory.recipe, model_print(loaded, prints.get("frozen", "")))
        checkpoints = Checkpoints(directory.checkpoints_path, own, recipe.checkpoint.keep_last)
        if not resume:
            directory.describe({"weights": prints})
        start, begin = _plan(recipe, directory, checkpoints, resolved_yaml, resume=resume)
        seed_all(recipe.seed)
        reports: list[Path | None] = []
        with ExitStack() as closing:  # Each is closed, whatever closing another ends with.
            engine = open_engine(recipe, loaded)
            closing.callback(engine.close)
            known = yaml.safe_load(resolved_yaml) | {"weights": prints}
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
    if written := checkpoints.complete():
        print(f"weights: {written[-1]}")
    for report in reports:
        if report is not None:
            print(f"report: {report}")


@contextmanager
def _held(directory: RunDirectory, is_new: bool) -> Iterator[None]:
    """Keep others out; a new run that ends before its first step is complete leaves nothing.

    What vLLM logs in this process goes to a file, not between the lines of the run.
    """
    log = logging.FileHandler(directory.path / "vllm.log", delay=True)
    logging.getLogger("vllm").addHandler(log)
    try:
        yield
    except BaseException:
        if is_new:
            directory.discard_unused()
        raise
    finally:
        logging.getLogger("vllm").removeHandler(log)
        log.close()
        directory.close()


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


def _plan(
    recipe: Recipe, directory: RunDirectory, checkpoints: Checkpoints, text: str, *, resume: bool
) -> tuple[Checkpoint | None, Callable[[], None]]:
    """Return the checkpoint to go on from, None for the start, and what goes back there.

    Nothing of the run is changed until that is called: a recipe may still be refused.
    """
    if not resume:
        return None, directory.begin
    start = checkpoints.newest(partial(refuse_other_files, directory))
    if start is None:
        print("warning: no checkpoint was written yet: the run begins again", file=sys.stderr)
    for note in () if start is None else start.notes:
        print(f"warning: {note}", file=sys.stderr)
    state = RunState() if start is None else start.state
    directory.return_to(state)
    is_finished = state.phase == len(recipe.phase_recipes())

    def begin() -> None:
        directory.begin(state)
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


OnStepEnd = Callable[[StepEnd], object]


@dataclass(frozen=True, slots=True)
class Trained:
    """What a run came to.

    Attributes:
        directory: The run directory, with its report and checkpoints.
        results: What `results.json` holds; empty where nothing was measured.
        metrics: The rows of `metrics.jsonl`, one for each step and each look at the dev split.
        checkpoint: The last complete checkpoint, None where there is none.
        finished: False where an interrupt stopped it; `resume=True` goes on.
    """

    directory: Path
    results: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    checkpoint: Path | None
    finished: bool

    def __repr__(self) -> str:
        state = "finished" if self.finished else "stopped by an interrupt"
        said = self.results.get("summary", "nothing was measured")
        return f"Trained({str(self.directory)!r}, {state}, {len(self.metrics)} rows; {said})"

    def _repr_html_(self) -> str:
        """Return the run's setting, results and main curves, as notebooks show them."""
        return run_html(self.directory)


def train(
    recipe: str | Path | Recipe | Mapping[str, Any],
    overrides: Overrides = (),
    *,
    output: str | Path | None = None,
    resume: bool = False,
    reward: RewardFunction | RewardConfig | type[RewardConfig] | None = None,
    on_step_end: OnStepEnd | None = None,
    changed: bool = False,
) -> Trained:
    """Train as a recipe says, in this process; what `debate-train` does, with two doors more.

    Args:
        recipe: A file, the name of a recipe that ships, a mapping as a file holds it, or a recipe.
            Where a mapping chooses by `type`, such as the loss, debate form, data and evaluation
            modes, a class of your own or an object of it may stand, too; or a mapping whose `type`
            is the class, with its settings.
        overrides: `key=value` arguments as on the command line, or a mapping of differences.
        output: The run directory; None makes `runs/<name>-<time>`.
        resume: Go on from the last checkpoint in `output`.
        reward: In the place of the recipe's reward in all phases that learn from one: a class or
            an object, or a function from a debate to what it is worth, a number for all its turns,
            a sequence of numbers for its turns in order, or a `Score`; None is no signal.
        on_step_end: Called after each step with what it was; what it raises ends the run, after
            a checkpoint.
        changed: Resume although the recipe is not the one that the run was trained with.

    Returns:
        The run directory, its results and its metrics.

    Raises:
        UsageError: The recipe or an argument is wrong.
    """
    given = recipe.model_dump(exclude_unset=True) if isinstance(recipe, Recipe) else recipe
    loaded = load_recipe(given, overrides, model=Recipe)
    if reward is not None:
        wanted = _rewarded(loaded.recipe, reward)
        loaded = replace(loaded, recipe=wanted, phases=wanted.phase_recipes())
    wanted = loaded.recipe
    report = check(wanted)
    if report.errors:
        raise UsageError(loaded.reading.redact("\n".join(report.errors)))
    for line in report.warnings:
        print(loaded.reading.redact(f"warning: {line}"), file=sys.stderr)
    folder = new_folder(wanted.name)
    path = folder if output is None else Path(output)
    code = run(
        wanted, resolved_yaml(loaded), path, resume, on_step_end=on_step_end, changed=changed
    )
    return _trained(path, finished=code == 0)


def _rewarded(recipe: Recipe, reward: object) -> Recipe:
    """Return a recipe whose phases learn from a reward, but those that imitate."""
    try:
        own = {"reward": TypeAdapter(RewardChoice).validate_python(reward)}
    except ValidationError as error:
        said = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise RecipeError(f"reward: found {reward!r:.80}; {said}") from None

    def changed(phase: Recipe) -> Recipe:
        return phase if phase.loss.supervised else phase.model_copy(update=own)

    phases = {name: changed(phase) for name, phase in recipe.phase_recipes().items()}
    found = changed(recipe)
    if recipe.phases:
        vars(found)[WHOLE_PHASES] = phases
    return found


def _trained(path: Path, *, finished: bool) -> Trained:
    results = path / "results.json"
    written = sorted((path / "checkpoints").glob("step-*"))
    return Trained(
        path,
        json.loads(results.read_text(encoding="utf-8")) if results.is_file() else {},
        MetricsFile(path / METRICS).rows(),
        written[-1] if written else None,
        finished,
    )
