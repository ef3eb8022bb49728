"""A recipe as a single complete file, as in run directories."""

import re
from collections.abc import Mapping
from typing import Any, cast

import yaml
from pydantic import BaseModel

from debate_train.recipe.files import LoadedRecipe, phase_reading
from debate_train.recipe.problems import RawRecipe
from debate_train.recipe.schema import PHASES, Schema

# The beginning of an interpolation, after backslashes.
INTERPOLATION = re.compile(r"(\\*)\$\{")


def resolved_yaml(loaded: LoadedRecipe[Any]) -> str:
    """Write the recipe as a single YAML file without extension, override and secret.

    Defaults are written so the file still describes the run after defaults change. Interpolations
    are resolved; interpolations of the environment stay as written.
    """
    reading = loaded.reading
    schema = Schema((type(loaded.recipe),))
    content = _all_values(loaded.recipe, reading)
    if reading.values.get(PHASES):
        base = {key: value for key, value in content.items() if key != PHASES}
        differences = {}
        for name, phase in loaded.phases.items():
            phase_values = _all_values(phase, phase_reading(reading, name, schema))
            differences[name] = _difference(base, phase_values)
        content[PHASES] = differences
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100))


def _all_values(recipe: BaseModel, reading: RawRecipe) -> dict[str, object]:
    """List all values of a recipe with defaults; values of the environment stay as written."""
    values = _escape(recipe.model_dump(mode="json", fallback=repr))
    reading.put_back(values)
    return cast(dict[str, object], values)


def _difference(base: dict[str, object], whole: dict[str, object]) -> dict[str, object]:
    """Compute the change from `base` to `whole`, for `merge`."""
    if base.get("type") != whole.get("type"):
        return whole
    if _reward_type(base) != _reward_type(whole):
        # A merge replaces streams with the type of the reward, so all are written.
        base = _without_streams(base)
    difference: dict[str, object] = {}
    for key, value in whole.items():
        base_value = base.get(key)
        if key == PHASES or (key in base and base_value == value):
            continue
        if isinstance(value, dict) and isinstance(base_value, dict):
            value = _difference(base_value, value)
        difference[key] = value
    return difference


def _reward_type(values: Mapping[str, object]) -> object:
    reward = values.get("reward")
    return reward.get("type") if isinstance(reward, Mapping) else None


def _without_streams(values: dict[str, object]) -> dict[str, object]:
    advantage = values.get("advantage")
    if not isinstance(advantage, Mapping):
        return values
    others = {key: value for key, value in advantage.items() if key != "streams"}
    return {**values, "advantage": others}


def _escape(value: object) -> object:
    """Escape `${` in all texts, to be read as text again."""
    if isinstance(value, dict):
        return {key: _escape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escape(item) for item in value]
    if isinstance(value, str):
        return INTERPOLATION.sub(lambda match: match[1] * 2 + "\\${", value)
    return value
