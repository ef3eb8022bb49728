"""What is wrong with a recipe, said to the person who wrote it; and how recipes merge."""

import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from debate_protocol.plugins import OF_PYTHON, Handed, did_you_mean, tag_of, variants_of
from debate_train.errors import RecipeError

KeyPath = tuple[str | int, ...]

PHASES = "phases"
"""Values below this key are differences of the whole recipe."""
WHOLE_PHASES = "whole_phases"
"""Where a recipe keeps its phases as whole recipes."""


@dataclass(frozen=True, slots=True)
class Schema:
    """One place of a recipe: the models that may stand there, or what a mapping or list holds.

    The first model of a union is the variant that holds when no `type` is given.
    """

    models: tuple[type[BaseModel], ...] = ()
    values: "Schema | None" = None

    @property
    def variants(self) -> dict[str, type[BaseModel]]:
        """The models by their `type`."""
        return {tag: model for model in self.models if (tag := tag_of(model))}

    def model(self, data: Mapping[str, object]) -> type[BaseModel] | None:
        """Return the model that this mapping would become; None when its type is unknown."""
        if len(self.models) == 1:
            return self.models[0]
        tag = self.tag(data)
        return self.variants.get(tag) if tag is not None else None

    def tag(self, data: Mapping[str, object]) -> str | None:
        """Return the `type` of this mapping, given or by default."""
        tag = data.get("type") or next(iter(self.variants), None)
        return tag if isinstance(tag, str) else None

    def keys(self, data: Mapping[str, object]) -> tuple[str, ...] | None:
        """Return the keys that this mapping may have; None when any or unknown."""
        model = self.model(data)
        return tuple(model.model_fields) if model is not None else None

    def child(self, key: object, data: Mapping[str, object]) -> "Schema":
        """Return the place below `key` of this mapping."""
        model = self.model(data)
        if model is None:
            return self.values or NOWHERE
        if key == PHASES and PHASES in model.model_fields:
            return Schema(values=self)
        field = model.model_fields.get(cast(str, key))
        return schema_of(annotation_of(field)) if field is not None else NOWHERE


NOWHERE = Schema()


def annotation_of(field: FieldInfo) -> object:
    """Return a field's annotation with what it is marked with."""
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def schema_of(annotation: object) -> Schema:
    """Return the place that an annotation describes."""
    models: list[type[BaseModel]] = []
    values: Schema | None = None
    for option in _options(annotation):
        origin = get_origin(option)
        if isinstance(option, type) and issubclass(option, BaseModel):
            models.append(option)
        elif isinstance(origin, type) and issubclass(origin, Mapping):
            values = schema_of(get_args(option)[1])
        elif origin in (list, tuple):
            items = schema_of(get_args(option)[0])
            values = values if items == NOWHERE else items
    return Schema(tuple(models), values)


def can_hold(annotation: object, value: object) -> bool:
    """Return False when a field of this annotation surely refuses the raw value."""
    options = _options(annotation)
    if isinstance(value, str) and "${" in value:
        return True
    if isinstance(value, Mapping):
        return Any in options or schema_of(annotation) != NOWHERE
    allowed: list[object] = []
    for option in options:
        if option is type(None):
            allowed.append(None)
        elif get_origin(option) is Literal:
            allowed += get_args(option)
        else:
            return True
    return value in allowed


def find_key(schema: Schema, name: str, depth: int = 4) -> list[str]:
    """List the dotted paths of keys with this name, nearest first; else of keys it shortens.

    `lr` shortens `learning_rate`, and `agents` shortens `num_agents`.
    """
    exact_paths: list[str] = []
    longer_paths: list[str] = []
    level = [("", schema)]
    for _ in range(depth):
        next_level: list[tuple[str, Schema]] = []
        for prefix, place in level:
            for model in place.models:
                for key, info in model.model_fields.items():
                    if key == name:
                        exact_paths.append(prefix + key)
                        continue
                    if _shortens(name, key):
                        longer_paths.append(prefix + key)
                    # Phases hold the same keys again.
                    if key != PHASES:
                        next_level.append((f"{prefix}{key}.", schema_of(annotation_of(info))))
        level = next_level
    return list(dict.fromkeys(exact_paths or longer_paths))


