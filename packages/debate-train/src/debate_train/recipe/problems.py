"""Messages about an invalid recipe, with file, line, key and the nearest name."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from debate_protocol.plugins import OF_PYTHON, did_you_mean
from debate_train.errors import RecipeError
from debate_train.recipe.schema import PHASES, Schema, unknown_key

KeyPath = tuple[str | int, ...]

# Shorter environment values are not searched for in messages: they match by accident.
MIN_SECRET_CHARS = 4
MAX_PROBLEMS = 7
MAX_SHOWN_CHARS = 60
MAPPING_ERRORS = ("model_type", "model_attributes_type", "dict_type")
TEXT_ERRORS = ("string_type", "literal_error", "enum", "path_type")
# Octal numbers and numbers to the base 60 of YAML 1.1, which look like decimal ones or times.
OLD_NUMBER = re.compile(r"[-+]?(0[0-9_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")
# Text of pydantic's messages around the expected value.
AROUND_EXPECTED = re.compile(
    r"^(?:Input|String) should (be )?|^(?:Tuple|List|Dictionary) should have | after validation"
    r"|, (unable|got) .*|, not \d+$| or instance of .*|'"
)
OUR_WORDS = {
    "dictionary": "mapping",
    "tuple": "list",
    "None": "null",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "match pattern": "text that matches",
}


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a value. `raw` is a plain scalar as typed, before YAML read it."""

    source: str
    line: int | None = None
    raw: str | None = None

    def __str__(self) -> str:
        """Write `file:line`, or only the source."""
        return self.source if self.line is None else f"{self.source}:{self.line}"


def value_at(data: object, path: KeyPath) -> object:
    """Look up the value at a path.

    Raises:
        KeyError: The path has no value.
    """
    for part in path:
        if not isinstance(data, dict | list):
            raise KeyError(part)
        try:
            data = data[part]  # type: ignore[index]
        except (IndexError, TypeError) as error:
            raise KeyError(part) from error
    return data


def holds(data: object, path: KeyPath) -> bool:
    """Whether there is a value at a path."""
    try:
        value_at(data, path)
    except KeyError:
        return False
    return True


def _value_or_none(data: object, path: KeyPath) -> object:
    return value_at(data, path) if holds(data, path) else None


@dataclass(frozen=True, slots=True)
class RawRecipe:
    """A recipe's raw values.

    Attributes:
        values: The run's values, with every interpolation replaced.
        kept: Values from the environment, as written in files and messages.
        environment: The variables read, as (name, value).
    """

    values: dict[Any, Any]
    kept: dict[KeyPath, object]
    environment: tuple[tuple[str, str], ...] = ()

    def shown(self, path: KeyPath) -> object:
        """Look up a value as shown in messages; `None` if absent."""
        return self.kept[path] if path in self.kept else _value_or_none(self.values, path)

    def put_back(self, data: object) -> None:
        """Replace values from the environment by the interpolations as written."""
        for path, text in self.kept.items():
            if holds(data, path):
                parent = cast(dict[str | int, object], value_at(data, path[:-1]))
                parent[path[-1]] = text

    def redact(self, text: str) -> str:
        """Replace environment values in a text by their interpolations, the longest first."""
        # A value may be a part of another: the longest first leaves no rest of the longer one.
        longest_first = sorted(self.environment, key=lambda item: -len(item[1]))
        for name, value in longest_first:
            if len(value) >= MIN_SECRET_CHARS:
                text = text.replace(value, f"${{oc.env:{name}}}")
        return text


