"""YAML text and `key=value` arguments, with where each value stands and how it was typed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from debate_train.errors import RecipeError
from debate_train.reading.recipe_nodes import MOST_VALUES, composed

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


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
