"""Commands that describe: `debate-train init`, `schema` and `completion`."""

import argparse
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from debate_protocol.plugins import did_you_mean
from debate_train.interrupts import UsageError
from debate_train.recipe import Recipe
from debate_train.recipe.explain import description, summary
from debate_train.recipe.files import load_recipe, opening, recipe_names
from debate_train.recipe.problems import PHASES, Schema

_LARGER = ("model.name=Qwen/Qwen3-8B-Base",)
METHODS: Mapping[str, Mapping[str, tuple[str, Sequence[str]]]] = {
    "selfplay": {"cpu": ("quickstart", ()), "8b": ("selfplay_v2", ())},
    "sdrl": {
        "cpu": ("sdrl_freq_puzzle", ()),
        "4b": ("sdrl_freq_math", ()),
        "8b": ("sdrl_freq_math", _LARGER),
    },
    "acc": {
        "cpu": ("acc_debate_puzzle", ()),
        "2b": ("acc_debate_gemma2_2b_boolq", ()),
        "7b": ("acc_debate_mistral_7b_boolq", ()),
        "8b": ("acc_debate_llama3_8b_boolq", ()),
    },
    "dapo": {
        "cpu": ("dapo_puzzle", ()),
        "3b": ("dapo_math", ()),
        "8b": ("dapo_math", _LARGER),
    },
    "grpo": {
        "cpu": ("grpo_puzzle", ()),
        "3b": ("grpo_math", ()),
        "8b": ("grpo_math", _LARGER),
    },
    "curriculum": {"cpu": ("curriculum_puzzle", ()), "8b": ("curriculum_math", ())},
}
"""For each method and size the recipe that ships, and what is changed of it."""
_WIDTH = 96
_NEXT = (
    "# debate-train FILE --check says what it does and whether it can, --plan what memory it",
    "# needs, --print the keys that are left out, --explain KEY what may stand at one.",
)


def template(method: str, size: str, name: str, overrides: Sequence[str]) -> str:
    """Return a recipe with a comment at each key, whole: it extends no other.

    Args:
        method: A key of `METHODS`.
        size: A key of the method's: `cpu`, or the model's parameters.
        name: What the recipe is to be called.
        overrides: `key=value` arguments over those of the recipe that ships.

    Raises:
        UsageError: There is no such method or size, or an argument is wrong.
    """
    for what, found, known in (
        ("--method", method, list(METHODS)),
        ("--size", size, list(METHODS.get(method, ()))),
    ):
        if found not in known:
            raise UsageError(
                f"{what}: found {found!r}; expected one of {', '.join(known)}"
                f"{did_you_mean(found, known)}"
            )
    shipped, changes = METHODS[method][size]
    changed = [*changes, *overrides]
    loaded = load_recipe(shipped, [f"name={name}", *changed], model=Recipe)
    lines = [f"# {line}".rstrip() for line in opening(loaded.path)]
    lines.append("#")
    if changed:
        lines.append(f"# Not as in {shipped}, of which the above speaks: {', '.join(changed)}")
    lines += [*_NEXT, ""]
    written = loaded.reading.written
    return "\n".join([*lines, *_mapping(written, Schema((Recipe,)), "", set())]) + "\n"


def _mapping(
    data: Mapping[str, Any], place: Schema, indent: str, said: set[tuple[type, str]]
) -> Iterator[str]:
    """Yield the lines of a mapping; what a key means stands above its first appearance."""
    model = place.model(data)
    for key, value in data.items():
        if model is not None and key in model.model_fields:
            yield from _comment(model, key, place, indent, said)
        if isinstance(value, Mapping) and value:
            yield f"{indent}{key}:"
            yield from _mapping(value, place.child(key, data), f"{indent}  ", said)
        else:
            yield f"{indent}{_flow({key: value})[1:-1]}"


