"""From a YAML file and `key=value` arguments to a checked recipe.

OmegaConf reads YAML and interpolates; the merge rule is ours (`recipe_merge`); pydantic decides
what is valid. `extends: other.yaml` makes a file a mapping of differences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, ValidationError

from debate_train.errors import RecipeError
from debate_train.reading.recipe_merge import merge
from debate_train.reading.recipe_problems import Problems
from debate_train.reading.recipe_schema import PHASES, WHOLE_PHASES, Schema
from debate_train.reading.recipe_source import (
    KeyPath,
    Origin,
    Source,
    read_overrides,
    read_yaml,
    value_at,
)
from debate_train.reading.recipe_values import Reading, resolve
from debate_train.reading.shipped_recipes import find_recipe, is_utf8, named_recipe

M = TypeVar("M", bound=BaseModel)
EXTENDS = "extends"


@dataclass(frozen=True, slots=True)
class LoadedRecipe(Generic[M]):
    """A recipe that holds, and how it came about.

    Attributes:
        recipe: The validated recipe.
        path: The file.
        reading: What was written in files and arguments, merged, without defaults.
        notes: Keys that a change of `type` on the command line dropped.
        phases: Each phase as a whole recipe, in order.
    """

    recipe: M
    path: Path
    reading: Reading
    notes: tuple[str, ...]
    phases: Mapping[str, M]


def load_recipe(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    model: type[M],
) -> LoadedRecipe[M]:
    """Read, extend, override, resolve and validate a recipe.

    Args:
        path: A file, or the name of a recipe as `debate-train recipes` lists them.
        overrides: `key=value` arguments; values are YAML, text fields take them as typed.
        model: The recipe's pydantic model.

    Raises:
        RecipeError: Where · what was found · what was expected · the nearest valid name.
    """
    path = find_recipe(path)
    schema = Schema((model,))
    dropped: list[str] = []
    source = _extended(path, schema, ())
    if overrides:
        source = _merged(source, read_overrides(overrides), schema, dropped)
    phases = source.data.get(PHASES)
    if phases is None:
        source.data.pop(PHASES, None)
    elif isinstance(phases, dict):
        source.data[PHASES] = {name: {} if diff is None else diff for name, diff in phases.items()}
    reading = resolve(source.data)
    recipe = _validated(model, reading, source.origins, str(path))
    whole: dict[str, M] = {}
    if PHASES in model.model_fields:
        whole = _whole_phases(model, reading, source.origins, path)
        if getattr(recipe, PHASES) != reading.resolved.get(PHASES, {}):  # A text was put right.
            recipe = _validated(model, reading, source.origins, str(path))
        vars(recipe)[WHOLE_PHASES] = whole  # What it would make of its differences again.
    return LoadedRecipe(recipe, path, reading, tuple(dropped), whole)


def phase_reading(reading: Reading, name: str, schema: Schema) -> Reading:
    """Return what was said of one phase: the recipe's values with the phase's differences."""
    resolved, written = (
        merge({k: v for k, v in data.items() if k != PHASES}, data[PHASES][name], schema)
        for data in (reading.resolved, reading.written)
    )
    return Reading(resolved, written, reading.environment)


def _extended(path: Path, schema: Schema, chain: tuple[Path, ...]) -> Source:
    """Read a file on top of what it extends."""
    real = path.resolve()
    if real in chain:
        ring = " -> ".join(file.name for file in (*chain[chain.index(real) :], real))
        raise RecipeError(f"{path}: extends leads back to itself ({ring}); break the ring")
    child = read_yaml(path)
    parent_name = child.data.pop(EXTENDS, None)
    if parent_name is None:
        return child
    where = child.origins[(EXTENDS,)]
    if not isinstance(parent_name, str) or "${" in parent_name:
        raise RecipeError(
            f"{where}: extends: found {parent_name!r}; expected one file, relative to this one"
        )
    parent_path = path.parent / parent_name
    if "\0" in parent_name or not is_utf8(parent_name):
        raise RecipeError(f"{where}: extends: found {parent_name!a}; expected the name of a file")
    if not parent_path.is_file():
        parent_path = named_recipe(parent_name) or parent_path
    if not parent_path.is_file():
        names = [file.name for file in parent_path.parent.glob("*.yaml")]
        near = get_close_matches(parent_path.name, names, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise RecipeError(f"{where}: extends: no file {parent_path}{hint}")
    parent = _extended(parent_path, schema, (*chain, real))
    return _merged(parent, child, schema, [])


def _merged(base: Source, change: Source, schema: Schema, dropped: list[str]) -> Source:
    for path, value in _leaves(change.data):
        _refuse_key_below_value(base.data, path, value, change.origins.get(path), schema)
    data = merge(base.data, change.data, schema, dropped=dropped)
    return Source(data, {**base.origins, **change.origins})


def _refuse_key_below_value(
    base: dict[Any, Any], path: KeyPath, value: object, origin: Origin | None, schema: Schema
) -> None:
    """Refuse `data.path.x=1` where `data.path` is text: lists and scalars have no keys.

    A name may give way to a mapping where either may stand, as in `debate.contract`.
    """
    place, holder = schema, base
    for end in range(1, len(path)):
        place = place.child(path[end - 1], holder)
        try:
            held = value_at(base, path[:end])
        except KeyError:
            return
        if isinstance(held, str) and place.models:
            return
        holder = held if isinstance(held, dict) else {}
        if held is not None and not isinstance(held, dict):
            key, kind = ".".join(map(str, path)), "a list" if isinstance(held, list) else "a value"
            raise RecipeError(
                f"{origin}: {key}: {'.'.join(map(str, path[:end]))} is {kind} ({held!r}) and has "
                f"no keys; give it whole"
            )


def _leaves(data: object, path: KeyPath = ()) -> list[tuple[KeyPath, object]]:
    if isinstance(data, dict) and data:
        return [leaf for key, value in data.items() for leaf in _leaves(value, (*path, key))]
    return [(path, data)]


def _validated(
    model: type[M],
    reading: Reading,
    origins: dict[KeyPath, Origin],
    place: str,
) -> M:
    """Validate; text fields get what was typed where YAML had read `no` or `1.10` as no text."""
    while True:
        problems = Problems(model, reading, origins, place)
        try:
            recipe = model.model_validate(reading.resolved)
            break
        except ValidationError as error:
            typed = problems.typed_text(error)
            if not typed:
                raise RecipeError(problems.describe(error)) from error
            for path, text in typed.items():
                _set(reading.resolved, path, text)
                _set(reading.written, path, text)
    problems.refuse_truth_as_number(recipe)
    problems.refuse_large_numbers(recipe)
    return recipe


def _whole_phases(
    model: type[M], reading: Reading, origins: dict[KeyPath, Origin], file: Path
) -> dict[str, M]:
    """Validate each phase with the lines of its own differences; keeps text as typed in them."""
    schema, whole = Schema((model,)), dict[str, M]()
    for name, difference in reading.resolved.get(PHASES, {}).items():
        here = (PHASES, name)
        if PHASES in difference:
            raise RecipeError(
                f"{origins.get((*here, PHASES), file)}: phases.{name}.phases: phases do not nest; "
                "expected keys of the recipe"
            )
        merged = phase_reading(reading, name, schema)
        own = {path[2:]: origin for path, origin in origins.items() if path[:2] == here}
        try:
            whole[name] = _validated(model, merged, {**origins, **own}, str(file))
        except RecipeError as error:
            raise RecipeError(f"phase {name}: {error}") from error
        for path in own:
            _copy(merged.resolved, difference, path)
            _copy(merged.written, reading.written[PHASES][name], path)
    return whole


def _copy(source: object, target: object, path: KeyPath) -> None:
    """Take over one scalar that validation has put right."""
    try:
        old, new = value_at(target, path), value_at(source, path)
    except KeyError:
        return
    if path and not isinstance(old, dict | list):
        _set(target, path, new)


def _set(data: object, path: KeyPath, value: object) -> None:
    cast(dict[str | int, object], value_at(data, path[:-1]))[path[-1]] = value
