"""Keys and variants of each place of a recipe."""

import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from debate_protocol.plugins import did_you_mean, tags_of, variants_of

# Values below this key are differences from the whole recipe.
PHASES = "phases"
# The attribute in which a recipe keeps its phases as whole recipes.
WHOLE_PHASES = "whole_phases"
# Keys at most this deep are searched by name.
SEARCH_DEPTH = 4


@dataclass(frozen=True, slots=True)
class Schema:
    """A place of a recipe.

    Attributes:
        models: The possible models of a mapping; of a union, the first without a `type`.
        values: The schema of the values of a free mapping, or of the items of a list.
    """

    models: tuple[type[BaseModel], ...] = ()
    values: "Schema | None" = None

    @property
    def variants(self) -> dict[str, type[BaseModel]]:
        """The models by their `type`."""
        variants: dict[str, type[BaseModel]] = {}
        for model in self.models:
            variants |= dict.fromkeys(tags_of(model), model)
        return variants

    def model(self, data: Mapping[str, object]) -> type[BaseModel] | None:
        """Find the model of this mapping; `None` for an unknown type."""
        if len(self.models) == 1:
            return self.models[0]
        tag = self.tag(data)
        return None if tag is None else self.variants.get(tag)

    def tag(self, data: Mapping[str, object]) -> str | None:
        """Read the `type` of this mapping, or the default type."""
        tag = data.get("type") or next(iter(self.variants), None)
        return tag if isinstance(tag, str) else None

    def keys(self, data: Mapping[str, object]) -> tuple[str, ...] | None:
        """List the keys of this mapping; `None` if all are allowed or the type is unknown."""
        model = self.model(data)
        return None if model is None else tuple(model.model_fields)

    def child(self, key: object, data: Mapping[str, object]) -> "Schema":
        """Find the schema below `key` of this mapping."""
        model = self.model(data)
        if model is None:
            return self.values or NOWHERE
        if key == PHASES and PHASES in model.model_fields:
            return Schema(values=self)
        field = model.model_fields.get(cast(str, key))
        return NOWHERE if field is None else schema_of(annotation_of(field))


NOWHERE = Schema()


def annotation_of(field: FieldInfo) -> object:
    """Rebuild a field's annotation with the metadata."""
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def schema_of(annotation: object) -> Schema:
    """Build the schema of an annotation."""
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
            if items != NOWHERE:
                values = items
    return Schema(tuple(models), values)


def can_hold(annotation: object, value: object) -> bool:
    """Whether a field of this annotation may take the raw value; False only if it surely fails."""
    options = _options(annotation)
    if isinstance(value, str) and "${" in value:
        return True
    if isinstance(value, Mapping):
        return Any in options or schema_of(annotation) != NOWHERE
    allowed_values: list[object] = []
    for option in options:
        if option is type(None):
            allowed_values.append(None)
        elif get_origin(option) is Literal:
            allowed_values += get_args(option)
        else:
            return True
    return value in allowed_values


def _options(annotation: object) -> list[object]:
    """List the members of a union, without annotations."""
    origin = get_origin(annotation)
    variants = variants_of(annotation)
    if variants:
        return list(variants)
    if origin is Annotated:
        return _options(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        options = []
        for member in get_args(annotation):
            options += _options(member)
        return options
    return [annotation]


def find_key(schema: Schema, name: str) -> list[str]:
    """List the dotted paths of keys with this name, nearest first; otherwise of longer keys.

    `lr` shortens `learning_rate`, and `agents` shortens `num_agents`.
    """
    exact_paths: list[str] = []
    longer_paths: list[str] = []
    level = [("", schema)]
    for _ in range(SEARCH_DEPTH):
        next_level: list[tuple[str, Schema]] = []
        for prefix, place in level:
            for model in place.models:
                for key, info in model.model_fields.items():
                    if key == name:
                        exact_paths.append(prefix + key)
                        continue
                    if _shortens(name, key):
                        longer_paths.append(prefix + key)
                    # Phases have the same keys again.
                    if key != PHASES:
                        next_level.append((f"{prefix}{key}.", schema_of(annotation_of(info))))
        level = next_level
    return list(dict.fromkeys(exact_paths or longer_paths))


def _shortens(name: str, key: str) -> bool:
    words = key.split("_")
    initials = "".join(word[:1] for word in words)
    return len(words) > 1 and (name == initials or name in words)


def unknown_key(name: str, place: Schema, data: Mapping[str, object], whole: Schema) -> str:
    """Describe an unknown key: with the types that have it, or with the nearest keys.

    Args:
        name: The key.
        place: The schema of the key's mapping.
        data: The mapping.
        whole: The schema of the recipe, to find the key in another place.
    """
    removed_keys: Mapping[str, str] = getattr(place.model(data), "removed_keys", {})
    if name in removed_keys:
        return f"found a key of earlier releases; expected {removed_keys[name]}"
    tags = [tag for tag, model in place.variants.items() if name in model.model_fields]
    if tags:
        return f"unknown key; expected it with type {' or '.join(tags)}"
    keys = list(place.keys(data) or ())
    if not keys:
        for model in place.models:
            keys += [key for key in model.model_fields if key not in keys]
    hint = did_you_mean(name, keys)
    if not hint:
        paths_elsewhere = find_key(whole, name)
        if paths_elsewhere:
            hint = did_you_mean(paths_elsewhere[0], paths_elsewhere[:1])
    return f"unknown key{hint or '; expected one of ' + ', '.join(keys)}"
