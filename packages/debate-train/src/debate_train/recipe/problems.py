"""What is wrong with a recipe, said to the person who wrote it; and how recipes merge."""

import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from debate_protocol.plugins import variants_of
from debate_train.interrupts import RecipeError
from debate_train.recipe.yaml_source import KeyPath, Origin, Reading, value_at

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
        return {tag: model for model in self.models for tag in _tags(model)}

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
        if isinstance(option, type) and issubclass(option, BaseModel):
            models.append(option)
        elif isinstance(get_origin(option), type) and issubclass(
            cast(type, get_origin(option)), Mapping
        ):
            values = schema_of(get_args(option)[1])
        elif get_origin(option) in (list, tuple):
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
    """Return the dotted paths under which a key of this name exists, nearest first."""
    found: list[str] = []
    level = [("", schema)]
    for _ in range(depth):
        below: list[tuple[str, Schema]] = []
        for path, place in level:
            for model in place.models:
                for key, field in model.model_fields.items():
                    if key == name:
                        found.append(path + key)
                    elif key != PHASES:
                        below.append((f"{path}{key}.", schema_of(annotation_of(field))))
        level = below
    return list(dict.fromkeys(found))


def _options(annotation: object) -> list[object]:
    origin = get_origin(annotation)
    if variants := variants_of(annotation):
        return list(variants)
    if origin is Annotated:
        return _options(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [option for part in get_args(annotation) for option in _options(part)]
    return [annotation]


def _tags(model: type[BaseModel]) -> tuple[str, ...]:
    field = model.model_fields.get("type")
    if field is None or get_origin(field.annotation) is not Literal:
        return ()
    return tuple(tag for tag in get_args(field.annotation) if isinstance(tag, str))


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
    merged = _keys_that_stay(base, change, schema, path, dropped)
    if "type" in change:
        merged["type"] = change["type"]
    for key, value in change.items():
        old = merged.get(key)
        if isinstance(value, Mapping):
            merged[key] = merge(
                old if isinstance(old, Mapping) else {},
                value,
                schema.child(key, merged),
                path=f"{path}{key}.",
                dropped=dropped,
            )
        else:
            merged[key] = value
    return merged


def _keys_that_stay(
    base: Mapping[str, object],
    change: Mapping[str, object],
    schema: Schema,
    path: str,
    dropped: list[str] | None,
) -> dict[str, object]:
    old, new = schema.tag(base), change.get("type")
    variant = schema.variants.get(new) if isinstance(new, str) else None
    if variant is None or new == old:
        return dict(base)
    fields = variant.model_fields
    gone = [
        key
        for key, value in base.items()
        if key != "type" and not (key in fields and can_hold(annotation_of(fields[key]), value))
    ]
    if gone and dropped is not None:
        dropped.append(f"{path}type: {old} -> {new} drops {', '.join(map(str, gone))}")
    return {key: value for key, value in base.items() if key not in gone}


MOST_PROBLEMS = 7
_MOST = 2**63
_WANT_TEXT = ("string_type", "literal_error", "enum", "path_type")
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "model": "a mapping of keys",
    "dict": "a mapping of keys",
    "list": "a list",
    "tuple": "a list",
}
_PLAIN = {"none_required": "null", "finite_number": "a finite number"}
_BOUNDS = {
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
}


