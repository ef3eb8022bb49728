"""From a YAML file and `key=value` arguments to a checked recipe.

The merge rule is ours (`merging.merge`); pydantic decides what is valid. `extends: other.yaml`
makes a file a mapping of differences.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, ValidationError

from debate_protocol.plugins import did_you_mean
from debate_train.errors import RecipeError
from debate_train.recipe.merging import merge_recipes
from debate_train.recipe.problems import KeyPath, Origin, Problems, RawRecipe, holds, value_at
from debate_train.recipe.reading import Overrides, Source, read_overrides, read_yaml, resolve
from debate_train.recipe.schema import PHASES, WHOLE_PHASES, Schema
from debate_train.recipe_names import named_recipe, recipe_names

M = TypeVar("M", bound=BaseModel)
EXTENDS = "extends"


@dataclass(frozen=True, slots=True)
class LoadedRecipe(Generic[M]):
    """A valid recipe, and its sources.

    Attributes:
        recipe: The validated recipe.
        path: The file.
        reading: The values of files and arguments, merged, without defaults.
        notes: Keys dropped by a change of `type` on the command line.
        phases: Each phase as a whole recipe, in order.
    """

    recipe: M
    path: Path
    reading: RawRecipe
    notes: tuple[str, ...]
    phases: Mapping[str, M]


def find_recipe(name: str | Path) -> Path:
    """Find the file of a recipe given by path or by name.

    Raises:
        RecipeError: The recipe is missing; names the nearest.
    """
    path = Path(name)
    file = path if path.is_file() else named_recipe(str(name))
    if file is not None:
        return file
    # `lexists` also finds a folder, and a link that leads nowhere.
    if os.path.lexists(path):
        raise RecipeError(f"{path}: found no file that can be read; expected a recipe file (.yaml)")
    # Recipes that were at the first level before.
    moved = named_recipe(f"papers/{path.name}") if path.name else None
    if moved is not None:
        raise RecipeError(f"{path}: is in recipes/papers now; expected papers/{moved.stem}")
    candidates = [*recipe_names(), *map(str, path.parent.glob("*.yaml"))]
    raise RecipeError(
        f"{path}: no such recipe; expected a YAML file or a name (debate-train recipes)"
        f"{did_you_mean(str(path), candidates)}"
    )


def load_recipe(
    path: str | Path | Mapping[str, Any],
    overrides: Overrides = (),
    *,
    model: type[M],
) -> LoadedRecipe[M]:
    """Read, extend, override, resolve and validate a recipe.

    Args:
        path: A file, a name listed by `debate-train recipes`, or a mapping as in a file. Variants
            in a mapping may be Python objects.
        overrides: `key=value` arguments, values are YAML, text fields take them as typed; or a
            mapping of differences.
        model: The recipe's pydantic model.

    Raises:
        RecipeError: States place, found value, expected value and nearest valid name.
    """
    schema = Schema((model,))
    dropped: list[str] = []
    if isinstance(path, Mapping):
        source = Source(dict(path), {})
        path = Path("recipe")
    else:
        path = find_recipe(path)
        source = read_yaml(path)
    source = _extend(source, path, schema, ())
    if overrides:
        source = _merge_sources(source, read_overrides(overrides), schema, dropped)
    # A phase without differences is written as null.
    phases = source.data.get(PHASES)
    if phases is None:
        source.data.pop(PHASES, None)
    elif isinstance(phases, dict):
        source.data[PHASES] = {
            name: {} if difference is None else difference for name, difference in phases.items()
        }

    reading = resolve(source.data)
    recipe = _validate(model, reading, source.origins, str(path))
    whole_phases: dict[str, M] = {}
    if PHASES in model.model_fields:
        whole_phases = _validate_phases(model, reading, source.origins, path)
        if getattr(recipe, PHASES) != reading.values.get(PHASES, {}):
            # A phase's text is now as typed: `no` instead of false.
            recipe = _validate(model, reading, source.origins, str(path))
        # The recipe would validate its phases again, without the lines of their keys.
        vars(recipe)[WHOLE_PHASES] = whole_phases
    return LoadedRecipe(
        recipe=recipe,
        path=path,
        reading=reading,
        notes=tuple(dropped),
        phases=whole_phases,
    )


def phase_reading(reading: RawRecipe, name: str, schema: Schema) -> RawRecipe:
    """Merge the recipe's raw values with the differences of a phase."""
    difference = reading.values[PHASES][name]
    base = {key: value for key, value in reading.values.items() if key != PHASES}
    values = merge_recipes(base, difference, schema)
    # A value from the environment is the phase's where the phase gives it, else the recipe's unless
    # the phase replaces it.
    kept = {}
    kept_of_phase = {}
    for path, text in reading.kept.items():
        if path[:2] == (PHASES, name):
            kept_of_phase[path[2:]] = text
        elif holds(values, path) and not holds(difference, path):
            kept[path] = text
    return RawRecipe(values, kept | kept_of_phase, reading.environment)


