"""The one merge rule of recipes: for `extends:`, for phases and for the command line.

It is not `OmegaConf.merge`, which has no place for the rule on `type`: both mappings would have to
be walked by the schema first, and this walk is all that a merge is. It also differs where the base
has an interpolation (OmegaConf merges into a copy of what that names, here the change replaces it)
and where the change is `???` (OmegaConf lets the base stand).
"""

from collections.abc import Mapping

from debate_train.reading.recipe_schema import Schema, annotation_of, can_hold


def merge(
    base: Mapping[str, object],
    change: Mapping[str, object],
    schema: Schema,
    *,
    path: str = "",
    dropped: list[str] | None = None,
) -> dict[str, object]:
    """Return `base` with the differences of `change`.

    Mappings merge key by key; anything else replaces. Where `change` gives a mapping another
    `type`, the keys of the old variant that the new one does not have, or cannot hold the value
    of, are dropped; other keys that both have stay, and keys of `change` itself always hold.

    Args:
        base: What is changed; left as it is.
        change: The differences.
        schema: What may stand at this place, with the keys of each variant.
        path: Where this is, for `dropped`; empty at the top, else it ends with a dot.
        dropped: Receives one line for each change of type that dropped keys.
    """
    merged = _keys_that_stay(base, change, schema, path, dropped)
    if "type" in change:
        merged["type"] = change["type"]
    for key, value in change.items():
        old = merged.get(key)
        if isinstance(value, Mapping):
            merged[key] = merge(
                old if isinstance(old, Mapping) else {},
                value,
                schema.child(key, merged),
                path=f"{path}{key}.",
                dropped=dropped,
            )
        else:
            merged[key] = value
    return merged


def _keys_that_stay(
    base: Mapping[str, object],
    change: Mapping[str, object],
    schema: Schema,
    path: str,
    dropped: list[str] | None,
) -> dict[str, object]:
    old, new = schema.tag(base), change.get("type")
    variant = schema.variants.get(new) if isinstance(new, str) else None
    if variant is None or new == old:
        return dict(base)
    fields = variant.model_fields
    gone = [
        key
        for key, value in base.items()
        if key != "type" and not (key in fields and can_hold(annotation_of(fields[key]), value))
    ]
    if gone and dropped is not None:
        dropped.append(f"{path}type: {old} -> {new} drops {', '.join(map(str, gone))}")
    return {key: value for key, value in base.items() if key not in gone}
