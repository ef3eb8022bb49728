"""`debate-train init`: a commented recipe to begin with, made of one that ships."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from pydantic import BaseModel

from debate_protocol.plugins import did_you_mean
from debate_train.describing.descriptions import description
from debate_train.errors import UsageError
from debate_train.reading.recipe_file import load_recipe
from debate_train.reading.recipe_schema import Schema
from debate_train.reading.shipped_recipes import opening
from debate_train.recipe import Recipe

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
