"""YAML text and `key=value` arguments as raw values with their lines.

OmegaConf reads YAML and interpolates.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import (
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)
from omegaconf.omegaconf import get_yaml_loader  # type: ignore[attr-defined]
from omegaconf.resolvers import oc

from debate_train.errors import RecipeError
from debate_train.recipe.problems import KeyPath, Origin, RawRecipe

# `key=value` arguments, or a mapping of differences.
Overrides = Sequence[str] | Mapping[str, Any]
COMMAND_LINE = "command line"
# Errors that YAML's constructors raise for odd scalars.
SCALAR_ERRORS = (ValueError, TypeError, KeyError, OverflowError, RecursionError)
NULLS = ("", "~", "null", "Null", "NULL")
MAX_SHOWN_CHARS = 200
# Marks an interpolation of the environment without a default.
NO_DEFAULT = object()


@dataclass(frozen=True, slots=True)
class Source:
    """The values of a file or command line, interpolations unresolved, and their origins."""

    data: dict[Any, Any]
    origins: dict[KeyPath, Origin]


def parse(text: str, name: str) -> Source:
    """Parse a text as a YAML mapping.

    Args:
        text: YAML.
        name: The file, for messages.

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
    except (yaml.YAMLError, *SCALAR_ERRORS) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f":{mark.line + 1}"
        problem = getattr(error, "problem", None) or _first_line(error)
        raise RecipeError(f"{name}{line}: not readable as YAML ({problem})") from error


def _first_line(error: Exception) -> str:
    first_line = str(error).strip().partition("\n")[0]
    return first_line[:MAX_SHOWN_CHARS] or type(error).__name__


def _origins(node: yaml.Node, name: str, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Origin]]:
    """Yield the origin of each value below a node: the line of the key, or of a list's item."""
    children: list[tuple[Any, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        children = [(key.value, value, key) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = [(index, value, value) for index, value in enumerate(node.value)]
    for key, value, line_node in children:
        is_plain = isinstance(value, yaml.ScalarNode) and value.style in (None, "")
        raw = value.value if is_plain else None
        yield (*path, key), Origin(name, line_node.start_mark.line + 1, raw)
        yield from _origins(value, name, (*path, key))


def read_yaml(path: Path) -> Source:
    """Read a file.

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
    """Read `key=value` arguments into a nested mapping of differences; later arguments win.

    Raises:
        RecipeError: An argument has another form.
    """
    if isinstance(arguments, Mapping):
        return Source(dict(arguments), {})
    data: dict[Any, Any] = {}
    origins: dict[KeyPath, Origin] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        path = tuple(key.strip().split("."))
        text = text.strip()
        if not equals or not all(path):
            raise RecipeError(f"{COMMAND_LINE}: found {argument!r}; expected key=value")
        value = _argument_value(argument, text)
        parent = data
        for part in path[:-1]:
            if not isinstance(parent.get(part), dict):
                parent[part] = {}
            parent = parent[part]
        parent[path[-1]] = value
        origins[path] = Origin(COMMAND_LINE, raw=text)
        if isinstance(value, dict | list):
            value_origins = parse(f"value: {text}", COMMAND_LINE).origins
            for value_path, origin in value_origins.items():
                origins.setdefault((*path, *value_path[1:]), Origin(COMMAND_LINE, raw=origin.raw))
    return Source(data, origins)


def _argument_value(argument: str, text: str) -> object:
    """Parse the value of an argument as YAML; as text where YAML would need quotes."""
    name = f"{COMMAND_LINE} {argument[:MAX_SHOWN_CHARS]!r}"
    is_quoted = text[:1] in ("'", '"')
    try:
        value = parse(f"value: {text}", name).data["value"]
    except (RecipeError, KeyError) as error:
        if is_quoted or text[:1] in "[{" or isinstance(error.__cause__, UnicodeError):
            raise
        return text
    if value is None and text not in NULLS:
        return text  # YAML took it for a comment.
    if isinstance(value, str) and not is_quoted:
        return text
    return value


def resolve(raw: dict[Any, Any]) -> RawRecipe:
    """Resolve the interpolations of merged raw values.

    Raises:
        RecipeError: An interpolation cannot be resolved.
    """
    environment: list[tuple[str, str]] = []
    kept: dict[KeyPath, object] = {}

    def read_variable(key: str, default: object = NO_DEFAULT) -> object:
        value = oc.env(key) if default is NO_DEFAULT else oc.env(key, default)
        environment.append((key, os.environ.get(key, "")))
        return value

    # Every variable that is read is recorded, whatever expression reads it.
    OmegaConf.register_resolver("oc.env", read_variable, replace=True)
    try:
        config = OmegaConf.create(raw, flags={"allow_objects": True})
        values = _plain_values(config, (), environment, kept)
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


def _plain_values(
    config: Any, path: KeyPath, environment: list[tuple[str, str]], kept: dict[KeyPath, object]
) -> Any:
    """Convert to plain values; record values from the environment in `kept`, as written."""
    if not isinstance(config, DictConfig | ListConfig):
        return config
    values: dict[Any, Any] = {}
    keys: Any = config if isinstance(config, DictConfig) else range(len(config))
    for key in keys:
        key_path = (*path, key)
        if not OmegaConf.is_interpolation(config, key):
            values[key] = _plain_values(config[key], key_path, environment, kept)
            continue
        num_variables = len(environment)
        value = config[key]  # Reading it resolves it, and calls `read_variable`.
        if OmegaConf.is_config(value):
            value = OmegaConf.to_container(value, resolve=True)
        values[key] = value
        if len(environment) > num_variables:
            raw: Any = OmegaConf.to_container(config, resolve=False)
            kept[key_path] = raw[key]
    return values if isinstance(config, DictConfig) else list(values.values())
