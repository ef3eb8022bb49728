"""`debate-train [RECIPE] --explain KEY`: what a key means and what may stand there.

A field's description is the text below it, or its entry under `Args:` or `Attributes:` of its
class. Reading them while modules are imported would slow every command down.
"""

import ast
import inspect
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from debate_train.interrupts import RecipeError
from debate_train.recipe import PARTS
from debate_train.recipe.problems import (
    NOWHERE,
    PHASES,
    Schema,
    annotation_of,
    find_key,
    schema_of,
)

_SECTION = re.compile(r"(Args|Attributes):$")
_ENTRY = re.compile(r" {4}(\w+): (.*)")


def description(model: type[BaseModel], field: str) -> str:
    """Return what a field means, in one paragraph; its nearest class that says so counts.

    Returns:
        The text, empty where no class has one.
    """
    given = model.model_fields[field].description
    said = [_described(parent).get(field, "") for parent in model.__mro__ if _is_ours(parent)]
    text = next(filter(None, [given or "", *said]), "")
    return re.sub(r"\bNone\b", "null", text)  # As YAML calls it.


def summary(model: type[BaseModel]) -> str:
    """Return the first line of what a model's docstring says."""
    own = model.__doc__ if model.__doc__ != BaseModel.__doc__ else None
    return (own or "").strip().partition("\n")[0]


def _is_ours(parent: type) -> bool:
    return issubclass(parent, BaseModel) and parent is not BaseModel


@cache
def _described(model: type[BaseModel]) -> dict[str, str]:
    """Return what the body and docstring of one class say of its fields."""
    try:
        file = inspect.getsourcefile(model)
    except TypeError:  # Made where there is no source.
        return {}
    tree = _classes(file).get(model.__qualname__) if file is not None else None
    if tree is None:
        return {}
    found = _listed(inspect.cleandoc(model.__doc__ or ""))
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(str(text))):
                found[name] = " ".join(text.split())
    return found


def _listed(docstring: str) -> dict[str, str]:
    """Return the entries below `Args:` or `Attributes:`."""
    found: dict[str, str] = {}
    inside, name = False, ""
    for line in docstring.splitlines():
        if _SECTION.match(line):
            inside = True
        elif line and not line.startswith(" "):
            inside = False
        elif inside and (entry := _ENTRY.match(line)):
            name = entry[1]
            found[name] = entry[2].strip()
        elif inside and name and line.strip():
            found[name] += f" {line.strip()}"
    return found


