"""Descriptions of recipes: `--explain KEY`, and `debate-train init`.

The text below a field describes it, or the entry under `Args:` or `Attributes:` of the class.
Reading descriptions during imports would slow every command down.
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
from debate_train.recipe.files import load_recipe
from debate_train.recipe.recipe import PARTS, Recipe
from debate_train.recipe.schema import (
    NOWHERE,
    PHASES,
    Schema,
    annotation_of,
    schema_of,
    unknown_key,
)
from debate_train.recipe_names import opening

# The entries of a section of a docstring, and one of these entries.
SECTION = re.compile(r"^(?:Args|Attributes):\n((?:[ ].*\n?|\n)+)", re.MULTILINE)
ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)
BOUND_SIGNS = {
    "gt": ">",
    "ge": ">=",
    "lt": "<",
    "le": "<=",
    "min_length": "from",
    "max_length": "to",
}
YAML_CONSTANTS = {None: "null", True: "true", False: "false"}


def description(model: type[BaseModel], field: str) -> str:
    """Find the description of a field in the nearest class with a text.

    Returns:
        The text as a paragraph; empty without a description.
    """
    texts = [model.model_fields[field].description]
    for owner in model.__mro__:
        if issubclass(owner, BaseModel) and owner is not BaseModel:
            texts.append(_descriptions(owner).get(field))
    text = next(filter(None, texts), "")
    return re.sub(r"\bNone\b", "null", text)  # As YAML calls it.


def summary(model: type[BaseModel]) -> str:
    """Read the first line of a model's docstring."""
    docstring = model.__doc__
    if docstring is None or docstring == BaseModel.__doc__:
        return ""
    return docstring.strip().partition("\n")[0]


@cache
def _descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Read the descriptions of fields in the docstring and body of a class."""
    descriptions: dict[str, str] = {}
    section = SECTION.search(inspect.cleandoc(model.__doc__ or ""))
    if section is not None:
        descriptions.update(ENTRY.findall(section[1]))
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(model)))
    except (OSError, TypeError, SyntaxError):  # A class that was made without source.
        tree = ast.Module([ast.Pass()], [])
    body = getattr(tree.body[0], "body", [])
    for field, below in pairwise(body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(str(text))):
                descriptions[name] = text
    return {name: " ".join(text.split()) for name, text in descriptions.items()}


def explain(key: str, model: type[BaseModel], recipe: Mapping[str, object]) -> list[str]:
    """Write the lines that explain a dotted key.

    Args:
        key: Such as `reward.components`, perhaps with names of phases, parts and list entries.
        model: The recipe's model.
        recipe: The values of a whole recipe, to explain only chosen variants; empty for all.

    Raises:
        RecipeError: There is no such key; names the nearest.
    """
    *parents, name = key.removesuffix(".type").split(".")
    schema = Schema((model,))
    values = recipe
    for number, parent in enumerate(parents):
        schema, values = _go_below(schema, parent, values, parents[:number], model)
    if schema.values is not None and not schema.models:
        return [key, *_child_lines(schema.values)]
    lines: list[str] = []
    for field_facts, owners in _owners_by_facts(schema, name, values).items():
        lines += ["", *_field_lines(key, schema, field_facts, owners, values.get(name))]
    if not lines:
        raise _unknown(name, parents, schema, values, model)
    return lines[1:]


def overview(model: type[BaseModel]) -> list[str]:
    """Write a line for each key of a model."""
    names = [name for name in model.model_fields if name != "type"]
    width = max(map(len, names), default=0)
    return [f"  {name:{width}}  {description(model, name)}" for name in names]


def _go_below(
    schema: Schema,
    key: str,
    values: Mapping[str, object],
    parents: Sequence[str],
    model: type[BaseModel],
) -> tuple[Schema, Mapping[str, object]]:
    """Find the schema and values below a key, over all variants with this key."""
    value = values.get(key)
    values_below = value if isinstance(value, Mapping) else {}
    if schema.values is not None and not schema.models:
        return schema.values, values_below
    if parents == [] and key == PHASES:
        return Schema(values=schema), values_below
    schemas_below = []
    for owners in _owners_by_facts(schema, key, values).values():
        for owner in owners:
            schemas_below.append(schema_of(annotation_of(owner.model_fields[key])))
    if not schemas_below:
        raise _unknown(key, parents, schema, values, model)
    models: dict[type[BaseModel], None] = {}
    schema_of_values = None
    for below in schemas_below:
        models.update(dict.fromkeys(below.models))
        if schema_of_values is None and below.values not in (None, NOWHERE):
            schema_of_values = below.values
    return Schema(tuple(models), schema_of_values), values_below


def _owners_by_facts(
    schema: Schema, name: str, values: Mapping[str, object]
) -> dict[tuple[str, ...], list[type[BaseModel]]]:
    """Group the models with a field by the facts about it."""
    models = schema.models
    if values and models:
        chosen = schema.model(values)
        models = schema.models if chosen is None else (chosen,)
    groups: dict[tuple[str, ...], list[type[BaseModel]]] = {}
    for model in models:
        if name in model.model_fields and name != "type":
            field_facts = tuple(facts(model, name, model.model_fields[name]))
            groups.setdefault(field_facts, []).append(model)
    return groups


def _field_lines(
    key: str,
    schema: Schema,
    field_facts: Sequence[str],
    owners: Sequence[type[BaseModel]],
    value: object,
) -> Iterator[str]:
    tags = []
    if len(schema.models) > 1:
        tags = [tag for tag, model in schema.variants.items() if model in owners]
    yield f"{key}  (type: {', '.join(tags)})" if tags else key
    for fact in field_facts:
        yield f"  {fact}"
    if value is not None and not isinstance(value, Mapping | list):
        yield f"  here: {_yaml_text(value)}"

    name = key.removesuffix(".type").rpartition(".")[2]
    place = schema_of(annotation_of(owners[0].model_fields[name]))
    yield from _child_lines(place)
    if isinstance(value, Mapping) and len(place.models) > 1:
        chosen = place.model(value)
        if chosen is not None:
            yield f"  here: type {place.tag(value)}, with the keys"
            for line in overview(chosen):
                yield f"  {line}"


def _child_lines(schema: Schema) -> Iterator[str]:
    """Yield the variants of a mapping by name, or its keys."""
    if len(schema.models) > 1:
        yield "  variants:"
        width = max(map(len, schema.variants), default=0)
        for number, (tag, model) in enumerate(schema.variants.items()):
            default = "" if number else " (default)"
            yield f"    {tag:{width}}  {summary(model)}{default}"
    elif schema.models:
        yield "  keys:"
        for line in overview(schema.models[0]):
            yield f"  {line}"
    elif schema.values is not None and schema.values != NOWHERE:
        yield from _child_lines(schema.values)


def facts(model: type[BaseModel], name: str, field: FieldInfo) -> Iterator[str]:
    """Yield a field's description, `type: …`, `range: …` if it has bounds, and `default: …`."""
    yield description(model, name)
    yield f"type: {_type_text(field.annotation)}"
    bounds = []
    for constraint in field.metadata:
        for bound, sign in BOUND_SIGNS.items():
            limit = getattr(constraint, bound, None)
            if limit is not None:
                bounds.append(f"{sign} {limit}")
    if bounds:
        yield f"range: {', '.join(bounds)}"
    variants = schema_of(annotation_of(field)).variants
    if not field.is_required():
        default = field.get_default(call_default_factory=True, validated_data={})
        yield f"default: {_yaml_text(default)}"
    elif name in PARTS and variants:
        yield f"default: type {next(iter(variants))}"
    else:
        yield "default: none, it must be given"