def _comment(
    model: type[BaseModel], key: str, place: Schema, indent: str, said: set[tuple[type, str]]
) -> Iterator[str]:
    if (model, key) in said:
        return
    said.add((model, key))
    text = description(model, key) if key != "type" else ""
    if key == "type" and len(place.models) > 1:
        text = f"One of {', '.join(place.variants)}."
    yield from (f"{indent}# {line}" for line in textwrap.wrap(text, _WIDTH - len(indent)))


def _flow(value: object) -> str:
    return yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6
    ).strip()


_INTERPOLATION = r"\$\{"
_EXTENDS = "A file, or the name of a recipe that ships, from which this one differs."


def recipe_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a recipe's file.

    A file may be a mapping of differences from another, so no key is required; any value may be an
    interpolation; text may be typed as what YAML reads as a number. What only whole recipes show,
    such as a steps' bound, is checked by `--check`.
    """
    schema = model.model_json_schema(schema_generator=_Described)
    schema["properties"]["extends"] = {"type": "string", "description": _EXTENDS}
    difference = {"anyOf": [{"$ref": "#"}, {"type": "null"}]}
    phases = {"type": ["object", "null"], "additionalProperties": difference}
    schema["properties"][PHASES] |= phases
    return {"$schema": GenerateJsonSchema.schema_dialect, **_loosened(schema)}


class _Described(GenerateJsonSchema):
    """Adds what the keys mean, and leaves out what must be given."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return the schema of one model."""
        made, model = super().model_schema(schema), schema["cls"]
        made.pop("required", None)
        made["description"] = summary(model)
        for name, held in made.get("properties", {}).items():
            if name in model.model_fields and (text := description(model, name)):
                held["description"] = text
        return made


def _loosened(schema: Any) -> Any:
    """Return a schema that also takes what the reader of recipes turns into valid values."""
    if isinstance(schema, list):
        return [_loosened(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _loosened(value) for key, value in schema.items()}
    found.pop("discriminator", None)
    if "oneOf" in found:  # Without a `type`, which another file may give, several may hold.
        found["anyOf"] = found.pop("oneOf")
    match found:
        case {"enum": list(known), "type": "string"}:
            del found["enum"], found["type"]
            found["anyOf"] = [{"enum": known}, {"type": "string", "pattern": _INTERPOLATION}]
        case {"type": "string"}:
            found["type"] = ["string", "number", "boolean"]
        case {"type": "number" | "integer" | "boolean" | "array" as kind}:
            found |= {"type": [kind, "string"], "pattern": _INTERPOLATION}
    return found


_COMMANDS = (
    "debate_train.commands.cli",
    "debate_train.commands.rollout",
    "debate_train.commands.evaluate",
    "debate_train.commands.ask",
    "debate_train.commands.preflight",
    "debate_report.page",
    "debate_protocol.cli",
    "debate_rewards.cli",
)
"""Modules of commands, each with a function `command_parser`."""
_BASH = """
_debate_recipes() {{
  compgen -W "{names}" -- "$1"
  compgen -f -- "$1"
}}
"""
_ZSH = """
_debate_recipes() {{
  _alternative 'recipes:recipe:({names})' 'files:file:_files'
}}
"""


def completion(shell: str, words: Sequence[str]) -> str:
    """Return a script that a shell evaluates; `words` also stand in the place of a recipe."""
    import shtab

    recipes = {"bash": "_debate_recipes", "zsh": "_debate_recipes"}
    names = " ".join([*words, *recipe_names()])
    preamble = {"bash": _BASH.format(names=names), "zsh": _ZSH.format(names=names)}
    scripts = []
    for parser in _parsers():
        for action in parser._actions:
            kind = action.type
            if action.dest == "recipe":
                action.complete = recipes  # type: ignore[attr-defined]
            elif kind is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        scripts.append(shtab.complete(parser, shell=shell, preamble=preamble))
    return "\n".join(scripts)


def _parsers() -> list[argparse.ArgumentParser]:
    return [import_module(name).command_parser() for name in _COMMANDS]
