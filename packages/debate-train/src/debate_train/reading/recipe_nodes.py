"""YAML text as nodes of which a recipe can be made: no foreign tags, numbers that can be read."""

from collections.abc import Iterator
from typing import Any

import yaml
from yaml.constructor import SafeConstructor

from debate_train.errors import RecipeError

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
