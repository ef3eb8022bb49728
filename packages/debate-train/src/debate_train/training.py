"""A run that is started from Python: `debate_train.train`."""

import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from debate_train.function_reward import FunctionReward, RewardFunction
from debate_train.interrupts import UsageError
from debate_train.recipe import Recipe
from debate_train.recipe.check import check
from debate_train.recipe.files import LoadedRecipe, load_recipe, resolved_yaml
from debate_train.recipe.problems import WHOLE_PHASES
from debate_train.running.run import run
from debate_train.running.run_context import StepEnd

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


def train(
    recipe: str | Path | Recipe | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    output: str | Path | None = None,
    resume: bool = False,
    reward: RewardFunction | None = None,
    on_step_end: OnStepEnd | None = None,
) -> Trained:
    """Train as a recipe says, in this process; what `debate-train` does, with two doors more.

    Args:
        recipe: A file, the name of a recipe that ships, a mapping as a file holds it, or a recipe.
        overrides: `key=value` arguments as on the command line.
        output: The run directory; None makes `runs/<name>-<time>`.
        resume: Go on from the last checkpoint in `output`.
        reward: A function from a debate to what it is worth, in the place of the recipe's reward
            in all phases that learn from one: a number for all its turns, a sequence of numbers
            for its turns in order, or a `Score`; None is no signal.
        on_step_end: Called after each step with what it was; what it raises ends the run, after
            a checkpoint.

    Returns:
        The run directory, its results and its metrics.

    Raises:
        UsageError: The recipe or an argument is wrong.
    """
    loaded = _loaded(recipe, overrides)
    wanted, text = loaded.recipe, resolved_yaml(loaded)
    if reward is not None:
        wanted = _rewarded(wanted, reward)
        name = f"{getattr(reward, '__module__', '?')}.{getattr(reward, '__qualname__', '?')}"
        text = f"# The reward was a function, {name!a:.200}, in the place of those below.\n{text}"
    report = check(wanted)
    if report.errors:
        raise UsageError(loaded.reading.redact("\n".join(report.errors)))
    for line in report.warnings:
        print(loaded.reading.redact(f"warning: {line}"), file=sys.stderr)
    folder = Path("runs") / f"{wanted.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    path = folder if output is None else Path(output)
    code = run(wanted, text, path, resume, on_step_end=on_step_end)
    return _trained(path, finished=code == 0)


def _loaded(
    recipe: str | Path | Recipe | Mapping[str, Any], overrides: Sequence[str]
) -> LoadedRecipe[Recipe]:
    if isinstance(recipe, str | Path):
        return load_recipe(recipe, overrides, model=Recipe)
    data = recipe
    if isinstance(recipe, Recipe):
        data = recipe.model_dump(mode="json", exclude_unset=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "recipe.yaml"
        file.write_text(yaml.safe_dump(dict(data), sort_keys=False), encoding="utf-8")
        try:
            return load_recipe(file, overrides, model=Recipe)
        except UsageError as error:  # It names a file that nobody has written.
            said = re.sub(rf"{re.escape(str(file))}(:\d+)?", "recipe", str(error))
            raise type(error)(said) from None


def _rewarded(recipe: Recipe, function: RewardFunction) -> Recipe:
    """Return a recipe whose phases learn from a function, but those that imitate."""
    own = {"reward": FunctionReward.of(function)}

    def changed(phase: Recipe) -> Recipe:
        return phase if phase.loss.supervised else phase.model_copy(update=own)

    phases = {name: changed(phase) for name, phase in recipe.phase_recipes().items()}
    found = changed(recipe)
    if recipe.phases:
        vars(found)[WHOLE_PHASES] = phases
    return found


def _trained(path: Path, *, finished: bool) -> Trained:
    results, rows = path / "results.json", path / "metrics.jsonl"
    lines = rows.read_text(encoding="utf-8").splitlines() if rows.is_file() else []
    written = sorted((path / "checkpoints").glob("step-*"))
    return Trained(
        path,
        json.loads(results.read_text(encoding="utf-8")) if results.is_file() else {},
        [json.loads(line) for line in lines],
        written[-1] if written else None,
        finished,
    )
