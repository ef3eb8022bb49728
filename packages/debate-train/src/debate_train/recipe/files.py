"""From a YAML file and `key=value` arguments to a checked recipe.

OmegaConf reads YAML and interpolates; the merge rule is ours (`problems.merge`); pydantic decides
what is valid. `extends: other.yaml` makes a file a mapping of differences.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import (
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)
from omegaconf.omegaconf import get_yaml_loader  # type: ignore[attr-defined]
from omegaconf.resolvers import oc
from pydantic import BaseModel, ValidationError

from debate_protocol.plugins import did_you_mean
from debate_train.errors import RecipeError
from debate_train.recipe.merging import merge_recipes
from debate_train.recipe.problems import (
    PHASES,
    WHOLE_PHASES,
    KeyPath,
    Origin,
    Problems,
    RawRecipe,
    Schema,
    holds,
    value_at,
)
from debate_train.recipe_names import named_recipe, recipe_names

Overrides = Sequence[str] | Mapping[str, Any]
"""`key=value` arguments, or a mapping of differences."""
COMMAND_LINE = "command line"
_ODD_VALUES = (ValueError, TypeError, KeyError, OverflowError, RecursionError)
_NULLS = ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True, slots=True)
class Source:
    """The values of one file or command line, interpolations unresolved, and their origins."""

    data: dict[Any, Any]
    origins: dict[KeyPath, Origin]


def parse(text: str, name: str) -> Source:
    """Return the values of a text; `name` is said in messages.

    Raises:
        RecipeError: It is not YAML, or is not a mapping.
    """
    try:
        loader = get_yaml_loader()(text)
        node = loader.get_single_node()
        if node is None:
            return Source({}, {})
        if node.tag != "tag:yaml.org,2002:map":
            raise RecipeError(f"{name}:1: found no `key: value` lines; expected a YAML mapping")
        return Source(loader.construct_document(node), dict(_origins(node, name)))
    except (yaml.YAMLError, *_ODD_VALUES) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or _first_line(error)
        raise RecipeError(f"{name}{line}: not readable as YAML ({problem})") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


def _origins(node: yaml.Node, name: str, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Origin]]:
    children: list[tuple[Any, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        children = [(key.value, below, key) for key, below in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = [(index, below, below) for index, below in enumerate(node.value)]
    for key, below, marked in children:
        is_plain = isinstance(below, yaml.ScalarNode) and below.style in (None, "")
        raw = below.value if is_plain else None
        yield (*path, key), Origin(name, marked.start_mark.line + 1, raw)
        yield from _origins(below, name, (*path, key))


def read_yaml(path: Path) -> Source:
    """Read one file.

    Raises:
        RecipeError: It cannot be read, is not YAML, or is not a mapping.
    """
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: byte {error.start} is not UTF-8; expected YAML") from error
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror})") from error


def read_overrides(arguments: Overrides) -> Source:
    """Read `key=value` arguments into one nested mapping of differences; later ones win.

    Raises:
        RecipeError: An argument is not of that form.
    """
    data: dict[Any, Any] = {}
    origins: dict[KeyPath, Origin] = {}
    if isinstance(arguments, Mapping):
        return Source(dict(arguments), origins)
    for argument in arguments:
        key, equals, text = argument.partition("=")
        path = tuple(key.strip().split("."))
        if not equals or not all(path):
            raise RecipeError(f"{COMMAND_LINE}: found {argument!r}; expected key=value")
        place = data
        for part in path[:-1]:
            below = place.get(part)
            place[part] = below if isinstance(below, dict) else {}
            place = place[part]
        place[path[-1]] = value = _value(argument, text.strip())
        origins[path] = Origin(COMMAND_LINE, raw=text.strip())
        if isinstance(value, dict | list):
            inner = parse(f"value: {text.strip()}", COMMAND_LINE).origins
            for below, origin in inner.items():
                origins.setdefault((*path, *below[1:]), Origin(COMMAND_LINE, raw=origin.raw))
    return Source(data, origins)


def _value(argument: str, text: str) -> object:
    try:
        value = parse(f"value: {text}", f"{COMMAND_LINE} {argument[:200]!r}").data["value"]
    except (RecipeError, KeyError) as error:
        if text[:1] in "[{\"'" or isinstance(error.__cause__, UnicodeError):
            raise
        return text
    if value is None and text not in _NULLS:
        return text  # YAML took it for a comment
    if isinstance(value, str) and text[:1] not in "\"'":
        return text
    return value


_ABSENT = object()


def resolve(raw: dict[Any, Any]) -> RawRecipe:
    """Resolve the interpolations of merged raw values.

    Raises:
        RecipeError: One cannot be resolved.
    """
    environment: list[tuple[str, str]] = []
    kept: dict[KeyPath, object] = {}

    def env(key: str, default: object = _ABSENT) -> object:
        value = oc.env(key) if default is _ABSENT else oc.env(key, default)
        environment.append((key, os.environ.get(key, "")))
        return value

    # Every variable that is read is noted, whatever expression reads it.
    OmegaConf.register_resolver("oc.env", env, replace=True)
    try:
        given = OmegaConf.create(raw, flags={"allow_objects": True})
        values = _resolved(given, (), environment, kept)
    except MissingMandatoryValue as error:
        raise RecipeError(f"{error.full_key}: found ??? (left open); expected a value") from error
    except OmegaConfBaseException as error:
        reason = _first_line(error)
        if isinstance(error, InterpolationResolutionError) and "Environment variable" in reason:
            reason = reason[reason.index("Environment variable") :].rstrip('"')
        raise RecipeError(
            f"{error.full_key or 'recipe'}: {reason}; expected an interpolation such as "
            "${oc.env:NAME}, ${oc.env:NAME,default}, or ${other.key} of this recipe"
        ) from error
    except RecursionError as error:
        raise RecipeError("recipe: an interpolation leads back to itself") from error
    finally:
        OmegaConf.register_resolver("oc.env", oc.env, replace=True)
    return RawRecipe(values, kept, tuple(set(environment)))


def _resolved(
    held: Any, path: KeyPath, environment: list[tuple[str, str]], kept: dict[KeyPath, object]
) -> Any:
    """Return plain values; notes as they are written those for which the environment was read."""
    if not isinstance(held, DictConfig | ListConfig):
        return held
    values: dict[Any, Any] = {}
    keys: Any = held if isinstance(held, DictConfig) else range(len(held))
    for key in keys:
        read, here = len(environment), (*path, key)
        if not OmegaConf.is_interpolation(held, key):
            values[key] = _resolved(held[key], here, environment, kept)
            continue
        value = held[key]
        is_inner = OmegaConf.is_config(value)
        values[key] = OmegaConf.to_container(value, resolve=True) if is_inner else value
        if len(environment) > read:
            raw: Any = OmegaConf.to_container(held, resolve=False)
            kept[here] = raw[key]
    return values if isinstance(held, DictConfig) else list(values.values())


def find_recipe(name: str | Path) -> Path:
    """Return the file of a recipe given by path or by name.

    Raises:
        RecipeError: There is none; names the nearest.
    """
    path = Path(name)
    found = path if path.is_file() else named_recipe(str(name))
    if found is not None:
        return found
    if os.path.lexists(path):
        raise RecipeError(f"{path}: found no file that can be read; expected a recipe file (.yaml)")
    # Recipes that were at the first level before.
    moved = named_recipe(f"papers/{path.name}") if path.name else None
    if moved is not None:
        raise RecipeError(f"{path}: is in recipes/papers now; expected papers/{moved.stem}")
    known = [*recipe_names(), *map(str, path.parent.glob("*.yaml"))]
    raise RecipeError(
        f"{path}: no such recipe; expected a YAML file or a name (debate-train recipes)"
        f"{did_you_mean(str(path), known)}"
    )


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
    reading: RawRecipe
    notes: tuple[str, ...]
    phases: Mapping[str, M]


def load_recipe(
    path: str | Path | Mapping[str, Any],
    overrides: Overrides = (),
    *,
    model: type[M],
) -> LoadedRecipe[M]:
    """Read, extend, override, resolve and validate a recipe.

    Args:
        path: A file, the name of a recipe as `debate-train recipes` lists them, or what a file
            holds; variants may be Python objects there.
        overrides: `key=value` arguments, values are YAML, text fields take them as typed; or a
            mapping of differences.
        model: The recipe's pydantic model.

    Raises:
        RecipeError: Where · what was found · what was expected · the nearest valid name.
    """
    schema = Schema((model,))
    dropped: list[str] = []
    if isinstance(path, Mapping):
        source, path = Source(dict(path), {}), Path("recipe")
    else:
        path = find_recipe(path)
        source = read_yaml(path)
    source = _extended(source, path, schema, ())
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
        if getattr(recipe, PHASES) != reading.values.get(PHASES, {}):  # A text was put right.
            recipe = _validated(model, reading, source.origins, str(path))
        vars(recipe)[WHOLE_PHASES] = whole  # What it would make of its differences again.
    return LoadedRecipe(recipe, path, reading, tuple(dropped), whole)


def phase_reading(reading: RawRecipe, name: str, schema: Schema) -> RawRecipe:
    """Return what was said of one phase: the recipe's values with the phase's differences."""
    difference = reading.values[PHASES][name]
    base = {key: value for key, value in reading.values.items() if key != PHASES}
    values = merge_recipes(base, difference, schema)
    kept = {
        path: text
        for path, text in reading.kept.items()
        if holds(values, path) and not holds(difference, path)
    }
    own = {path[2:]: text for path, text in reading.kept.items() if path[:2] == (PHASES, name)}
    return RawRecipe(values, kept | own, reading.environment)


def _extended(child: Source, path: Path, schema: Schema, chain: tuple[Path, ...]) -> Source:
    """Return the values of a file on top of what it extends."""
    real = path.resolve()
    if real in chain:
        ring = " -> ".join(file.name for file in (*chain[chain.index(real) :], real))
        raise RecipeError(f"{path}: extends leads back to itself ({ring}); break the ring")
    parent_name = child.data.pop(EXTENDS, None)
    if parent_name is None:
        return child
    where = child.origins.get((EXTENDS,), path)
    if not isinstance(parent_name, str) or "${" in parent_name:
        raise RecipeError(f"{where}: extends: found {parent_name!r}; expected one file")
    parent_path = path.parent / parent_name
    if not parent_path.is_file():
        parent_path = named_recipe(parent_name) or parent_path
    if not parent_path.is_file():
        names = [file.name for file in parent_path.parent.glob("*.yaml")]
        hint = did_you_mean(parent_path.name, names)
        raise RecipeError(f"{where}: extends: no file {parent_path}{hint}")
    parent = _extended(read_yaml(parent_path), parent_path, schema, (*chain, real))
    return _merged(parent, child, schema, [])


def _merged(base: Source, change: Source, schema: Schema, dropped: list[str]) -> Source:
    data = merge_recipes(base.data, change.data, schema, dropped=dropped)
    return Source(data, {**base.origins, **change.origins})


def _validated(
    model: type[M],
    reading: RawRecipe,
    origins: dict[KeyPath, Origin],
    place: str,
) -> M:
    """Validate; text fields get what was typed where YAML had read `no` or `1.10` as no text."""
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


def _whole_phases(
    model: type[M], reading: RawRecipe, origins: dict[KeyPath, Origin], file: Path
) -> dict[str, M]:
    """Validate each phase with the lines of its own differences; keeps text as typed in them."""
    schema, whole = Schema((model,)), dict[str, M]()
    for name, difference in reading.values.get(PHASES, {}).items():
        here = (PHASES, name)
        if PHASES in difference:
            where = origins.get((*here, PHASES), file)
            raise RecipeError(f"{where}: phases.{name}.phases: phases do not nest")
        merged = phase_reading(reading, name, schema)
        own = {path[2:]: origin for path, origin in origins.items() if path[:2] == here}
        try:
            whole[name] = _validated(model, merged, {**origins, **own}, str(file))
        except RecipeError as error:
            raise RecipeError(f"phase {name}: {error}") from error
        for path in own:
            _copy(merged.values, difference, path)
    return whole


def _copy(source: object, target: object, path: KeyPath) -> None:
    """Take over one scalar that validation has put right."""
    both = holds(target, path) and holds(source, path)
    if both and not isinstance(value_at(target, path), dict | list):
        _set(target, path, value_at(source, path))


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
    if reading.values.get(PHASES):
        base = {key: value for key, value in full.items() if key != PHASES}
        full[PHASES] = {
            name: _difference(base, _complete(phase, phase_reading(reading, name, schema)))
            for name, phase in loaded.phases.items()
        }
    return str(yaml.safe_dump(full, sort_keys=False, allow_unicode=True, width=100))


def _complete(recipe: BaseModel, reading: RawRecipe) -> dict[str, object]:
    full = cast(dict[str, object], _as_text(recipe.model_dump(mode="json", fallback=repr)))
    reading.put_back(full)
    return full


def _difference(base: dict[str, object], whole: dict[str, object]) -> dict[str, object]:
    """Return what `merge` must be given to make `whole` of `base`."""
    if base.get("type") != whole.get("type"):
        return whole
    found: dict[str, object] = {}
    if _reward_type(base) != _reward_type(whole):
        base = _without_streams(base)  # They go with the type of the reward, so all are said.
    for key, value in whole.items():
        old = base.get(key)
        if key == PHASES or (key in base and old == value):
            continue
        if isinstance(value, dict) and isinstance(old, dict):
            value = _difference(old, value)
        found[key] = value
    return found


def _reward_type(values: Mapping[str, object]) -> object:
    reward = values.get("reward")
    return reward.get("type") if isinstance(reward, Mapping) else None


def _without_streams(values: dict[str, object]) -> dict[str, object]:
    advantage = values.get("advantage")
    if not isinstance(advantage, Mapping):
        return values
    others = {key: value for key, value in advantage.items() if key != "streams"}
    return {**values, "advantage": others}


def _as_text(value: object) -> object:
    """Return values with `${` written so that it is read as text again."""
    if isinstance(value, dict):
        return {key: _as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_text(item) for item in value]
    if isinstance(value, str):
        return _OPENING.sub(lambda match: match[1] * 2 + "\\${", value)
    return value
