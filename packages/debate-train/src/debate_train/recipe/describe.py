"""What describes recipes: `--explain KEY`, and `debate-train init`.

A field's description is the text below it, or its entry under `Args:` or `Attributes:` of its
class. Reading them while modules are imported would slow every command down.
"""

import ast
import inspect
import re
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Annotated, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from debate_train.errors import RecipeError
from debate_train.recipe import PARTS, Recipe
from debate_train.recipe.files import load_recipe
from debate_train.recipe.problems import (
    NOWHERE,
    PHASES,
    Schema,
    annotation_of,
    schema_of,
    unknown_key,
)
from debate_train.recipe_names import opening

_SECTION = re.compile(r"^(?:Args|Attributes):\n((?:[ ].*\n?|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def description(model: type[BaseModel], field: str) -> str:
    """Return what a field means, in one paragraph; its nearest class that says so counts.

    Returns:
        The text, empty where no class has one.
    """
    ours = [one for one in model.__mro__ if issubclass(one, BaseModel) and one is not BaseModel]
    said = [model.model_fields[field].description, *(_described(one).get(field) for one in ours)]
    text = next(filter(None, said), "")
    return re.sub(r"\bNone\b", "null", text)  # As YAML calls it.


def summary(model: type[BaseModel]) -> str:
    """Return the first line of what a model's docstring says."""
    own = model.__doc__ if model.__doc__ != BaseModel.__doc__ else None
    return (own or "").strip().partition("\n")[0]


@cache
def _described(model: type[BaseModel]) -> dict[str, str]:
    """Return what the body and docstring of one class say of its fields."""
    section = _SECTION.search(inspect.cleandoc(model.__doc__ or ""))
    found = dict(_ENTRY.findall(section[1])) if section else {}
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(model)))
    except (OSError, TypeError, SyntaxError):  # Made where there is no source.
        tree = ast.Module([ast.Pass()], [])
    body = getattr(tree.body[0], "body", [])
    for field, below in pairwise(body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(str(text))):
                found[name] = text
    return {name: " ".join(text.split()) for name, text in found.items()}


_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "min_length": "from", "max_length": "to"}


def explain(key: str, model: type[BaseModel], held: Mapping[str, object]) -> list[str]:
    """Return the lines that explain a dotted key.

    Args:
        key: Such as `reward.components`; names of phases, parts and list entries may stand in it.
        model: The recipe's model.
        held: The whole recipe, whose variants alone then count; empty for any.

    Raises:
        RecipeError: There is no such key; names the nearest.
    """
    *above, name = key.removesuffix(".type").split(".")
    schema, values = Schema((model,)), held
    for number, part in enumerate(above):
        schema, values = _below(schema, part, values, above[:number], model)
    if schema.values is not None and not schema.models:
        return [key, *_children(schema.values)]
    lines: list[str] = []
    for said, owners in _grouped(schema, name, values).items():
        lines += ["", *_lines(key, schema, said, owners, values.get(name))]
    if not lines:
        raise _unknown(name, above, schema, values, model)
    return lines[1:]


def overview(model: type[BaseModel]) -> list[str]:
    """Return a line for each key of a model."""
    names = [name for name in model.model_fields if name != "type"]
    width = max(map(len, names), default=0)
    return [f"  {name:{width}}  {description(model, name)}" for name in names]


def _below(
    schema: Schema,
    part: str,
    values: Mapping[str, object],
    above: Sequence[str],
    model: type[BaseModel],
) -> tuple[Schema, Mapping[str, object]]:
    """Return the place below one part of a key, in whichever variants have it."""
    inner = values.get(part)
    held = inner if isinstance(inner, Mapping) else {}
    if schema.values is not None and not schema.models:
        return schema.values, held
    if above == [] and part == PHASES:
        return Schema(values=schema), held
    found = [
        schema_of(annotation_of(owner.model_fields[part]))
        for owners in _grouped(schema, part, values).values()
        for owner in owners
    ]
    if not found:
        raise _unknown(part, above, schema, values, model)
    models = dict.fromkeys(one for place in found for one in place.models)
    inside = [place.values for place in found if place.values not in (None, NOWHERE)]
    return Schema(tuple(models), inside[0] if inside else None), held


def _grouped(
    schema: Schema, name: str, values: Mapping[str, object]
) -> dict[tuple[str, ...], list[type[BaseModel]]]:
    """Return the models that have a field, together where the same can be said of it."""
    chosen = schema.model(values) if values and schema.models else None
    groups: dict[tuple[str, ...], list[type[BaseModel]]] = {}
    for model in schema.models if chosen is None else [chosen]:
        if name in model.model_fields and name != "type":
            said = tuple(facts(model, name, model.model_fields[name]))
            groups.setdefault(said, []).append(model)
    return groups


