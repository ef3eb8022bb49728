"""Going on with a run by another recipe: what may change, and what is kept of it."""

import json
from typing import Any

import yaml

from debate_train.checkpointing.whole_files import write_aside
from debate_train.environment import describe_environment
from debate_train.errors import RecipeError
from debate_train.reading.recipe_changes import Changes, recipe_changes, shown_change
from debate_train.run_directory import ENVIRONMENT, LATER_RECIPES, RECIPE, RunDirectory


def refuse_another_run(directory: RunDirectory, resolved_yaml: str) -> None:
    """Refuse to go on with another model or other phases.

    Raises:
        RecipeError: They are not those of the recipe that the run was started with.
    """
    before, now = yaml.safe_load(directory.recipe), yaml.safe_load(resolved_yaml)
    phases = [list(r.get("phases") or ()) for r in (before, now)]
    same_model = before.get("model") == now.get("model")
    if same_model and phases[0] == phases[1]:
        return
    key = "phases" if same_model else "model"
    raise RecipeError(
        f"{key}: found another than in {directory.path / RECIPE}, which the run was "
        f"started with; expected the same {key} to resume, or another --output to start afresh"
    )


def note_resume(directory: RunDirectory, step: int, resolved_yaml: str) -> Changes:
    """Keep what a run goes on with after `step` steps, once it has gone back there.

    `environment.json` gets an entry in `resumed`. A recipe that is not the one so far is kept as
    `recipe-from-step-NNNNNN.yaml`, named for the first step that is made with it.

    Returns:
        What has changed in the recipe.
    """
    earlier = sorted(directory.path.glob(LATER_RECIPES), key=lambda path: (len(path.name), path))
    before = (earlier or [directory.path / RECIPE])[-1].read_text(encoding="utf-8")
    changes = recipe_changes(before, resolved_yaml)
    if changes:
        path = directory.path / f"recipe-from-step-{step + 1:06d}.yaml"
        write_aside(path, resolved_yaml.encode())
    now = {**describe_environment(), "from_step": step + 1, "changes": changes}
    path = directory.path / ENVIRONMENT
    first: dict[str, Any]
    try:
        first = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        first = describe_environment()
    first["resumed"] = [*first.get("resumed", []), now]
    text = json.dumps(first, indent=2, ensure_ascii=False, allow_nan=False)
    write_aside(path, (text + "\n").encode())
    return changes


def shown_changes(changes: Changes, step: int) -> str:
    """Return what has changed after `step` steps as one line."""
    told = "; ".join(f"{key}: {shown_change(change)}" for key, change in changes.items())
    return f"resumed with another recipe from step {step + 1} on: {told}"