def _yaml_text(value: object) -> str:
    """Write a value as in YAML; a model by `type`."""
    if isinstance(value, BaseModel):
        return f"type {value.type}" if hasattr(value, "type") else "its keys' own"
    if isinstance(value, Mapping) and value:
        return f"{{{', '.join(map(str, value))}: ...}}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_yaml_text, value))}]"
    if value is None or isinstance(value, bool):
        return YAML_CONSTANTS[value]
    return str(value)


def _type_text(annotation: object) -> str:
    """Describe the values allowed by an annotation."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        return _type_text(arguments[0])
    if origin is Literal:
        return "one of " + ", ".join(map(_yaml_text, arguments))
    if len(schema_of(annotation).variants) > 1:
        return "one of the variants below"
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_type_text, arguments)))
    if origin in (list, tuple):
        return f"list of {_type_text(arguments[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"mapping of names to {_type_text(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping of keys"
    if annotation is type(None):
        return "null"
    return getattr(annotation, "__name__", "text")


def _unknown(
    name: str,
    parents: Sequence[str],
    schema: Schema,
    values: Mapping[str, object],
    model: type[BaseModel],
) -> RecipeError:
    problem = unknown_key(name, schema, values, Schema((model,)))
    return RecipeError(f"--explain {'.'.join([*parents, name])}: {problem}")


def template(shipped: str, name: str, overrides: Sequence[str]) -> str:
    """Write a complete recipe file from a shipped recipe.

    Args:
        shipped: Name of the shipped recipe.
        name: Name of the new recipe.
        overrides: `key=value` arguments over the shipped recipe.
    """
    loaded = load_recipe(shipped, [f"name={name}", *overrides], model=Recipe)
    loaded.reading.put_back(loaded.reading.values)
    comments = [f"# {line}".rstrip() for line in [*opening(loaded.path), ""]]
    if overrides:
        changes = ", ".join(overrides)
        comments.append(f"# The above describes {shipped}; changed here: {changes}")
    comments += ["# debate-train FILE --explain KEY says what a key means.", ""]
    content = yaml.safe_dump(loaded.reading.values, sort_keys=False)
    return "\n".join(comments) + "\n" + content
