"""Whether all runs of a study can be: recipes, settings, phases and measures."""

import os
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
        loaded = _loaded(f"starts.{name}", start, study, folder, study.left_out(name))
        _refuse_named_adapters(f"starts.{name}", loaded)
        yield f"starts.{name}", loaded
    for name, arm in study.arms.items():
        left_out = study.left_out(arm.start) if arm.start else set[str]()
        loaded = _loaded(f"arms.{name}", arm, study, folder, left_out)
        _refuse_measures(f"arms.{name}", study, loaded)
        yield f"arms.{name}", loaded


def output_problems(study: Study, folder: Path) -> Iterator[str]:
    """Yield why files that a study names must not be written: it may be somebody else's.

    Args:
        study: That names them.
        folder: Of its file.
    """
    begin = {"page": (".md", f"# Study {study.name}\n"), "results": (".jsonl", '{"arm"')}
    for key, (suffix, first) in begin.items():
        if (named := getattr(study, key)) is None:
            continue
        path = folder / named
        what = f"{key}: found {named!r}"
        is_there = path.is_file() and not path.is_symlink()
        if path.suffix != suffix:
            yield f"{what}; expected a name that ends in {suffix}"
        elif is_there and path.stat().st_size:
            with path.open("rb") as file:
                if file.read(len(first.encode())) != first.encode():
                    yield f"{what}, a file that this study has not made; expected another name"
        elif not is_there and os.path.lexists(path):
            yield f"{what}, a link or a folder; expected a plain file"
        elif not is_there and key == "page" and path.with_suffix(".svg").exists():
            yield f"{what}, beside whose place a picture is; expected another name"
        elif not is_there and not path.resolve().is_relative_to(folder.resolve()):
            yield f"{what}, outside the study's own folder; expected a name below {folder}"


def _loaded(
    key: str, run: Start | Arm, study: Study, folder: Path, left_out: set[str]
) -> "LoadedRecipe[Recipe]":
    """Return a run's recipe, of whose phases some are left out."""
    from debate_train.recipe import Recipe

    values = {"seed": study.all_seeds()[0]} | ({} if run.start is None else _RATES)
    named = f"name={key.partition('.')[2]}-{max(study.all_seeds())}"
    own = [named, *(filled(setting, values) for setting in run.settings)]
    shared = [filled(setting, values) for setting in study.settings]
    try:
        file = recipe_file(run.recipe, folder)
        if run.start is not None:  # What it will be, but for the name of the checkpoint.
            begun = [*without_scratch(shared), *_CHECKPOINT, *own]
            load_recipe(file, begun, model=Recipe)
        loaded = load_recipe(file, [*shared, *own], model=Recipe)
        if loaded.recipe.evaluation.questions == 0:  # It would write no results.
            raise UsageError("evaluation.questions: found 0; expected at least 1")
        for phase in sorted(left_out - {*loaded.phases}):
            known = ", ".join(loaded.phases) or "none"
            raise UsageError(f"found no phase {phase!r}; expected one of the recipe's: {known}")
        return loaded
    except UsageError as error:
        raise UsageError(f"{key}: {error}") from error


def _refuse_named_adapters(key: str, loaded: "LoadedRecipe[Recipe]") -> None:
    """Refuse starts whose checkpoint an arm could not begin with."""
    lora = getattr(loaded.recipe.model, "lora", None)
    if lora is not None and lora.adapters:
        raise UsageError(f"{key}: found adapters with names; expected one model, or one adapter")


def _refuse_measures(key: str, study: Study, loaded: "LoadedRecipe[Recipe]") -> None:
    known = loaded.recipe.evaluated().measured()
    for name, measure in study.measures.items():
        if measure not in known:
            raise UsageError(
                f"{key}: measures.{name}: found {measure!r}, which the arm does not measure; "
                f"expected one of {', '.join(known)}"
            )