def _extend(source: Source, path: Path, schema: Schema, children: tuple[Path, ...]) -> Source:
    """Merge the values of a file into the extended file's values.

    Args:
        source: The values of the file.
        path: The file.
        schema: The schema of recipes.
        children: The chain of extending files.
    """
    file = path.resolve()
    if file in children:
        ring = [*children[children.index(file) :], file]
        names = " -> ".join(member.name for member in ring)
        raise RecipeError(f"{path}: extends leads back to itself ({names}); break the ring")
    parent_name = source.data.pop(EXTENDS, None)
    if parent_name is None:
        return source
    where = source.origins.get((EXTENDS,), path)
    if not isinstance(parent_name, str) or "${" in parent_name:
        raise RecipeError(f"{where}: extends: found {parent_name!r}; expected one file")
    # A file beside this one comes before a shipped recipe of the same name.
    parent_path = path.parent / parent_name
    if not parent_path.is_file():
        parent_path = named_recipe(parent_name) or parent_path
    if not parent_path.is_file():
        siblings = [sibling.name for sibling in parent_path.parent.glob("*.yaml")]
        hint = did_you_mean(parent_path.name, siblings)
        raise RecipeError(f"{where}: extends: no file {parent_path}{hint}")
    parent = _extend(read_yaml(parent_path), parent_path, schema, (*children, file))
    return _merge_sources(parent, source, schema, [])


def _merge_sources(base: Source, change: Source, schema: Schema, dropped: list[str]) -> Source:
    data = merge_recipes(base.data, change.data, schema, dropped=dropped)
    return Source(data, {**base.origins, **change.origins})


def _validate(
    model: type[M],
    reading: RawRecipe,
    origins: dict[KeyPath, Origin],
    place: str,
) -> M:
    """Validate raw values; restore texts read by YAML as `no` or `1.10`."""
    # Again after each repair: pydantic does not look inside a part whose `type` it could not read.
    while True:
        problems = Problems(Schema((model,)), reading, origins, place)
        try:
            recipe = model.model_validate(reading.values)
            break
        except ValidationError as error:
            typed = problems.typed_text(error)
            if not typed:
                raise RecipeError(problems.describe(error)) from error
            for path, text in typed.items():
                _set(reading.values, path, text)
    problems.refuse_misread_numbers(recipe)
    return recipe


def _validate_phases(
    model: type[M], reading: RawRecipe, origins: dict[KeyPath, Origin], file: Path
) -> dict[str, M]:
    """Validate each phase with the lines of the phase's differences; restore texts as typed."""
    whole_phases: dict[str, M] = {}
    for name, difference in reading.values.get(PHASES, {}).items():
        phase_path = (PHASES, name)
        if PHASES in difference:
            where = origins.get((*phase_path, PHASES), file)
            raise RecipeError(f"{where}: phases.{name}.phases: phases do not nest")
        merged = phase_reading(reading, name, Schema((model,)))
        phase_origins = {}
        for path, origin in origins.items():
            if path[:2] == phase_path:
                phase_origins[path[2:]] = origin
        try:
            whole_phases[name] = _validate(model, merged, {**origins, **phase_origins}, str(file))
        except RecipeError as error:
            raise RecipeError(f"phase {name}: {error}") from error
        # Validation restored texts in the merged values; the difference gets the same.
        for path in phase_origins:
            is_in_both = holds(difference, path) and holds(merged.values, path)
            if is_in_both and not isinstance(value_at(difference, path), dict | list):
                _set(difference, path, value_at(merged.values, path))
    return whole_phases


def _set(data: object, path: KeyPath, value: object) -> None:
    parent = cast(dict[str | int, object], value_at(data, path[:-1]))
    parent[path[-1]] = value
