"""Writes keys.md beside it: every key of a recipe, from the recipe's own models.

python docs/reference/make_keys.py
python docs/reference/make_keys.py --count  # only counts pairs of a model and a key
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from debate_train.recipe import Recipe
from debate_train.recipe.describe import facts, summary
from debate_train.recipe.schema import PHASES, Schema, annotation_of, schema_of

PAGE = Path(__file__).with_name("keys.md")
HEAD = """# Recipe keys

Every key of a recipe, made from the recipe's models by `docs/reference/make_keys.py`.
`debate train --explain KEY` prints the same of one key; with a recipe in front, also its value.
[Recipes](../recipes.md) says how to write one.
"""
LONGEST = 60


def page() -> str:
    """Return the text of the page."""
    lines, shown = [HEAD, "## Top level\n", *table([Recipe], {})], set[type[BaseModel]]()
    for name, field in Recipe.model_fields.items():
        if name != PHASES:
            lines += sections(name, schema_of(annotation_of(field)), shown)
    return "\n".join(lines) + "\n"


def sections(path: str, place: Schema, shown: set[type[BaseModel]]) -> Iterator[str]:
    """Yield a section for what may stand at a place, and for what may stand inside of it."""
    models = [model for model in users_models(place) if model not in shown]
    tags = {model: tag for tag, model in reversed(place.variants.items())}
    if models:
        shown.update(models)
        yield f"\n## {path}\n"
        if len(place.models) > 1:
            for model in models:
                default = " (default)" if model is place.models[0] and model in tags else ""
                yield f"- `type: {tags.get(model, '…')}`{default}: {summary(model)}"
            yield ""
        yield from table(models, tags if len(models) > 1 else {})
    inside: dict[str, list[Schema]] = {}
    for model in models:
        for name, field in model.model_fields.items():
            inside.setdefault(name, []).append(schema_of(annotation_of(field)))
    for name, places in inside.items():
        for inner in places:
            yield from sections(f"{path}.{name}", inner, shown)
    if place.values is not None:
        yield from sections(f"{path}.NAME", place.values, shown)


def table(models: Sequence[type[BaseModel]], tags: dict[type[BaseModel], str]) -> Iterator[str]:
    """Yield a row for each field; fields of several models with the same text share a row."""
    rows: dict[tuple[str, ...], list[type[BaseModel]]] = {}
    for model in models:
        for name, field in choices(model):
            rows.setdefault((name, *facts(model, name, field)), []).append(model)
    if not rows:
        return
    yield "| key | takes | default | |" + (" of type |" if tags else "")
    yield "|---|---|---|---|" + ("---|" if tags else "")
    for (name, meaning, *rest), owners in rows.items():
        said = dict(line.split(": ", 1) for line in rest)
        takes = ", ".join(said[part] for part in ("type", "range") if part in said)
        takes = takes.removeprefix("one of ").removesuffix(" below")
        default = said["default"].replace("none, it must be given", "needed")
        cells = [c if len(c) <= LONGEST else c[:LONGEST] + " …" for c in (takes, default)]
        if tags:
            names = [tags.get(owner, "…") for owner in owners]
            meaning += f" | {'all' if len(owners) == len(models) else ', '.join(names)}"
        else:
            meaning = meaning.replace("|", "\\|")
        row = " | ".join(cell.replace("|", "\\|") for cell in (f"`{name}`", *cells))
        yield f"| {row} | {meaning} |"


def choices(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the keys of a model that may have more than one value; `type` has one."""
    for name, field in model.model_fields.items():
        annotation = field.annotation
        is_fixed = get_origin(annotation) is Literal and len(get_args(annotation)) == 1
        if not is_fixed:
            yield name, field


def users_models(schema: Schema) -> list[type[BaseModel]]:
    """List the models at a place, without controls of studies, whose package users do without."""
    return [m for m in schema.models if not m.__module__.startswith("debate_studies.")]


def models_of(schema: Schema) -> dict[type[BaseModel], None]:
    """List each model of a recipe once."""
    models: dict[type[BaseModel], None] = {}
    schemas = [schema]
    while schemas:
        schema = schemas.pop()
        if schema.values is not None:
            schemas.append(schema.values)
        for model in users_models(schema):
            if model not in models:
                models[model] = None
                schemas += [
                    schema_of(annotation_of(field)) for field in model.model_fields.values()
                ]
    return models


def count_pairs() -> int:
    """Count the pairs of a model and a key."""
    models = models_of(Schema((Recipe,)))
    return sum(len(list(choices(model))) for model in models)


if __name__ == "__main__":
    if "--count" in sys.argv:
        print(f"{count_pairs()} pairs of a model and a key")
        sys.exit()
    PAGE.write_text(page(), encoding="utf-8")
