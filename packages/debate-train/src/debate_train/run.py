"""One run from recipe to report."""

import logging
import time
from pathlib import Path

import yaml

from debate_rollout.engine import Engine
from debate_rollout.engines import ScriptedEngine
from debate_train.errors import RecipeError
from debate_train.interrupts import Interrupts
from debate_train.models import LoadedModel
from debate_train.phases import Desk, Phases
from debate_train.policy import with_adapter
from debate_train.progress import Progress
from debate_train.recipe import Demonstrations, Recipe
from debate_train.report import write_report
from debate_train.run_directory import RunDirectory

_log = logging.getLogger(__name__)


def run(
    recipe: Recipe, resolved_yaml: str, output: Path | None = None, resume: bool = False
) -> int:
    """Train as the recipe says; return the exit code.

    Args:
        recipe: what to do.
        resolved_yaml: the recipe as it is kept in the run directory.
        output: the run directory; None makes `runs/<name>-<time>`.
        resume: go on from the directory's last complete checkpoint.
    """
    if resume and output is None:
        raise RecipeError("--resume: found no --output; expected the directory of the run")
    source = recipe.data.open()
    loaded = with_adapter(recipe.model.load(recipe.seed), recipe.seed)
    path = output or Path("runs") / f"{recipe.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    directory = RunDirectory.open(path) if resume else RunDirectory.create(path, resolved_yaml)
    engine = _open_engine(recipe, loaded)
    tracker = recipe.tracking.open(directory, recipe.name, yaml.safe_load(resolved_yaml))
    finished = False
    try:
        with Progress() as progress, Interrupts() as interrupts:
            desk = Desk(directory, tracker, progress, interrupts, source, engine, loaded)
            code = Phases(recipe, desk).run(resume)
            finished = True
    finally:
        tracker.close(failed=not finished)
        engine.close()
        report = write_report(directory.path)
    print(f"report: {report}")
    return code


def _open_engine(recipe: Recipe, loaded: LoadedModel) -> Engine:
    """Return the engine that samples from the policy."""
    config = recipe.rollout.engine
    if isinstance(config, Demonstrations | ScriptedEngine):
        raise RecipeError(
            f"rollout.engine.type: found {config.type} for the whole recipe; expected an engine "
            "that samples from the policy (demonstrations may stand in a phase)"
        )
    engine: Engine = config.open(loaded.model, loaded.tokenizer, loaded.template_kwargs)
    return engine