@dataclass(frozen=True, slots=True)
class Problems:
    """Turns the errors of a validation into a message with file, line and nearest name."""

    schema: Schema
    reading: RawRecipe
    origins: Mapping[KeyPath, Origin]
    place: str
    _tags: dict[KeyPath, str] = field(default_factory=dict)

    def describe(self, error: ValidationError) -> str:
        """Write a line for each place in error, at most `MAX_PROBLEMS` of them."""
        # Pydantic reports a value once for each branch of its union; a reader wants one line.
        details_by_path: dict[KeyPath, list[ErrorDetails]] = {}
        for detail in error.errors(include_url=False):
            details_by_path.setdefault(self._path(detail), []).append(detail)
        lines = []
        for path, details in details_by_path.items():
            # A list that lacks its wrong items is too short; each of these has a line of its own.
            is_short = details[0]["type"] == "too_short"
            if not (is_short and _has_path_below(path, details_by_path)):
                lines.append(self._line(path, details))
        if len(lines) > MAX_PROBLEMS:
            lines[MAX_PROBLEMS:] = [f"... and {len(lines) - MAX_PROBLEMS} more"]
        return self.reading.redact("\n".join(lines))

    def typed_text(self, error: ValidationError) -> dict[KeyPath, str]:
        """List the typed text of text fields read otherwise by YAML.

        `key=no` reads as false and `key=1.10` as 1.1.
        """
        typed: dict[KeyPath, str] = {}
        for detail in error.errors(include_url=False):
            path = self._path(detail)
            origin = self.origins.get(path)
            if detail["type"] not in TEXT_ERRORS or origin is None or origin.raw is None:
                continue
            # One of several allowed texts: only a text among them can have been meant.
            if detail["type"] == "literal_error" and repr(origin.raw) not in detail["msg"]:
                continue
            value = _value_or_none(self.reading.values, path)
            if isinstance(value, bool | int | float):
                is_interpolation = "${" in origin.raw
                typed[path] = str(value) if is_interpolation else origin.raw
        return typed

    def refuse_misread_numbers(self, recipe: BaseModel) -> None:
        """Refuse numbers read as another number than written.

        Pydantic reads `yes` as 1, YAML 1.1 `010` as 8 and `1:30` as 90. Phases have a validation
        of their own.

        Raises:
            RecipeError: There is such a number.
        """
        validated = recipe.model_dump(exclude={PHASES})
        for path in _numbers_read_from_booleans(self.reading.values, validated):
            raise RecipeError(self._locate(path, f"found {self._found(path)}; expected a number"))
        for path, origin in self.origins.items():
            number = _value_or_none(self.reading.values, path)
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            is_old = OLD_NUMBER.fullmatch(origin.raw or "") is not None
            if is_number and is_old and path[:1] != (PHASES,):
                problem = (
                    f"found {origin.raw}, which YAML reads as {number}; expected a decimal number"
                )
                raise RecipeError(self._locate(path, problem))

    def _path(self, detail: ErrorDetails) -> KeyPath:
        """Find the path of an error in the data: the location without union branches."""
        path: KeyPath = ()
        value: object = self.reading.values
        # The last key of a missing value is not in the data.
        location = detail["loc"]
        missing_key: KeyPath = ()
        if detail["type"] == "missing":
            missing_key = location[-1:]
            location = location[:-1]
        for key in location:
            try:
                value = value_at(value, (key,))
            except KeyError:
                schema, data = self._schema_at(path)
                is_union_branch = key in schema.variants or key not in (schema.keys(data) or ())
                if is_union_branch:
                    self._tags[path] = str(key)
                    continue
                value = {}  # A part that was left out and has keys without defaults.
            path = (*path, key)
        return path + missing_key

    def _line(self, path: KeyPath, details: list[ErrorDetails]) -> str:
        """Write the line about a path; the first error decides the kind."""
        detail = details[0]
        kind = detail["type"]
        if kind == "extra_forbidden":
            parent_schema, data = self._schema_at(path[:-1])
            return self._locate(path, unknown_key(str(path[-1]), parent_schema, data, self.schema))
        schema, _ = self._schema_at(path)
        tags = list(schema.variants)
        if kind.startswith("union_tag"):
            return self._line_of_type((*path, "type"), tags)
        if kind == "missing":
            return self._locate(path, f"missing; expected a value for {path[-1]}")
        if kind in ("value_error", "assertion_error"):
            return self._locate(path, str(detail["ctx"]["error"]))
        value = self.reading.shown(path)
        if isinstance(value, str) and kind in MAPPING_ERRORS and tags:
            return self._locate(path, _type_alone(path, value, tags))

        # Branches of a union may expect the same: a dict has each text once, in order.
        expected_texts = dict.fromkeys(map(_expected, details))
        allowed_names: list[str] = []
        for other in details:
            if other["type"] == "literal_error":
                allowed_names += _expected(other).replace(" or ", ", ").split(", ")
        hint = did_you_mean(value, allowed_names)
        expected = " or ".join(expected_texts)
        return self._locate(path, f"found {self._found(path)}; expected {expected}{hint}")

    def _line_of_type(self, path: KeyPath, tags: list[str]) -> str:
        """Write the line about an unknown or missing `type`."""
        tag = self.reading.shown(path)
        problem = "missing" if tag is None else f"found {tag!r}"
        expected = f"one of {', '.join(tags)}{did_you_mean(tag, tags)}"
        # `module:Class` names a class handed in from Python. No file may: it would run as code.
        if ":" in str(tag):
            expected = OF_PYTHON
        return self._locate(path, f"{problem}; expected {expected}")

    def _locate(self, path: KeyPath, text: str) -> str:
        """Put before a text the key, and the origin of the key or of the nearest parent."""
        where = self.place
        # A missing key has no line of its own; its parent's is the nearest.
        for end in range(len(path), 0, -1):
            if path[:end] in self.origins:
                where = str(self.origins[path[:end]])
                break
        key = ".".join(map(str, path))
        return f"{where}: {key}: {text}" if key else f"{where}: {text}"

    def _schema_at(self, path: KeyPath) -> tuple[Schema, Mapping[str, object]]:
        """Find the schema and the data at a path."""
        schema = self.schema
        data: Mapping[str, object] = self.reading.values
        for end, key in enumerate(path, start=1):
            value = data.get(cast(str, key))
            schema = schema.child(key, data)
            data = value if isinstance(value, dict) else {}
            # Data without a `type` has the one of the branch that pydantic chose.
            tag = self._tags.get(path[:end])
            if tag in schema.variants:
                data = {"type": tag, **data}
        return schema, data

    def _found(self, path: KeyPath) -> str:
        """Write a value as typed in a short form, never a value of the environment."""
        value = self.reading.shown(path)
        origin = self.origins.get(path)
        raw = None if origin is None else origin.raw
        if isinstance(value, dict):
            return "a mapping of keys"
        if isinstance(value, list):
            return "a list"
        if raw is not None and "${" not in raw:
            # Quotes distinguish a text from a number: found '4' and found 4 are different mistakes.
            return repr(raw) if isinstance(value, str) else raw or "nothing"
        text = "nothing" if value is None else repr(value)
        if len(text) > MAX_SHOWN_CHARS:
            text = text[: MAX_SHOWN_CHARS - 3] + "..."
        return text