@cache
def _classes(file: str) -> dict[str, ast.ClassDef]:
    """Return the classes of a file by their qualified names; parsing is what takes time."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[str, ast.ClassDef] = {}

    def walk(node: ast.AST, above: str) -> None:
        for below in ast.iter_child_nodes(node):
            if isinstance(below, ast.ClassDef):
                found[above + below.name] = below
                walk(below, f"{above}{below.name}.")
            elif isinstance(below, ast.FunctionDef | ast.AsyncFunctionDef):
                walk(below, f"{above}{below.name}.<locals>.")
            else:
                walk(below, above)

    walk(tree, "")
    return found


_KINDS: Mapping[object, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    Any: "anything",
    object: "anything",
    type(None): "null",
}
_BOUNDS = {
    "gt": "more than {}",
    "ge": "at least {}",
    "lt": "less than {}",
    "le": "at most {}",
    "min_length": "at least {} of them",
    "max_length": "at most {} of them",
}
_UNITS = {
    "s": "seconds",
    "minutes": "minutes",
    "tokens": "tokens",
    "steps": "steps",
    "chars": "characters",
    "mib": "MiB",
    "questions": "questions",
    "rounds": "rounds",
    "agents": "agents",
    "debates": "debates",
}
"""What the last word of a key says that a number counts."""


@dataclass(frozen=True, slots=True)
class _Owner:
    """A model that may hold the key that is asked for."""

    model: type[BaseModel]
    tag: str | None
    """Its `type`, None where it has no alternatives."""


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
    value = values.get(name)
    if schema.values is not None and not schema.models:
        return [key, *_children(schema.values)]
    lines: list[str] = []
    for owners in _grouped(schema, name, values):
        lines += ["", *_lines(key, name, owners, value)]
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
        schema_of(annotation_of(owner.model.model_fields[part]))
        for owners in _grouped(schema, part, values)
        for owner in owners
    ]
    if not found:
        raise _unknown(part, above, schema, values, model)
    models = dict.fromkeys(one for place in found for one in place.models)
    inside = [place.values for place in found if place.values not in (None, NOWHERE)]
    return Schema(tuple(models), inside[0] if inside else None), held


def _grouped(schema: Schema, name: str, values: Mapping[str, object]) -> Iterator[list[_Owner]]:
    """Yield the models that have a field, those together in which it is the same."""
    chosen = schema.model(values) if values and schema.models else None
    groups: dict[tuple[str, ...], list[_Owner]] = {}
    tags = {one: tag for tag, one in schema.variants.items()}
    for model in [chosen] if chosen is not None else schema.models:
        if name in model.model_fields and name != "type":
            said = tuple(_facts(model, name, model.model_fields[name]))
            tag = tags.get(model) if len(schema.models) > 1 else None
            groups.setdefault(said, []).append(_Owner(model, tag))
    yield from groups.values()


def _lines(key: str, name: str, owners: Sequence[_Owner], value: object) -> Iterator[str]:
    first = owners[0]
    field = first.model.model_fields[name]
    tags = [owner.tag for owner in owners if owner.tag is not None]
    yield key + (f"  (type: {', '.join(tags)})" if tags else "")
    yield from (f"  {line}" for line in _facts(first.model, name, field))
    if value is not None and not isinstance(value, Mapping | list):
        yield f"  here: {_shown(value)}"
    place = schema_of(annotation_of(field))
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


def _facts(model: type[BaseModel], name: str, field: FieldInfo) -> Iterator[str]:
    """Yield meaning, type and unit, range, default."""
    yield description(model, name)
    kind, unit = _kind(field.annotation), _UNITS.get(name.split("_")[-1])
    yield f"type: {kind}" + (f", in {unit}" if unit and "number" in kind else "")
    bounds = [
        form.format(getattr(mark, bound))
        for mark in field.metadata
        for bound, form in _BOUNDS.items()
        if getattr(mark, bound, None) is not None
    ]
    if bounds:
        yield f"range: {', '.join(bounds)}"
    yield f"default: {_default(name, field)}"


def _default(name: str, field: FieldInfo) -> str:
    if field.is_required():
        first = next(iter(schema_of(annotation_of(field)).variants), None)
        return f"type {first}" if name in PARTS and first else "none, it must be given"
    default = field.get_default(call_default_factory=True, validated_data={})
    return _shown(default)


def _shown(value: object) -> str:
    if isinstance(value, BaseModel):
        tag = getattr(value, "type", None)
        return f"type {tag}" if isinstance(tag, str) else "its keys' own"
    if isinstance(value, Mapping):
        return "{}" if not value else f"{{{', '.join(map(str, value))}: ...}}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_shown, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _kind(annotation: object) -> str:
    """Return in words what an annotation takes."""
    if annotation in _KINDS:
        return _KINDS[annotation]
    origin, given = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(given[0])
    if origin is Literal:
        return "one of " + ", ".join(map(_shown, given))
    if len(schema_of(annotation).variants) > 1:
        return "one of the variants below"
    if origin in (Union, types.UnionType):
        kinds = list(dict.fromkeys(map(_kind, given)))
        return " or ".join(sorted(kinds, key=lambda kind: kind == "null"))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"mapping of names to {_kind(given[1])}"
    if origin in (list, tuple):
        return f"list of {_kind(given[0])}"
    return "mapping of keys" if isinstance(annotation, type) else "text"


def _unknown(
    name: str,
    above: Sequence[str],
    schema: Schema,
    values: Mapping[str, object],
    model: type[BaseModel],
) -> RecipeError:
    where = ".".join([*above, name])
    known = dict.fromkeys(key for one in schema.models for key in one.model_fields if key != "type")
    near = [".".join([*above, key]) for key in get_close_matches(name, known, n=3)]
    near = near or find_key(Schema((model,)), name)[:3]
    owners = [tag for tag, one in schema.variants.items() if name in one.model_fields]
    if owners:  # Of another variant than the one that the recipe chose.
        return RecipeError(
            f"--explain {where}: found type {schema.tag(values)}, which has no such key; "
            f"expected {' or '.join(owners)}, or no recipe"
        )
    expected = f"did you mean {' or '.join(near)}?" if near else f"expected {', '.join(known)}"
    return RecipeError(f"--explain {where}: there is no such key; {expected}")
