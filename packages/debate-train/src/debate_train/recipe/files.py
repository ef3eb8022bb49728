"""From a YAML file and `key=value` arguments to a checked recipe.

OmegaConf reads YAML and interpolates; the merge rule is ours (`recipe_merge`); pydantic decides
what is valid. `extends: other.yaml` makes a file a mapping of differences.
"""

import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import yaml
from pydantic import BaseModel, ValidationError

from debate_train.interrupts import RecipeError
from debate_train.recipe.problems import PHASES, WHOLE_PHASES, Problems, Schema, merge
from debate_train.recipe.yaml_source import (
    KeyPath,
    Origin,
    Reading,
    Source,
    read_overrides,
    read_yaml,
    resolve,
    value_at,
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
            when: _json(values[key])
            for when, values in (("before", old), ("now", new))
            if key in values
        }
        for key in old | new
        if key not in old or key not in new or not _same(old[key], new[key])
    }


def _leaf_values(values: Mapping[object, object], above: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaf_values(value, f"{name}.")
        else:
            yield name, value


def _same(one: object, other: object) -> bool:
    return type(one) is type(other) and bool(one == other)


def _json(value: object) -> object:
    """Return what JSON can hold; numbers that are not finite as YAML writes them."""
    if isinstance(value, Mapping):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


HERE = Path("recipes")
"""Where recipes are looked up by name first, below the working directory."""
SHIPPED = Path(__file__).resolve().parents[1] / "recipes"
"""The recipes that are installed with the package."""


def named_recipe(name: str) -> Path | None:
    """Return the file of a recipe by its name, such as `quickstart` or `evaluation/sdrl`."""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or not path.name:
        return None
    for folder in (HERE, SHIPPED):
        for candidate in (folder / path, folder / path.with_name(f"{path.name}.yaml")):
            if candidate.is_file():
                return candidate
    return None


def find_recipe(name: str | Path) -> Path:
    """Return the file of a recipe given by path or by name.

    Raises:
        RecipeError: There is none; names the nearest.
    """
    path = Path(name)
    if "\0" in str(name) or not is_utf8(str(name)):
        raise RecipeError(
            f"{str(name)[:200]!a}: found no name of a file; expected a recipe (.yaml)"
        )
    if path.is_file():
        return path
    named = named_recipe(str(name))
    if named is not None:
        return named
    if path.is_dir():
        raise RecipeError(f"{path}: found a directory; expected a recipe file (.yaml)")
    if os.path.lexists(path):
        raise RecipeError(f"{path}: found no file that can be read; expected a recipe file (.yaml)")
    is_path = len(path.parts) > 1 and path.parent.is_dir()
    names = {file.stem: str(file) for file in path.parent.glob("*.yaml")} if is_path else {}
    names = names or {one: one for one in recipe_names()}
    near = get_close_matches(path.stem, names, n=1)
    hint = f"; did you mean {names[near[0]]}?" if near else ""
    raise RecipeError(
        f"{path}: no such recipe; expected a YAML file or a name (debate-train recipes){hint}"
    )


def recipe_names() -> list[str]:
    """Return the names of all recipes, without `.yaml`."""
    files = [
        file.relative_to(folder).with_suffix("")
        for folder in (HERE, SHIPPED)
        for file in (*folder.glob("*.yaml"), *folder.glob("*/*.yaml"))
    ]
    return sorted({file.as_posix() for file in files}, key=lambda name: ("/" in name, name))


def headings() -> dict[str, str]:
    """Return what each recipe says in the first sentences of its opening comment, by name."""
    return {name: _heading(find_recipe(name)) for name in recipe_names()}


def is_utf8(text: str) -> bool:
    """Return whether a text can be written to a file."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def opening(path: Path) -> list[str]:
    """Return the lines of a recipe's opening comment, without their marks."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    said = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return [line[1:].removeprefix(" ").rstrip() for line in said]


def _heading(path: Path) -> str:
    """Return the first paragraph of the opening comment."""
    return " ".join(line.strip() for line in itertools.takewhile(bool, opening(path)))


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


_OPENING = re.compile(r"(\\*)\$\{")


def resolved_yaml(loaded: LoadedRecipe[Any]) -> str:
    """Return the recipe as one YAML file: nothing left to extend or override, no secrets.

    Defaults stand in it too, so that it still says what was run when defaults change.
    Interpolations are resolved, except that those of the environment stay as they are written.
    """
    reading, schema = loaded.reading, Schema((type(loaded.recipe),))
    full = _complete(loaded.recipe, reading)
    if reading.resolved.get(PHASES):
        base = {key: value for key, value in full.items() if key != PHASES}
        full[PHASES] = {
            name: _difference(base, _complete(phase, phase_reading(reading, name, schema)))
            for name, phase in loaded.phases.items()
        }
    return str(yaml.safe_dump(full, sort_keys=False, allow_unicode=True, width=100))


def _complete(recipe: BaseModel, reading: Reading) -> dict[str, object]:
    full = cast(dict[str, object], _as_text(recipe.model_dump(mode="json")))
    _keep_written(full, reading.resolved, reading.written)
    return full


def _difference(base: dict[str, object], whole: dict[str, object]) -> dict[str, object]:
    """Return what `merge` must be given to make `whole` of `base`."""
    if base.get("type") != whole.get("type"):
        return whole
    found: dict[str, object] = {}
    for key, value in whole.items():
        old = base.get(key)
        if key == PHASES or (key in base and old == value):
            continue
        if isinstance(value, dict) and isinstance(old, dict):
            value = _difference(old, value)
        found[key] = value
    return found


def _as_text(value: object) -> object:
    """Return values with `${` written so that it is read as text again."""
    if isinstance(value, dict):
        return {key: _as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_text(item) for item in value]
    if isinstance(value, str):
        return _OPENING.sub(lambda match: match[1] * 2 + "\\${", value)
    return value


def _keep_written(full: Any, data: Any, written: Any) -> None:
    """Put text that draws on the environment back in place of its value."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        inside = key in full if isinstance(full, dict) else key < len(full)
        if not inside:
            continue
        kind = type(value)
        if kind in (dict, list) and type(full[key]) is kind and type(written[key]) is kind:
            _keep_written(full[key], value, written[key])
        elif written[key] != value:
            full[key] = written[key]
