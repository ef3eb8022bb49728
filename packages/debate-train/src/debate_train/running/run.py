"""A run from recipe to report, by command and from Python: `debate_train.train`."""

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
    refuse_other_data,
    refuse_other_files,
    shown_changes,
)
from debate_train.checkpoints.run_directory import METRICS, MetricsFile, RunDirectory, new_folder
from debate_train.checkpoints.trainer_state import seed_all
from debate_train.errors import RecipeError, UsageError
from debate_train.interrupts import Interrupts
from debate_train.models.loaded_model import LoadedModel
from debate_train.monitoring.progress import Progress
from debate_train.recipe import Recipe
from debate_train.recipe.check import check
from debate_train.recipe.data_view import data_prints
from debate_train.recipe.files import load_recipe
from debate_train.recipe.reading import Overrides
from debate_train.recipe.refusals import Launch, refuse
from debate_train.recipe.resolved import resolved_yaml
from debate_train.recipe.schema import WHOLE_PHASES
from debate_train.running.open_engines import open_engine
from debate_train.running.phases import run_phases
from debate_train.running.run_context import RunContext, StepEnd, cpu_threads
from debate_train.trainers.processes import Init, broadcast

OnStepEnd = Callable[[StepEnd], object]


def run(
    recipe: Recipe,
    recipe_text: str,
    output: Path | None = None,
    resume: bool = False,
    echo_s: float = 0.0,
    on_step_end: OnStepEnd | None = None,
    changed: bool = False,
) -> int:
    """Train by a recipe and return the exit code.

    Args:
        recipe: the recipe of the run.
        recipe_text: the resolved recipe for the run directory.
        output: the run directory; `None` makes `runs/<name>-<time>`.
        resume: go on from the directory's last complete checkpoint.
        echo_s: seconds after an interrupt to count another as the same.
        on_step_end: called after each step.
        changed: resume although the run was trained with another recipe.
    """
    if resume and output is None:
        raise RecipeError("--resume: found no directory of a run; expected one, or --output")
    path = output or new_folder(recipe.name)
    refuse(recipe, Launch(is_here=True))
    directory = RunDirectory.open(path) if resume else RunDirectory.create(path, recipe_text)
    with cpu_threads(recipe), _cleaning_up(directory, is_new=not resume):
        data = data_prints(recipe)
        if resume:
            refuse_another_run(directory, recipe_text)
            if not changed:
                refuse_changes(directory, recipe_text)
                refuse_other_data(path, data, "--changed to go on with this one")
        source = recipe.data.open(recipe.seed)
        loaded = _load_model(recipe)
        hashes = weight_prints(loaded)
        identity = run_hash(directory.recipe, model_print(loaded, hashes.get("frozen", "")))
        checkpoints = Checkpoints(directory.checkpoints_path, identity, recipe.checkpoint.keep_last)
        if not resume:
            directory.describe({"weights": hashes, "data": data})
        start, begin = _plan_start(recipe, directory, checkpoints, recipe_text, data, resume=resume)
        seed_all(recipe.seed)
        phases = recipe.phase_recipes().values()
        plays_ahead = any(phase.pipeline.max_staleness > 0 for phase in phases)
        report: Path | None = None
        # Callbacks of the stack run in reverse order, each even if another fails.
        with ExitStack() as closing:
            engine = open_engine(recipe, loaded)
            closing.callback(engine.close)
            if loaded.remote is not None:
                closing.callback(loaded.remote.leave)
            tracked_recipe = yaml.safe_load(recipe_text) | {"weights": hashes}
            tracker = recipe.tracking.open(directory, recipe.name, tracked_recipe)
            closing.push(lambda kind, *_: tracker.close(failed=kind is not None))

            @closing.callback
            def keep_report() -> None:
                # A tracked run takes no more files once it is closed.
                nonlocal report
                report = _write_report(directory)
                last_checkpoint = next(reversed(checkpoints.complete()), None)
                tracker.keep(report, last_checkpoint)

            with Progress() as progress, Interrupts(echo_s, plays_ahead=plays_ahead) as interrupts:
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
    written = checkpoints.complete()
    if written:
        print(f"weights: {written[-1]}")
    if report is not None:
        print(f"report: {report}")
    return code


@contextmanager
def _cleaning_up(directory: RunDirectory, is_new: bool) -> Iterator[None]:
    """Close the directory in the end; remove a new directory without a complete step."""
    # vLLM logs in this process, too: its lines go to a file, not between those of the run.
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


def _load_model(recipe: Recipe) -> LoadedModel:
    """Load the model on every rank; on the others only once it is known to load."""
    if not torch.cuda.is_available():  # Keeps DeepSpeed, which transformers imports, quiet.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    trainers = [phase.trainer for phase in recipe.phase_recipes().values()]
    loaded = trainers[0].load_model(recipe.model, recipe.seed)
    shardings = [trainer.sharding() for trainer in trainers]
    # ZeRO-3 sends each rank its part of the values, so no rank needs to load all of them.
    is_sharded = all(sharding is not None and sharding.stage == 3 for sharding in shardings)
    broadcast(Init(recipe.model, recipe.seed, with_values=not is_sharded))
    return loaded


