"""Recipe text as values: YAML, `key=value` arguments and interpolations, each with its place."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from omegaconf.resolvers import oc
from yaml.constructor import SafeConstructor

from debate_train.interrupts import RecipeError

MOST_VALUES = 10_000
_MOST_BITS = 64
_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("map", "seq", "str", "int", "float", "bool", "null", "merge", "value")
)
_NUMBERS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("int", "float", "bool"))
_TIMESTAMP = "tag:yaml.org,2002:timestamp"


class _Loader(yaml.SafeLoader):
    """Reads a date as text, as OmegaConf does, unless a tag says that it is one."""

    count = 0
    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [one for one in resolvers if one[0] != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Return the next node; ends early where there are more than a recipe has."""
        self.count += 1
        if self.count > MOST_VALUES:
            raise _TooManyError
        return super().compose_node(parent, index)


class _TooManyError(Exception):
    """More values than a recipe has."""


def composed(text: str, name: str) -> yaml.Node | None:
    """Return the nodes of a text of which each scalar can be made a value.

    Raises:
        RecipeError: It is no mapping, is too large, or holds something that is no recipe's.
        YAMLError: It is not YAML.
    """
    loader = _Loader(text)
    try:
        node: yaml.Node | None = loader.get_single_node()
    except (ValueError, OverflowError) as error:  # A character that there is not.
        raise RecipeError(
            f"{name}:{loader.line + 1}: not readable as YAML ({_first_line(error)})"
        ) from error
    except _TooManyError as error:
        raise RecipeError(
            f"{name}: found more than {MOST_VALUES:,} values; expected a recipe: rows of data "
            "stand in files of their own"
        ) from error
    finally:
        loader.dispose()
    if node is not None and not (isinstance(node, yaml.MappingNode) and node.tag in _PLAIN_TAGS):
        raise RecipeError(f"{name}:1: found no `key: value` lines; expected a YAML mapping")
    constructor = SafeConstructor()
    for one in _nodes(node):
        where = f"{name}:{one.start_mark.line + 1}"
        if one.tag not in _PLAIN_TAGS:
            raise RecipeError(
                f"{where}: found the tag {one.tag!r}; expected text, numbers, lists and mappings"
            )
        if one.tag in _NUMBERS:
            try:
                found = constructor.construct_object(one)
                if isinstance(found, int) and found.bit_length() > _MOST_BITS:
                    raise ValueError(f"a number of {found.bit_length()} bits")
            except Exception as error:  # Constructors raise whatever their parsers do.
                raise RecipeError(
                    f"{where}: found {str(one.value)[:60]!r}, which cannot be read "
                    f"({_first_line(error)})"
                ) from error
    return node


def _nodes(node: yaml.Node | None) -> Iterator[yaml.Node]:
    """Yield each node once, however often an alias repeats it."""
    seen: set[int] = set()
    left = [] if node is None else [node]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, yaml.MappingNode):
            left += [part for pair in one.value for part in pair]
        elif isinstance(one, yaml.SequenceNode):
            left += one.value


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


