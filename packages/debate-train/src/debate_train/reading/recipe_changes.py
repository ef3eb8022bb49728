"""Which keys differ between two recipes as they are kept in run directories."""

import json
import math
from collections.abc import Iterator, Mapping

import yaml

Changes = dict[str, dict[str, object]]
"""Full dotted keys, each with its values `before` and `now`; one that is not there is left out."""


def recipe_changes(before: str, now: str) -> Changes:
    """Return what differs between two resolved recipes.

    Both are read as they are written, so what the environment gives stays `${oc.env:…}`.
    """
    old, new = (dict(_leaves(yaml.safe_load(text) or {})) for text in (before, now))
    return {
        key: {
            when: _json(values[key])
            for when, values in (("before", old), ("now", new))
            if key in values
        }
        for key in old | new
        if key not in old or key not in new or not _same(old[key], new[key])
    }


def shown_change(change: Mapping[str, object]) -> str:
    """Return a change as `before → now`."""
    return " → ".join(
        json.dumps(change[when], ensure_ascii=False) if when in change else "absent"
        for when in ("before", "now")
    )


def _leaves(values: Mapping[object, object], above: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


def _same(one: object, other: object) -> bool:
    return type(one) is type(other) and bool(one == other)


def _json(value: object) -> object:
    """Return what JSON can hold; numbers that are not finite as YAML writes them."""
    if isinstance(value, Mapping):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)
