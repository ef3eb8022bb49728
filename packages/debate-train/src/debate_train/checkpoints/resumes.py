"""Resuming a run: allowed changes of the recipe, and files to be found unchanged."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from debate_report.run_files import shown_change
from debate_train.checkpoints.manifest import RefusedCheckpoint
from debate_train.checkpoints.run_directory import (
    ENVIRONMENT,
    LATER_RECIPES,
    RECIPE,
    RunDirectory,
    describe_environment,
    refuse_no_run,
)
from debate_train.checkpoints.run_state import RunState
from debate_train.checkpoints.whole_files import write_whole
from debate_train.errors import RecipeError

Changes = dict[str, dict[str, object]]
"""Full dotted keys, each with its values `before` and `now`; a missing value is left out."""


def refuse_another_run(directory: RunDirectory, resolved_yaml: str) -> None:
    """Refuse to go on with another model or other phases.

    Raises:
        RecipeError: They differ from the run's first recipe.
    """
    before = _unchangeable(directory.recipe)
    now = _unchangeable(resolved_yaml)
    for key in before:
        if before[key] != now[key]:
            raise RecipeError(
                f"{key}: found another than in {directory.path / RECIPE}, which the run was "
                f"started with; expected the same {key} to resume, or another --output for a new "
                "run"
            )


def _unchangeable(recipe_yaml: str) -> dict[str, object]:
    recipe = yaml.safe_load(recipe_yaml)
    model = dict(recipe.get("model") or {})
    # The model may move to another folder: the checkpoint's manifest knows its weights.
    model.pop("name", None)
    return {"model": model, "phases": list(recipe.get("phases") or ())}


def latest_recipe(folder: Path) -> Path:
    """Find the file of a run's latest recipe.

    Raises:
        RunDirectoryError: There is no run in the folder.
    """
    refuse_no_run(folder)
    later_recipes = _later_recipes(folder)
    return later_recipes[-1] if later_recipes else folder / RECIPE


def refuse_changes(directory: RunDirectory, resolved_yaml: str) -> None:
    """Refuse to go on with another recipe than the run was last trained with.

    Raises:
        RecipeError: They differ; the message is a table of the changed keys.
    """
    path = latest_recipe(directory.path)
    changes = recipe_changes(path.read_text(encoding="utf-8"), resolved_yaml)
    if not changes:
        return
    width = max(map(len, changes))
    rows = [f"  {key:{width}}  {shown_change(change)}" for key, change in changes.items()]
    raise RecipeError(
        f"found another recipe than in {path}, which the run was trained with:\n"
        + "\n".join(rows)
        + "\nexpected its own recipe (debate-train --resume RUN takes it), or --changed to go on "
        "with this one"
    )


def refuse_other_data(folder: Path, data: Mapping[str, str], way_out: str) -> None:
    """Refuse to go on with files of questions that have changed.

    Folders of earlier releases have no hashes of them.

    Args:
        folder: Of the run.
        data: The hashes of the files, by key.
        way_out: What else to expect than the same file.

    Raises:
        RecipeError: A file differs from that of the start, or of the last resume.
    """
    environment = _read_environment(folder)
    before: Mapping[str, str] = environment.get("data") or {}
    for resume in environment.get("resumed", []):
        before = resume.get("data") or before
    for key, digest in data.items():
        if before.get(key, digest) != digest:
            raise RecipeError(
                f"{key}: found a file with other content than {folder} was made with; expected "
                f"the same file, or {way_out}"
            )


def _read_environment(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / ENVIRONMENT).read_bytes()))
    except (OSError, ValueError):
        # A run that was stopped while its folder was made has none yet.
        return {}


def recipe_changes(before: str, now: str) -> Changes:
    """Compare two resolved recipes.

    Both are read as they are written, so values from the environment stay `${oc.env:…}`.
    """
    old = dict(_leaf_values(yaml.safe_load(before) or {}))
    new = dict(_leaf_values(yaml.safe_load(now) or {}))
    changes: Changes = {}
    for key in old | new:
        # By their text: 1, 1.0 and true are equal in Python and differ in a recipe.
        if key in old and key in new and repr(old[key]) == repr(new[key]):
            continue
        change = {}
        if key in old:
            change["before"] = old[key]
        if key in new:
            change["now"] = new[key]
        changes[key] = change
    return changes


def _leaf_values(values: Mapping[object, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaf_values(value, f"{name}.")
        elif isinstance(value, float) and not math.isfinite(value):
            yield name, yaml.safe_dump(value).split()[0]  # JSON has no such number
        else:
            yield name, value


def changes_since(directory: RunDirectory, step: int, resolved_yaml: str) -> Changes:
    """Compare a recipe with the run's recipe after `step` steps."""
    recipe = directory.recipe
    for path in _later_recipes(directory.path):
        if _first_step(path) <= step:
            recipe = path.read_text(encoding="utf-8")
    return recipe_changes(recipe, resolved_yaml)


def _later_recipes(folder: Path) -> list[Path]:
    return sorted(folder.glob(LATER_RECIPES), key=_first_step)


def _first_step(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def note_resume(
    directory: RunDirectory, step: int, resolved_yaml: str, data: Mapping[str, str]
) -> Changes:
    """Record a resume after `step` steps, once the run has gone back there.

    `environment.json` gets an entry in `resumed`. A changed recipe is written as
    `recipe-from-step-NNNNNN.yaml`, named for the first step made with it.

    Returns:
        The changes in the recipe.
    """
    # Compared with the recipe at that step: a later recipe's steps are undone.
    changes = changes_since(directory, step, resolved_yaml)
    if changes:
        recipe_path = directory.path / f"recipe-from-step-{step + 1:06d}.yaml"
        write_whole(recipe_path, resolved_yaml.encode())
        directory.note_record(recipe_path)
    entry = {**describe_environment(), "from_step": step + 1, "changes": changes, "data": data}
    path = directory.path / ENVIRONMENT
    environment: dict[str, Any] = _read_environment(directory.path) or describe_environment()
    environment["resumed"] = [*environment.get("resumed", []), entry]
    text = json.dumps(environment, indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(path, (text + "\n").encode())
    return changes


def shown_changes(changes: Changes, step: int) -> str:
    """Write the changes after `step` steps as a line."""
    listed = "; ".join(f"{key}: {shown_change(change)}" for key, change in changes.items())
    return f"resumed with another recipe from step {step + 1} on: {listed}"


def refuse_other_files(directory: RunDirectory, state: RunState) -> None:
    """Refuse a checkpoint if its rows of metrics or samples differ from the run directory.

    Raises:
        RefusedCheckpoint: They differ; the message names the file.
    """
    lines = directory.metrics_path.read_bytes().splitlines(keepends=True)
    # Rows after the checkpoint are of steps that the resumed run makes again.
    checkpoint_rows = b"".join(lines[: state.rows])
    if hashlib.sha256(checkpoint_rows).hexdigest() != state.metrics_sha256:
        raise RefusedCheckpoint(
            f"the first {state.rows} rows of metrics.jsonl are not as they were written"
        )
    for name, digest in state.records.items():
        path = directory.path / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise RefusedCheckpoint(f"{name} is not as it was written before it")
