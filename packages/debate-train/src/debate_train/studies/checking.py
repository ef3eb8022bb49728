"""Whether all runs of a study can be: recipes, settings, phases and measures."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from debate_train.errors import UsageError
from debate_train.reading.recipe_file import LoadedRecipe, load_recipe
from debate_train.studies.study_file import (
    Arm,
    Start,
    Study,
    filled,
    recipe_file,
    without_scratch,
)

if TYPE_CHECKING:
    from debate_train.recipe import Recipe

_RATES = {"tpr": 0.9, "fpr": 0.2}
"""Those of a judge, before there is one."""
_CHECKPOINT = ("model.type=pretrained", "model.name=start", "model.dtype=float32")


def loaded_runs(study: Study, folder: Path) -> "Iterator[tuple[str, LoadedRecipe[Recipe]]]":
    """Yield the key of each start and arm with its recipe, as if it had no start.

    Args:
        study: Whose runs are read.
        folder: Of its file.

    Raises:
        UsageError: A run is not a recipe, has no such phase, or does not measure what it should.
    """
    for name, start in study.starts.items():
        key = f"starts.{name}"
        loaded = _loaded(key, start, study, folder)
        _refuse_phases(key, study.left_out(name), loaded)
        _refuse_unused_start(key, loaded)
        yield key, loaded
    for name, arm in study.arms.items():
        key = f"arms.{name}"
        loaded = _loaded(key, arm, study, folder)
        if arm.start is not None:
            _refuse_phases(key, study.left_out(arm.start), loaded)
        _refuse_measures(key, study, loaded)
        yield key, loaded


def _loaded(key: str, run: Start | Arm, study: Study, folder: Path) -> "LoadedRecipe[Recipe]":
    from debate_train.recipe import Recipe

    values = {"seed": study.all_seeds()[0]} | ({} if run.start is None else _RATES)
    own = [filled(setting, values) for setting in run.settings]
    shared = [filled(setting, values) for setting in study.settings]
    try:
        file = recipe_file(run.recipe, folder)
        if run.start is not None:  # What it will be, but for the name of the checkpoint.
            begun = [*without_scratch(shared), *_CHECKPOINT, *own]
            load_recipe(file, begun, model=Recipe)
        return load_recipe(file, [*shared, *own], model=Recipe)
    except UsageError as error:
        raise UsageError(f"{key}: {error}") from error


def _refuse_phases(key: str, left_out: set[str], loaded: "LoadedRecipe[Recipe]") -> None:
    for phase in sorted(left_out - {*loaded.phases}):
        known = ", ".join(loaded.phases) or "none"
        raise UsageError(f"{key}: found no phase {phase!r}; expected one of the recipe's: {known}")


def _refuse_unused_start(key: str, loaded: "LoadedRecipe[Recipe]") -> None:
    """Refuse starts whose checkpoint an arm could not begin with, or that write no results."""
    lora = getattr(loaded.recipe.model, "lora", None)
    if lora is not None and lora.adapters:
        raise UsageError(f"{key}: found adapters with names; expected one model, or one adapter")
    if loaded.recipe.evaluation.questions == 0:
        raise UsageError(f"{key}: evaluation.questions: found 0; expected at least 1")


def _refuse_measures(key: str, study: Study, loaded: "LoadedRecipe[Recipe]") -> None:
    known = loaded.recipe.evaluated().measured()
    if loaded.recipe.evaluation.questions == 0:
        raise UsageError(f"{key}: evaluation.questions: found 0; expected at least 1")
    for name, measure in study.measures.items():
        if measure not in known:
            raise UsageError(
                f"{key}: measures.{name}: found {measure!r}, which the arm does not measure; "
                f"expected one of {', '.join(known)}"
            )
