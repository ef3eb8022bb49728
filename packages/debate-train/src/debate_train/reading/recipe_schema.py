"""What a recipe may hold at each place, read off the pydantic models."""

import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from debate_protocol.plugins import variants_of

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