KeyPath = tuple[str | int, ...]
COMMAND_LINE = "command line"
LARGEST_FILE = 256 << 10
LONGEST_ARGUMENT = 64 << 10
_NULLS = ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was given. `raw` is a plain scalar as typed, before YAML read it."""

    source: str
    line: int | None = None
    raw: str | None = None

    def __str__(self) -> str:
        """Return `file:line`, or the source alone."""
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass(frozen=True, slots=True)
class Source:
    """The values of one file or command line, interpolations unresolved, and their origins."""

    data: dict[Any, Any]
    origins: dict[KeyPath, Origin]


def read_yaml(path: Path, shown: str | None = None) -> Source:
    """Read one file; `shown` names it in messages.

    Raises:
        RecipeError: It cannot be read, is not YAML, or is not a mapping.
    """
    name = shown or str(path)
    text = _text(path, name)
    try:
        node = composed(text, name)
        data = _container(text)
        return Source(data, dict(_origins(node, name)))
    except yaml.YAMLError as error:
        raise RecipeError(_yaml_problem(name, error)) from error
    except OmegaConfBaseException as error:
        key = f" {error.full_key}:" if error.full_key else ""
        raise RecipeError(
            f"{name}:{key} {_first_line(error)}; expected an interpolation such as "
            "${oc.env:NAME} or ${other.key}"
        ) from error
    except RecursionError as error:
        raise RecipeError(f"{name}: nested too deeply, or an alias that holds itself") from error
    except TypeError as error:  # OmegaConf takes every key for one that can be hashed.
        raise RecipeError(f"{name}: found a list or mapping as a key; expected text") from error


def _text(path: Path, name: str) -> str:
    try:
        with path.open("rb") as file:
            found = file.read(LARGEST_FILE + 1)
        if len(found) > LARGEST_FILE:
            raise RecipeError(
                f"{name}: found more than {LARGEST_FILE >> 10} KiB; expected a YAML recipe"
            )
        return found.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(
            f"{name}: byte {error.start} is not UTF-8; expected a YAML recipe"
        ) from error
    except OSError as error:
        raise RecipeError(
            f"{name}: cannot be read ({error.strerror}); expected a YAML recipe"
        ) from error


def read_overrides(arguments: Sequence[str]) -> Source:
    """Read `key=value` arguments into one nested mapping of differences; later ones win.

    Raises:
        RecipeError: An argument is not of that form.
    """
    data: dict[Any, Any] = {}
    origins: dict[KeyPath, Origin] = {}
    for argument in arguments:
        _refuse_unreadable(argument)
        key, equals, text = argument.partition("=")
        path = tuple(key.strip().split("."))
        if not equals or not all(path):
            raise RecipeError(
                f"{COMMAND_LINE}: found {argument!r}; expected key=value with a dotted key, "
                "such as debate.num_agents=5"
            )
        place = data
        for part in path[:-1]:
            below = place.get(part)
            place[part] = below if isinstance(below, dict) else {}
            place = place[part]
        place[path[-1]] = _value(argument, text.strip())
        origins[path] = Origin(COMMAND_LINE, raw=text.strip())
        for below in _paths(place[path[-1]], path):
            origins.setdefault(below, Origin(COMMAND_LINE))
    return Source(data, origins)


def _refuse_unreadable(argument: str) -> None:
    try:
        argument.encode()
    except UnicodeEncodeError as error:
        raise RecipeError(
            f"{COMMAND_LINE}: found {argument[:200]!a}, which is not UTF-8; expected key=value"
        ) from error
    if len(argument) > LONGEST_ARGUMENT:
        raise RecipeError(
            f"{COMMAND_LINE}: found an argument of {len(argument):,} characters "
            f"({argument[:30]!r}...); expected at most {LONGEST_ARGUMENT:,}"
        )


def value_at(data: object, path: KeyPath) -> object:
    """Return the value at a path; KeyError where there is none."""
    for part in path:
        if not isinstance(data, dict | list):
            raise KeyError(part)
        try:
            data = data[part]  # type: ignore[index]
        except (IndexError, TypeError) as error:
            raise KeyError(part) from error
    return data


def _value(argument: str, text: str) -> object:
    name = f"{COMMAND_LINE} {argument[:200]!r}"
    try:
        composed(f"value: {text}", name)
        value = _container(f"value: {text}")["value"]
    except (yaml.YAMLError, RecipeError, RecursionError) as error:
        if text[:1] not in "[{\"'":
            return text
        if isinstance(error, RecipeError):
            raise
        raise RecipeError(_yaml_problem(name, error)) from error
    except OmegaConfBaseException as error:
        raise RecipeError(f"{name}: {_first_line(error)}") from error
    if value is None and text not in _NULLS:
        return text  # YAML took it for a comment
    if isinstance(value, str) and text[:1] not in "\"'":
        return text
    return value


def _container(text: str) -> dict[Any, Any]:
    loaded = OmegaConf.create(text)
    assert isinstance(loaded, DictConfig)
    container = OmegaConf.to_container(loaded, resolve=False)
    assert isinstance(container, dict)
    return dict(container)


def _paths(value: object, path: KeyPath) -> Iterator[KeyPath]:
    items = value.items() if isinstance(value, dict) else ()
    for key, below in items:
        yield (*path, key)
        yield from _paths(below, (*path, key))


def _origins(
    node: yaml.Node | None, name: str, path: KeyPath = ()
) -> Iterator[tuple[KeyPath, Origin]]:
    if isinstance(node, yaml.MappingNode):
        for key, below in node.value:
            line = key.start_mark.line + 1
            yield from _origin((*path, key.value), below, name, line)
    elif isinstance(node, yaml.SequenceNode):
        for index, below in enumerate(node.value):
            yield from _origin((*path, index), below, name, below.start_mark.line + 1)


def _origin(
    path: KeyPath, node: yaml.Node, name: str, line: int
) -> Iterator[tuple[KeyPath, Origin]]:
    plain = isinstance(node, yaml.ScalarNode) and node.style is None
    yield path, Origin(name, line, node.value if plain else None)
    yield from _origins(node, name, path)


def _yaml_problem(name: str, error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    line = f":{mark.line + 1}" if mark is not None and not name.startswith(COMMAND_LINE) else ""
    problem = getattr(error, "problem", None) or _first_line(error)
    if problem.startswith(("YAML node expansion", "YAML aliases expand")):
        problem = f"its aliases stand for too many values; expected at most {MOST_VALUES:,}"
    return f"{name}{line}: not readable as YAML ({problem})"


_ABSENT = object()
SHORTEST_SECRET = 4
"""Shorter environment values are not searched for in messages: they match by accident."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The two readings of a recipe's raw values.

    Attributes:
        resolved: Every interpolation replaced by its value; what a run uses.
        written: The same, but text that draws on the environment stays as it is written;
            what goes to files and messages.
        environment: The variables that were read, as (name, value).
    """

    resolved: dict[Any, Any]
    written: dict[Any, Any]
    environment: tuple[tuple[str, str], ...] = ()

    def redact(self, text: str) -> str:
        """Return the text with environment values replaced by the interpolation."""
        for name, value in sorted(self.environment, key=lambda item: -len(item[1])):
            if len(value) >= SHORTEST_SECRET:
                text = text.replace(value, f"${{oc.env:{name}}}")
        return text


def resolve(raw: dict[Any, Any]) -> Reading:
    """Resolve the interpolations of merged raw values.

    Raises:
        RecipeError: One cannot be resolved.
    """
    resolver = _Resolver()
    with resolver.watched_environment():
        resolved, written = resolver.mapping(OmegaConf.create(raw))
    return Reading(resolved, written, tuple(set(resolver.environment)))


class _Resolver:
    def __init__(self) -> None:
        self.environment: list[tuple[str, str]] = []

    @contextmanager
    def watched_environment(self) -> Iterator[None]:
        """Note every environment variable that is read, whatever expression reads it."""

        def env(key: str, default: object = _ABSENT) -> object:
            value = oc.env(key) if default is _ABSENT else oc.env(key, default)
            self.environment.append((key, os.environ.get(key, "")))
            return value

        OmegaConf.register_resolver("oc.env", env, replace=True)
        try:
            yield
        finally:
            OmegaConf.register_resolver("oc.env", oc.env, replace=True)

    def mapping(self, config: DictConfig) -> tuple[dict[Any, Any], dict[Any, Any]]:
        pairs = {key: self._item(config, key) for key in config}
        return {k: pair[0] for k, pair in pairs.items()}, {k: pair[1] for k, pair in pairs.items()}

    def _sequence(self, config: ListConfig) -> tuple[list[object], list[object]]:
        pairs = [self._item(config, index) for index in range(len(config))]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def _item(self, parent: DictConfig | ListConfig, key: Any) -> tuple[object, object]:
        if not OmegaConf.is_interpolation(parent, key):
            value = _plain(parent, key)
            if isinstance(value, DictConfig):
                return self.mapping(value)
            return self._sequence(value) if isinstance(value, ListConfig) else (value, value)
        before = len(self.environment)
        value = _plain(parent, key)
        if len(self.environment) == before:
            return value, value
        raw = OmegaConf.to_container(parent, resolve=False)
        return value, raw[key]  # type: ignore[index]


def _plain(parent: DictConfig | ListConfig, key: Any) -> Any:
    try:
        value = parent[key]
        if OmegaConf.is_interpolation(parent, key) and OmegaConf.is_config(value):
            return OmegaConf.to_container(value, resolve=True)
        return value
    except MissingMandatoryValue as error:
        raise RecipeError(f"{error.full_key}: found ??? (left open); expected a value") from error
    except OmegaConfBaseException as error:
        place = error.full_key or str(key)
        reason = str(error).strip().splitlines()[0]
        if isinstance(error, InterpolationResolutionError) and "Environment variable" in reason:
            reason = reason[reason.index("Environment variable") :].rstrip('"')
        raise RecipeError(
            f"{place}: {reason}; expected ${{oc.env:NAME}} of a variable that is set, "
            "${oc.env:NAME,default}, or ${other.key} of this recipe"
        ) from error
    except RecursionError as error:
        raise RecipeError(f"{key}: this interpolation leads back to itself") from error
