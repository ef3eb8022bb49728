"""Whether all runs of a study can be: recipes, settings, phases and measures."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from debate_train.errors import UsageError
from debate_train.reading.recipe_file import LoadedRecipe, load_recipe
from debate_train.studies.study_file import Arm, Start, Study, filled, recipe_file

if TYPE_CHECKING:
    from debate_train.recipe import Recipe

_EXAMPLE = {"tpr": 0.9, "fpr": 0.2}
"""Rates of a judge, before there is one."""


def loaded_runs(study: Study, folder: Path) -> "Iterator[tuple[str, LoadedRecipe[Recipe]]]":
    """Yield the key of each start and arm with its recipe, as if it had no start.

    Args:
        study: Whose runs are read.
        folder: Of its file.

    Raises:
        UsageError: A run is not a recipe, has no such phase or measures something else.
    """
    for name, start in study.starts.items():
        loaded = _loaded(f"starts.{name}", start, study, folder)
        _refuse_phases(f"starts.{name}", study.left_out(name), loaded)
        yield f"starts.{name}", loaded
    for name, arm in study.arms.items():
        loaded = _loaded(f"arms.{name}", arm, study, folder)
        if arm.start is not None:
            _refuse_phases(f"arms.{name}", study.left_out(arm.start), loaded)
        _refuse_measures(f"arms.{name}", study, loaded)
        yield f"arms.{name}", loaded


def _loaded(key: str, run: Start | Arm, study: Study, folder: Path) -> "LoadedRecipe[Recipe]":
    from debate_train.recipe import Recipe

    seed = study.all_seeds()[0]
    settings = [filled(one, {"seed": seed} | _EXAMPLE) for one in (*study.settings, *run.settings)]
    try:
        return load_recipe(recipe_file(run.recipe, folder), settings, model=Recipe)
    except UsageError as error:
        raise UsageError(f"{key}: {error}") from error


def _refuse_phases(key: str, left_out: set[str], loaded: "LoadedRecipe[Recipe]") -> None:
    for phase in sorted(left_out - {*loaded.phases}):
        known = ", ".join(loaded.phases) or "none"
        raise UsageError(f"{key}: found no phase {phase!r}; expected one of the recipe's: {known}")


def _refuse_measures(key: str, study: Study, loaded: "LoadedRecipe[Recipe]") -> None:
    known = loaded.recipe.evaluated().measured()
    for name, measure in study.measures.items():
        if measure not in known:
            raise UsageError(
                f"{key}: measures.{name}: found {measure!r}, which the arm does not measure; "
                f"expected one of {', '.join(known)}"
            )