def _shortens(name: str, key: str) -> bool:
    words = key.split("_")
    initials = "".join(word[:1] for word in words)
    return len(words) > 1 and (name == initials or name in words)


def _options(annotation: object) -> list[object]:
    origin = get_origin(annotation)
    if variants := variants_of(annotation):
        return list(variants)
    if origin is Annotated:
        return _options(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [option for part in get_args(annotation) for option in _options(part)]
    return [annotation]


def merge(
    base: Mapping[str, object],
    change: Mapping[str, object],
    schema: Schema,
    *,
    path: str = "",
    dropped: list[str] | None = None,
) -> dict[str, object]:
    """Return `base` with the differences of `change`.

    Mappings merge key by key; anything else replaces. Where `change` gives a mapping another
    `type`, the keys of the old variant that the new one does not have, or cannot hold the value
    of, are dropped; other keys that both have stay, and keys of `change` itself always hold.

    Args:
        base: What is changed; left as it is.
        change: The differences.
        schema: What may stand at this place, with the keys of each variant.
        path: Where this is, for `dropped`; empty at the top, else it ends with a dot.
        dropped: Receives one line for each change of type that dropped keys.
    """
    merged, old, new = dict(base), schema.tag(base), change.get("type")
    variant = schema.variants.get(new) if isinstance(new, str) else None
    if variant is not None and new != old:
        fields = variant.model_fields
        gone = [
            key
            for key, value in base.items()
            if key != "type" and not (key in fields and can_hold(annotation_of(fields[key]), value))
        ]
        merged = {key: value for key, value in base.items() if key not in gone}
        if gone and dropped is not None:
            dropped.append(f"{path}type: {old} -> {new} drops {', '.join(map(str, gone))}")
    if "type" in change:  # Decides what may stand at the other keys.
        merged["type"] = change["type"]
    for key, value in change.items():
        if isinstance(value, Mapping):
            held, below = merged.get(key), schema.child(key, merged)
            if isinstance(held, type | BaseModel | Handed):
                held = {"type": held}  # A Python object is changed as a mapping is.
            inner = held if isinstance(held, Mapping) else {}
            value = merge(inner, value, below, path=f"{path}{key}.", dropped=dropped)
        merged[key] = value
    return merged


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was given. `raw` is a plain scalar as typed, before YAML read it."""

    source: str
    line: int | None = None
    raw: str | None = None

    def __str__(self) -> str:
        """Return `file:line`, or the source alone."""
        return self.source if self.line is None else f"{self.source}:{self.line}"


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


def holds(data: object, path: KeyPath) -> bool:
    """Return whether there is a value at a path."""
    try:
        value_at(data, path)
    except KeyError:
        return False
    return True


SHORTEST_SECRET = 4
"""Shorter environment values are not searched for in messages: they match by accident."""


@dataclass(frozen=True, slots=True)
class RawRecipe:
    """A recipe's raw values.

    Attributes:
        values: Every interpolation replaced by its value; what a run uses.
        kept: What draws on the environment, as it is written: files and messages hold this.
        environment: The variables that were read, as (name, value).
    """

    values: dict[Any, Any]
    kept: dict[KeyPath, object]
    environment: tuple[tuple[str, str], ...] = ()

    def shown(self, path: KeyPath) -> object:
        """Return a value as messages have it, None where there is none."""
        return self.kept[path] if path in self.kept else _held(self.values, path)

    def put_back(self, data: object) -> None:
        """Replace in values like these what draws on the environment by what is written."""
        for path, text in self.kept.items():
            if holds(data, path):
                cast(dict[str | int, object], value_at(data, path[:-1]))[path[-1]] = text

    def redact(self, text: str) -> str:
        """Return the text with environment values replaced by the interpolation."""
        for name, value in sorted(self.environment, key=lambda item: -len(item[1])):
            if len(value) >= SHORTEST_SECRET:
                text = text.replace(value, f"${{oc.env:{name}}}")
        return text


MOST_PROBLEMS = 7
_WANT_MAPPING = ("model_type", "model_attributes_type", "dict_type")
_WANT_TEXT = ("string_type", "literal_error", "enum", "path_type")
_OLD_NUMBER = re.compile(r"[-+]?(0[0-9_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")
"""Octal numbers and numbers to the base 60 of YAML 1.1, which look like decimal ones or times."""
_UNSAID = re.compile(r"^(?:Input|String) should (be )?|, (unable|got) .*| or instance of .*|'")
"""What pydantic says beside what it expects."""
_OUR_WORDS = {
    "dictionary": "mapping",
    "tuple": "list",
    "None": "null",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "match pattern": "text that matches",
}


def unknown_key(name: str, place: Schema, data: Mapping[str, object], whole: Schema) -> str:
    """Say which type has a key that this one lacks, or which keys are near it."""
    owners = [tag for tag, model in place.variants.items() if name in model.model_fields]
    if owners:
        return f"unknown key; expected it with type {' or '.join(owners)}"
    keys = place.keys(data) or dict.fromkeys(
        key for one in place.models for key in one.model_fields
    )
    hint = did_you_mean(name, keys)
    if not hint and (elsewhere := find_key(whole, name)):
        hint = did_you_mean(elsewhere[0], elsewhere[:1])
    return f"unknown key{hint or '; expected one of ' + ', '.join(keys)}"


@dataclass(frozen=True, slots=True)
class Problems:
    """Turns the errors of one validation into one message with file, line and nearest name."""

    schema: Schema
    reading: RawRecipe
    origins: Mapping[KeyPath, Origin]
    place: str
    _tags: dict[KeyPath, str] = field(default_factory=dict)

    def describe(self, error: ValidationError) -> str:
        """Return one line for each place in error, at most `MOST_PROBLEMS` of them."""
        by_path: dict[KeyPath, list[ErrorDetails]] = {}
        for detail in error.errors(include_url=False):
            by_path.setdefault(self._path(detail), []).append(detail)
        lines = [self._line(path, details) for path, details in by_path.items()]
        if len(lines) > MOST_PROBLEMS:
            lines[MOST_PROBLEMS:] = [f"... and {len(lines) - MOST_PROBLEMS} more"]
        return self.reading.redact("\n".join(lines))

    def typed_text(self, error: ValidationError) -> dict[KeyPath, str]:
        """Return what was typed where text was wanted and YAML had read something else.

        `key=no` reads as false and `key=1.10` as 1.1; where the field takes text, the text holds.
        """
        typed: dict[KeyPath, str] = {}
        for detail in error.errors(include_url=False):
            path = self._path(detail)
            origin = self.origins.get(path)
            if detail["type"] not in _WANT_TEXT or origin is None or origin.raw is None:
                continue
            if detail["type"] == "literal_error" and repr(origin.raw) not in detail["msg"]:
                continue
            held = _held(self.reading.values, path)
            if isinstance(held, bool | int | float):
                typed[path] = str(held) if "${" in origin.raw else origin.raw
        return typed

    def refuse_misread_numbers(self, recipe: BaseModel) -> None:
        """Refuse what is read as another number than it is written as.

        Pydantic reads `yes` as 1, YAML 1.1 `010` as 8 and `1:30` as 90. Phases have a validation
        of their own.
        """
        for path in _misread(self.reading.values, recipe.model_dump(exclude={PHASES})):
            raise RecipeError(self._say(path, f"found {self._found(path)}; expected a number"))
        for path, origin in self.origins.items():
            number = _held(self.reading.values, path)
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            if (
                path[:1] == (PHASES,)
                or not is_number
                or not _OLD_NUMBER.fullmatch(origin.raw or "")
            ):
                continue
            text = f"found {origin.raw}, which YAML reads as {number}; expected a decimal number"
            raise RecipeError(self._say(path, text))

    def _path(self, detail: ErrorDetails) -> KeyPath:
        """Return where in the data an error stands: its location without union branches."""
        path: KeyPath = ()
        held: object = self.reading.values
        is_missing = detail["type"] == "missing"
        for key in detail["loc"][:-1] if is_missing else detail["loc"]:
            try:
                held = value_at(held, (key,))
            except KeyError:
                place, data = self._place(path)
                if key in place.variants or key not in (place.keys(data) or ()):
                    self._tags[path] = str(key)
                    continue
                held = {}  # A part that was left out, which its defaults do not fill.
            path = (*path, key)
        return (*path, detail["loc"][-1]) if is_missing else path

    def _line(self, path: KeyPath, details: list[ErrorDetails]) -> str:
        first = details[0]
        kind, shown = first["type"], self.reading.shown
        if kind == "extra_forbidden":
            place, data = self._place(path[:-1])
            return self._say(path, unknown_key(str(path[-1]), place, data, self.schema))
        if kind.startswith("union_tag"):
            tags, path = list(self._place(path)[0].variants), (*path, "type")
            found = shown(path)
            what = "missing" if found is None else f"found {found!r}"
            known = f"one of {', '.join(tags)}{did_you_mean(found, tags)}"
            return self._say(path, f"{what}; expected {OF_PYTHON if ':' in str(found) else known}")
        if kind == "missing":
            return self._say(path, f"missing; expected a value for {path[-1]}")
        if kind in ("value_error", "assertion_error"):
            return self._say(path, str(first["ctx"]["error"]))
        place, value = self._place(path)[0], shown(path)
        if isinstance(value, str) and kind in _WANT_MAPPING and place.variants:
            return self._say(path, _type_alone(path, value, list(place.variants)))
        wanted = list(dict.fromkeys(_wanted(detail) for detail in details))
        names = [
            name
            for detail in details
            if detail["type"] == "literal_error"
            for name in _wanted(detail).replace(" or ", ", ").split(", ")
        ]
        hint = did_you_mean(shown(path), names)
        return self._say(path, f"found {self._found(path)}; expected {' or '.join(wanted)}{hint}")

    def _say(self, path: KeyPath, text: str) -> str:
        """Name the origin of a path, or of the nearest mapping that holds it."""
        known = (path[:end] for end in range(len(path), 0, -1) if path[:end] in self.origins)
        nearest = next(known, None)
        where = self.place if nearest is None else str(self.origins[nearest])
        key = ".".join(map(str, path))
        return f"{where}: {key}: {text}" if key else f"{where}: {text}"

    def _place(self, path: KeyPath) -> tuple[Schema, Mapping[str, object]]:
        schema, data = self.schema, self.reading.values
        for end, key in enumerate(path, start=1):
            below = data.get(key)
            schema = schema.child(key, data)
            data = below if isinstance(below, dict) else {}
            tag = self._tags.get(path[:end])
            if tag in schema.variants:
                data = {"type": tag, **data}
        return schema, data

    def _found(self, path: KeyPath) -> str:
        """Return a short form of what was written, never a value of the environment."""
        held = self.reading.shown(path)
        origin = self.origins.get(path)
        if isinstance(held, dict | list):
            return "a mapping of keys" if isinstance(held, dict) else "a list"
        if origin is not None and origin.raw is not None and "${" not in origin.raw:
            return repr(origin.raw) if isinstance(held, str) else origin.raw or "nothing"
        text = repr(held) if held is not None else "nothing"
        return text if len(text) <= 60 else text[:57] + "..."


def _type_alone(path: KeyPath, value: str, tags: list[str]) -> str:
    """Describe a variant that was named where the mapping with its `type` belongs."""
    type_key = ".".join(map(str, (*path, "type")))
    if value in tags:
        return f"found {value!r}; expected {type_key}={value}"
    return f"found {value!r}; expected {type_key}, one of {', '.join(tags)}" + did_you_mean(
        value, tags
    )


def _held(data: object, path: KeyPath) -> object:
    return value_at(data, path) if holds(data, path) else None


def _wanted(detail: ErrorDetails) -> str:
    """Return what pydantic expects."""
    text = _UNSAID.sub("", detail["msg"])
    for theirs, ours in _OUR_WORDS.items():
        text = text.replace(theirs, ours)
    return text if text[:2].isupper() else text[:1].lower() + text[1:]


def _misread(raw: object, held: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield where a number was read from true or false."""
    match raw, held:
        case bool(), int() | float() if not isinstance(held, bool):
            yield path
        case dict(), dict():
            for key in raw.keys() & held.keys():
                yield from _misread(raw[key], held[key], (*path, key))
        case list(), list() | tuple():
            for index, (one, other) in enumerate(zip(raw, held, strict=False)):
                yield from _misread(one, other, (*path, index))