def _has_path_below(path: KeyPath, paths: Iterable[KeyPath]) -> bool:
    return any(len(other) > len(path) and other[: len(path)] == path for other in paths)


def _type_alone(path: KeyPath, value: str, tags: list[str]) -> str:
    """Describe a variant's name in the place of a mapping with this `type`."""
    type_key = ".".join(map(str, (*path, "type")))
    if value in tags:
        return f"found {value!r}; expected {type_key}={value}"
    hint = did_you_mean(value, tags)
    return f"found {value!r}; expected {type_key}, one of {', '.join(tags)}{hint}"


def _expected(detail: ErrorDetails) -> str:
    """Extract the expected value from a message of pydantic, in our words."""
    text = AROUND_EXPECTED.sub("", detail["msg"])
    for their_word, our_word in OUR_WORDS.items():
        text = text.replace(their_word, our_word)
    # The text goes on after "expected", in the middle of a sentence.
    is_acronym = text[:2].isupper()
    return text if is_acronym else text[:1].lower() + text[1:]


def _numbers_read_from_booleans(
    raw: object, validated: object, path: KeyPath = ()
) -> Iterator[KeyPath]:
    """Yield the paths of true or false read as a number."""
    match raw, validated:
        case bool(), int() | float() if not isinstance(validated, bool):
            yield path
        case dict(), dict():
            for key in raw.keys() & validated.keys():
                yield from _numbers_read_from_booleans(raw[key], validated[key], (*path, key))
        case list(), list() | tuple():
            for index, (raw_item, item) in enumerate(zip(raw, validated, strict=False)):
                yield from _numbers_read_from_booleans(raw_item, item, (*path, index))