def _lines(
    key: str, schema: Schema, said: Sequence[str], owners: Sequence[type[BaseModel]], value: object
) -> Iterator[str]:
    tags = [tag for tag, one in schema.variants.items() if one in owners and len(schema.models) > 1]
    yield key + (f"  (type: {', '.join(tags)})" if tags else "")
    yield from (f"  {line}" for line in said)
    if value is not None and not isinstance(value, Mapping | list):
        yield f"  here: {_shown(value)}"
    name = key.removesuffix(".type").rpartition(".")[2]
    place = schema_of(annotation_of(owners[0].model_fields[name]))
    yield from _children(place)
    if isinstance(value, Mapping) and len(place.models) > 1 and (chosen := place.model(value)):
        yield f"  here: type {place.tag(value)}, with the keys"
        yield from (f"  {line}" for line in overview(chosen))


def _children(place: Schema) -> Iterator[str]:
    """Yield what may stand in a mapping: the variants by name, or the keys."""
    if len(place.models) > 1:
        yield "  variants:"
        width = max(map(len, place.variants), default=0)
        for number, (tag, model) in enumerate(place.variants.items()):
            yield f"    {tag:{width}}  {summary(model)}{'' if number else ' (default)'}"
    elif place.models:
        yield "  keys:"
        yield from (f"  {line}" for line in overview(place.models[0]))
    elif place.values is not None and place.values != NOWHERE:
        yield from _children(place.values)


def facts(model: type[BaseModel], name: str, field: FieldInfo) -> Iterator[str]:
    """Yield what a field means, then `type: …`, `range: …` if it has one, and `default: …`."""
    yield description(model, name)
    yield f"type: {_kind(field.annotation)}"
    bounds = [
        f"{sign} {getattr(mark, bound)}"
        for mark in field.metadata
        for bound, sign in _BOUNDS.items()
        if getattr(mark, bound, None) is not None
    ]
    if bounds:
        yield f"range: {', '.join(bounds)}"
    if not field.is_required():
        yield f"default: {_shown(field.get_default(call_default_factory=True, validated_data={}))}"
    elif name in PARTS and (tags := schema_of(annotation_of(field)).variants):
        yield f"default: type {next(iter(tags))}"
    else:
        yield "default: none, it must be given"


def _shown(value: object) -> str:
    """Return a value as YAML has it; a model's `type` stands for all its keys."""
    if isinstance(value, BaseModel):
        return f"type {value.type}" if hasattr(value, "type") else "its keys' own"
    if isinstance(value, Mapping) and value:
        return f"{{{', '.join(map(str, value))}: ...}}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_shown, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _kind(annotation: object) -> str:
    """Return in words what an annotation takes."""
    origin, given = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(given[0])
    if origin is Literal:
        return "one of " + ", ".join(map(_shown, given))
    if len(schema_of(annotation).variants) > 1:
        return "one of the variants below"
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_kind, given)))
    if origin in (list, tuple):
        return f"list of {_kind(given[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"mapping of names to {_kind(given[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping of keys"
    return "null" if annotation is type(None) else getattr(annotation, "__name__", "text")


def _unknown(
    name: str,
    above: Sequence[str],
    schema: Schema,
    values: Mapping[str, object],
    model: type[BaseModel],
) -> RecipeError:
    text = unknown_key(name, schema, values, Schema((model,)))
    return RecipeError(f"--explain {'.'.join([*above, name])}: {text}")


def template(shipped: str, name: str, overrides: Sequence[str]) -> str:
    """Return a whole recipe, made of one that ships: it extends no other.

    Args:
        shipped: The recipe that ships.
        name: What the new one is called.
        overrides: `key=value` arguments over those of the recipe that ships.
    """
    loaded = load_recipe(shipped, [f"name={name}", *overrides], model=Recipe)
    loaded.reading.put_back(loaded.reading.values)
    lines = [f"# {line}".rstrip() for line in [*opening(loaded.path), ""]]
    if overrides:
        lines.append(f"# Not as in {shipped}, of which the above speaks: {', '.join(overrides)}")
    lines += ["# debate-train FILE --explain KEY says what a key means.", ""]
    return "\n".join(lines) + "\n" + yaml.safe_dump(loaded.reading.values, sort_keys=False)