class Problems:
    """Turns the errors of one validation into one message with file, line and nearest name."""

    def __init__(
        self,
        model: type[BaseModel],
        reading: Reading,
        origins: Mapping[KeyPath, Origin],
        place: str,
    ) -> None:
        self._schema = Schema((model,))
        self._reading = reading
        self._origins = origins
        self._place_name = place
        self._tags: dict[KeyPath, str] = {}

    def describe(self, error: ValidationError) -> str:
        """Return one line for each place in error, at most `MOST_PROBLEMS` of them."""
        by_path: dict[KeyPath, list[ErrorDetails]] = {}
        for detail in error.errors(include_url=False):
            by_path.setdefault(self._path(detail), []).append(detail)
        lines = [self._line(path, details) for path, details in by_path.items()]
        if len(lines) > MOST_PROBLEMS:
            lines[MOST_PROBLEMS:] = [f"... and {len(lines) - MOST_PROBLEMS} more"]
        return self._reading.redact("\n".join(lines))

    def typed_text(self, error: ValidationError) -> dict[KeyPath, str]:
        """Return what was typed where text was wanted and YAML had read something else.

        `key=no` reads as false and `key=1.10` as 1.1; where the field takes text, the text holds.
        """
        typed: dict[KeyPath, str] = {}
        for detail in error.errors(include_url=False):
            path = self._path(detail)
            origin = self._origins.get(path)
            if detail["type"] not in _WANT_TEXT or origin is None or origin.raw is None:
                continue
            if detail["type"] == "literal_error" and repr(origin.raw) not in detail["msg"]:
                continue
            held = self._held(path, self._reading.resolved)
            if isinstance(held, bool | int | float):
                typed[path] = str(held) if "${" in origin.raw else origin.raw
        return typed

    def refuse_truth_as_number(self, recipe: BaseModel) -> None:
        """Refuse `yes` or `no` where a number stands: pydantic would read them as 1 and 0."""
        for path in _truths(self._reading.resolved):
            held: object = recipe
            for key in path:
                held = _below(held, key)
            if isinstance(held, int | float) and not isinstance(held, bool):
                raise RecipeError(self._say(path, f"found {self._found(path)}; expected a number"))

    def refuse_large_numbers(self, recipe: BaseModel) -> None:
        """Refuse whole numbers that no computer counts to, which cannot even be printed."""
        for path in _leaf_paths(self._reading.resolved):
            held: object = recipe
            for key in path:
                held = _below(held, key)
            if isinstance(held, int) and abs(held) >= _MOST:
                raise RecipeError(
                    self._say(
                        path, f"found a number of {held.bit_length()} bits; expected at most 63"
                    )
                )

    def _path(self, detail: ErrorDetails) -> KeyPath:
        """Return where in the data an error stands: its location without union branches."""
        path: KeyPath = ()
        held: object = self._reading.resolved
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
        if first["type"] == "extra_forbidden":
            return self._say(path, self._unknown_key(path))
        if first["type"].startswith("union_tag"):
            return self._say((*path, "type"), self._unknown_variant(path, first))
        if first["type"] == "missing":
            return self._say(path, f"missing; expected {_named(first)}")
        if first["type"] in ("value_error", "assertion_error"):
            return self._say(path, str(first["ctx"]["error"]))
        wanted = list(dict.fromkeys(_wanted(detail) for detail in details))
        hint = self._nearest(path, details)
        return self._say(path, f"found {self._found(path)}; expected {' or '.join(wanted)}{hint}")

    def _say(self, path: KeyPath, text: str) -> str:
        where = self._where(path)
        key = ".".join(map(str, path))
        return f"{where}: {key}: {text}" if key else f"{where}: {text}"

    def _where(self, path: KeyPath) -> str:
        """Return the origin of a path, or of the nearest mapping that holds it."""
        for end in range(len(path), 0, -1):
            if path[:end] in self._origins:
                return str(self._origins[path[:end]])
        return self._place_name

    def _unknown_key(self, path: KeyPath) -> str:
        name = str(path[-1])
        place, data = self._place(path[:-1])
        keys = place.keys(data) or ()
        near = get_close_matches(name, keys, n=1)
        owners = [tag for tag, model in place.variants.items() if name in model.model_fields]
        if owners:
            return f"unknown key; expected it with type {' or '.join(owners)}"
        elsewhere = [] if near else find_key(self._schema, name)
        if near or elsewhere:
            return f"unknown key; did you mean {(near or elsewhere)[0]}?"
        return f"unknown key; expected one of {', '.join(keys)}"

    def _unknown_variant(self, path: KeyPath, detail: ErrorDetails) -> str:
        known = str(detail.get("ctx", {}).get("expected_tags", "")).replace("'", "")
        tags = known.split(", ") if known else list(self._place(path)[0].variants)
        found = self._held((*path, "type"), self._reading.written)
        near = get_close_matches(str(found), tags, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        what = "missing" if found is None else f"found {found!r}"
        return f"{what}; expected one of {', '.join(tags)}{hint}"

    def _place(self, path: KeyPath) -> tuple[Schema, Mapping[str, object]]:
        schema, data = self._schema, self._reading.resolved
        path_so_far: KeyPath = ()
        for key in path:
            below = data.get(key)
            schema = schema.child(key, data)
            data = below if isinstance(below, dict) else {}
            path_so_far = (*path_so_far, key)
            tag = self._tags.get(path_so_far)
            if tag in schema.variants:
                data = {"type": tag, **data}
        return schema, data

    def _found(self, path: KeyPath) -> str:
        """Return a short form of what was written, never a value of the environment."""
        held = self._held(path, self._reading.written)
        origin = self._origins.get(path)
        if isinstance(held, dict):
            return "a mapping of keys"
        if isinstance(held, list):
            return "a list"
        if origin is not None and origin.raw is not None and "${" not in origin.raw:
            return repr(origin.raw) if isinstance(held, str) else origin.raw or "nothing"
        text = repr(held) if held is not None else "nothing"
        return text if len(text) <= 60 else text[:57] + "..."

    def _nearest(self, path: KeyPath, details: list[ErrorDetails]) -> str:
        held = self._held(path, self._reading.written)
        names = [
            name.strip("' ")
            for detail in details
            if detail["type"] == "literal_error"
            for name in str(detail["ctx"]["expected"]).replace(" or ", ", ").split(",")
        ]
        near = get_close_matches(str(held), names, n=1)
        return f"; did you mean {near[0]}?" if near else ""

    def _held(self, path: KeyPath, data: object) -> object:
        try:
            return value_at(data, path)
        except KeyError:
            return None


def _wanted(detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _BOUNDS:
        return _BOUNDS[kind].format(**context)
    if kind == "literal_error":
        return str(context["expected"]).replace("'", "")
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind.endswith(("_type", "_parsing", "_from_float")):
        name = _KINDS.get(kind.split("_")[0])
        if name is not None:
            return name
    message = detail["msg"]
    return message[:1].lower() + message[1:]


def _named(detail: ErrorDetails) -> str:
    return f"a value for {detail['loc'][-1]}"


_Items = Iterable[tuple[str | int, object]]


def _truths(data: object, path: KeyPath = ()) -> list[KeyPath]:
    if isinstance(data, bool):
        return [path]
    if isinstance(data, dict):
        items: _Items = [(key, value) for key, value in data.items() if key != PHASES]
    else:
        items = enumerate(data) if isinstance(data, list) else ()
    return [found for key, value in items for found in _truths(value, (*path, key))]


def _leaf_paths(data: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    if isinstance(data, dict):
        items: _Items = [(key, value) for key, value in data.items() if key != PHASES]
    elif isinstance(data, list):
        items = enumerate(data)
    else:
        yield path
        return
    for key, value in items:
        yield from _leaf_paths(value, (*path, key))


def _below(held: object, key: str | int) -> object:
    if isinstance(held, BaseModel):
        return getattr(held, str(key), None)
    if isinstance(held, Mapping):
        return held.get(key)
    if isinstance(held, list | tuple) and isinstance(key, int) and key < len(held):
        return held[key]
    return None
