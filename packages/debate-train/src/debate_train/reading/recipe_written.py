"""The recipe of a run directory: complete, valid as a recipe again, and without secrets."""

import re
from typing import Any, cast

import yaml
from pydantic import BaseModel

from debate_train.reading.recipe_file import LoadedRecipe, phase_reading
from debate_train.reading.recipe_schema import PHASES, Schema
from debate_train.reading.recipe_values import Reading

_OPENING = re.compile(r"(\\*)\$\{")


def resolved_yaml(loaded: LoadedRecipe[Any]) -> str:
    """Return the recipe as one YAML file: nothing left to extend or override, no secrets.

    Defaults stand in it too, so that it still says what was run when defaults change.
    Interpolations are resolved, except that those of the environment stay as they are written.
    """
    reading, schema = loaded.reading, Schema((type(loaded.recipe),))
    full = _complete(loaded.recipe, reading)
    if reading.resolved.get(PHASES):
        base = {key: value for key, value in full.items() if key != PHASES}
        full[PHASES] = {
            name: _difference(base, _complete(phase, phase_reading(reading, name, schema)))
            for name, phase in loaded.phases.items()
        }
    return str(yaml.safe_dump(full, sort_keys=False, allow_unicode=True, width=100))


def _complete(recipe: BaseModel, reading: Reading) -> dict[str, object]:
    full = cast(dict[str, object], _as_text(recipe.model_dump(mode="json")))
    _keep_written(full, reading.resolved, reading.written)
    return full


def _difference(base: dict[str, object], whole: dict[str, object]) -> dict[str, object]:
    """Return what `merge` must be given to make `whole` of `base`."""
    if base.get("type") != whole.get("type"):
        return whole
    found: dict[str, object] = {}
    for key, value in whole.items():
        old = base.get(key)
        if key == PHASES or (key in base and old == value):
            continue
        if isinstance(value, dict) and isinstance(old, dict):
            value = _difference(old, value)
        found[key] = value
    return found


def _as_text(value: object) -> object:
    """Return values with `${` written so that it is read as text again."""
    if isinstance(value, dict):
        return {key: _as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_text(item) for item in value]
    if isinstance(value, str):
        return _OPENING.sub(lambda match: match[1] * 2 + "\\${", value)
    return value


def _keep_written(full: Any, data: Any, written: Any) -> None:
    """Put text that draws on the environment back in place of its value."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        inside = key in full if isinstance(full, dict) else key < len(full)
        if not inside:
            continue
        kind = type(value)
        if kind in (dict, list) and type(full[key]) is kind and type(written[key]) is kind:
            _keep_written(full[key], value, written[key])
        elif written[key] != value:
            full[key] = written[key]
