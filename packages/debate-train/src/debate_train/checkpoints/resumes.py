"""Resuming a run: what may differ in its recipe, and which files must be as they were."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from debate_report.run_files import shown_change
from debate_train.checkpoints import RefusedCheckpoint, RunState
from debate_train.checkpoints.run_directory import (
    ENVIRONMENT,
    LATER_RECIPES,
    RECIPE,
    RunDirectory,
    describe_environment,
    refuse_no_run,
)
from debate_train.checkpoints.whole_files import write_whole
from debate_train.interrupts import RecipeError


def refuse_another_run(directory: RunDirectory, resolved_yaml: str) -> None:
    """Refuse to go on with another model or other phases.

    Raises:
        RecipeError: They are not those of the recipe that the run was started with.
    """
    before, now = _kept(directory.recipe), _kept(resolved_yaml)
    for key in before:
        if before[key] != now[key]:
            raise RecipeError(
                f"{key}: found another than in {directory.path / RECIPE}, which the run was "
                f"started with; expected the same {key} to resume, or another --output for a new "
                "run"
            )


def _kept(recipe_yaml: str) -> dict[str, object]:
    """Return what no resume changes: not where the model is, as checkpoints know its weights."""
    recipe = yaml.safe_load(recipe_yaml)
    model = {key: value for key, value in (recipe.get("model") or {}).items() if key != "name"}
    return {"model": model, "phases": list(recipe.get("phases") or ())}


def latest_recipe(folder: Path) -> Path:
    """Return the file of the recipe that a run was last trained with.

    Raises:
        RunDirectoryError: There is no run in the folder.
    """
    refuse_no_run(folder)
    return max(folder.glob(LATER_RECIPES), key=_first_step, default=folder / RECIPE)


def refuse_changes(directory: RunDirectory, resolved_yaml: str) -> None:
    """Refuse to go on with another recipe than the run was last trained with.

    Raises:
        RecipeError: They differ; the message is a table of the keys that do.
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


Changes = dict[str, dict[str, object]]
"""Full dotted keys, each with its values `before` and `now`; one that is not there is left out."""


def recipe_changes(before: str, now: str) -> Changes:
    """Return what differs between two resolved recipes.

    Both are read as they are written, so what the environment gives stays `${oc.env:…}`.
    """
    old, new = (dict(_leaf_values(yaml.safe_load(text) or {})) for text in (before, now))
    return {
        key: {
            when: values[key] for when, values in (("before", old), ("now", new)) if key in values
        }
        for key in old | new
        if key not in old or key not in new or repr(old[key]) != repr(new[key])
    }


def _leaf_values(values: Mapping[object, object], above: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaf_values(value, f"{name}.")
        elif isinstance(value, float) and not math.isfinite(value):  # JSON has no such number.
            yield name, yaml.safe_dump(value).split()[0]
        else:
            yield name, value


def changes_since(directory: RunDirectory, step: int, resolved_yaml: str) -> Changes:
    """Return what differs from the recipe that the run had after `step` steps."""
    later = sorted(directory.path.glob(LATER_RECIPES), key=_first_step)
    texts = [path.read_text(encoding="utf-8") for path in later if _first_step(path) <= step]
    return recipe_changes([directory.recipe, *texts][-1], resolved_yaml)


def _first_step(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def note_resume(directory: RunDirectory, step: int, resolved_yaml: str) -> Changes:
    """Keep what a run goes on with after `step` steps, once it has gone back there.

    `environment.json` gets an entry in `resumed`. A recipe that is not the one so far is kept as
    `recipe-from-step-NNNNNN.yaml`, named for the first step that is made with it.

    Returns:
        What has changed in the recipe.
    """
    changes = changes_since(directory, step, resolved_yaml)
    if changes:
        path = directory.path / f"recipe-from-step-{step + 1:06d}.yaml"
        write_whole(path, resolved_yaml.encode())
        directory.note_record(path)
    now = {**describe_environment(), "from_step": step + 1, "changes": changes}
    path = directory.path / ENVIRONMENT
    # Of a folder whose making was stopped there is none, and that of now is taken.
    try:
        first: dict[str, Any] = dict(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        first = describe_environment()
    first["resumed"] = [*first.get("resumed", []), now]
    text = json.dumps(first, indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(path, (text + "\n").encode())
    return changes


def shown_changes(changes: Changes, step: int) -> str:
    """Return what has changed after `step` steps as one line."""
    listed = "; ".join(f"{key}: {shown_change(change)}" for key, change in changes.items())
    return f"resumed with another recipe from step {step + 1} on: {listed}"


def refuse_other_files(directory: RunDirectory, state: RunState) -> None:
    """Refuse a checkpoint whose rows of metrics or samples are not those of the run directory.

    Raises:
        RefusedCheckpoint: They are not; the message says which.
    """
    lines = directory.metrics_path.read_bytes().splitlines(keepends=True)[: state.rows]
    if hashlib.sha256(b"".join(lines)).hexdigest() != state.metrics_sha256:
        raise RefusedCheckpoint(
            f"the first {state.rows} rows of metrics.jsonl are not as they were written"
        )
    for name, digest in state.records.items():
        path = directory.path / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise RefusedCheckpoint(f"{name} is not as it was written before it")