def _plan_start(
    recipe: Recipe,
    directory: RunDirectory,
    checkpoints: Checkpoints,
    recipe_text: str,
    data: Mapping[str, str],
    *,
    resume: bool,
) -> tuple[Checkpoint | None, Callable[[], None]]:
    """Find the checkpoint to go on from (`None` for the start), and a function to return there.

    The function changes the run's files; the caller waits until no check can refuse the run.
    """
    if not resume:
        return None, directory.begin
    start = checkpoints.newest(partial(refuse_other_files, directory))
    state = RunState()
    if start is None:
        print("warning: no checkpoint was written yet: the run begins again", file=sys.stderr)
    else:
        state = start.state
        for note in start.notes:
            print(f"warning: {note}", file=sys.stderr)
    directory.return_to(state)
    is_finished = state.phase == len(recipe.phase_recipes())

    def begin() -> None:
        directory.begin(state)
        changes = note_resume(directory, state.step, recipe_text, data)
        if changes:
            print(f"warning: {shown_changes(changes, state.step)}", file=sys.stderr)
        # A finished run has its results, unless they would be measured in another way now.
        changes_evaluation = any("evaluation" in key.split(".") for key in changes)
        if not is_finished or changes_evaluation:
            directory.drop_results()

    return start, begin


def _write_report(directory: RunDirectory) -> Path | None:
    """Write the report of a begun run; a failure does not hide the run's own end."""
    if not directory.has_begun:
        return None
    try:
        return write_report(directory.path)
    except Exception as error:
        print(f"warning: no report: {type(error).__name__}: {error}", file=sys.stderr)
        return None


@dataclass(frozen=True, slots=True)
class Trained:
    """Files and results of a run.

    Attributes:
        directory: The run directory, with report and checkpoints.
        results: Contents of `results.json`; empty without an evaluation.
        metrics: The rows of `metrics.jsonl`, for each step and each evaluation on dev.
        checkpoint: The last complete checkpoint; `None` if there is no checkpoint.
        finished: False where an interrupt stopped it; `resume=True` goes on.
    """

    directory: Path
    results: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    checkpoint: Path | None
    finished: bool

    def __repr__(self) -> str:
        state = "finished" if self.finished else "stopped by an interrupt"
        summary = self.results.get("summary", "nothing was measured")
        return f"Trained({str(self.directory)!r}, {state}, {len(self.metrics)} rows; {summary})"

    def _repr_html_(self) -> str:
        """Render the run's setting, results and main curves for a notebook."""
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
    """Train by a recipe in this process, as `debate-train` does, also with your own reward.

    Args:
        recipe: A file, the name of a shipped recipe, a mapping like a file's, or a recipe.
            Where a mapping chooses by `type`, such as the loss, debate form, data and evaluation
            modes, it may hold a class of your own or an object of it; or a mapping with the class
            as `type`, and its settings.
        overrides: `key=value` arguments as on the command line, or a mapping of differences.
        output: The run directory; `None` makes `runs/<name>-<time>`.
        resume: Go on from the last checkpoint in `output`.
        reward: Replaces the recipe's reward in all phases with a reward: a class or an object, or
            a function from a debate to a number for all turns, a sequence of numbers for the
            turns in order, or a `Score`; `None` is no signal.
        on_step_end: Called after each step; an exception from it ends the run, after a
            checkpoint.
        changed: Resume although the run was trained with another recipe.

    Returns:
        The run directory, with results and metrics.

    Raises:
        UsageError: The recipe or an argument is wrong.
    """
    source = recipe.model_dump(exclude_unset=True) if isinstance(recipe, Recipe) else recipe
    loaded = load_recipe(source, overrides, model=Recipe)
    if reward is not None:
        rewarded = with_reward(loaded.recipe, reward)
        loaded = replace(loaded, recipe=rewarded, phases=rewarded.phase_recipes())
    redact = loaded.reading.redact
    report = check(loaded.recipe)
    if report.errors:
        raise UsageError(redact("\n".join(report.errors)))
    for line in report.warnings:
        print(redact(f"warning: {line}"), file=sys.stderr)
    path = new_folder(loaded.recipe.name) if output is None else Path(output)
    code = run(
        loaded.recipe,
        resolved_yaml(loaded),
        path,
        resume,
        on_step_end=on_step_end,
        changed=changed,
    )

    results_path = path / "results.json"
    results = {}
    if results_path.is_file():
        results = json.loads(results_path.read_text(encoding="utf-8"))
    checkpoints = sorted((path / "checkpoints").glob("step-*"))
    return Trained(
        directory=path,
        results=results,
        metrics=MetricsFile(path / METRICS).rows(),
        checkpoint=checkpoints[-1] if checkpoints else None,
        finished=code == 0,
    )


def with_reward(recipe: Recipe, reward: object) -> Recipe:
    """Replace the reward of all phases, except imitating phases.

    Raises:
        RecipeError: The reward is neither a class or object of a reward nor a function.
    """
    try:
        update = {"reward": TypeAdapter(RewardChoice).validate_python(reward)}
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise RecipeError(f"reward: found {reward!r:.80}; {message}") from None

    def replace_reward(phase: Recipe) -> Recipe:
        return phase if phase.loss.supervised else phase.model_copy(update=update)

    rewarded = replace_reward(recipe)
    if recipe.phases:
        # The copy still refers to the whole phases of before, each with its earlier reward.
        vars(rewarded)[WHOLE_PHASES] = {
            name: replace_reward(phase) for name, phase in recipe.phase_recipes().items()
        }
    return rewarded
