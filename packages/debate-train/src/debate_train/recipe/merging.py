"""How recipes merge: key by key, with the streams of another reward, and without phases."""

from collections.abc import Mapping

from pydantic import BaseModel, TypeAdapter, ValidationError

from debate_protocol.plugins import Handed
from debate_rewards.rewards import RewardChoice
from debate_train.recipe.schema import PHASES, Schema, annotation_of, can_hold

REWARD: TypeAdapter[RewardChoice] = TypeAdapter(RewardChoice)
NEW_STREAM = {"weight": 1.0}


def merge(
    base: Mapping[str, object],
    change: Mapping[str, object],
    schema: Schema,
    *,
    path: str = "",
    dropped: list[str] | None = None,
) -> dict[str, object]:
    """Merge the differences of `change` into `base`.

    Mappings merge key by key; other values replace. A new `type` drops the old variant's keys
    unless the new variant has the key and can take the value. Other shared keys stay, and keys of
    `change` itself always win.

    Args:
        base: The values before; never changed in place.
        change: The differences.
        schema: The keys and variants of this place.
        path: The dotted place for `dropped`; empty at the top, else it ends with a dot.
        dropped: Receives a line for each change of type with dropped keys.
    """
    old_type = schema.tag(base)
    new_type = change.get("type")
    variant = schema.variants.get(new_type) if isinstance(new_type, str) else None
    merged = dict(base)
    if variant is not None and new_type != old_type:
        fields = variant.model_fields
        dropped_keys = []
        for key, value in base.items():
            fits = key in fields and can_hold(annotation_of(fields[key]), value)
            if key != "type" and not fits:
                dropped_keys.append(key)
                del merged[key]
        if dropped_keys and dropped is not None:
            keys = ", ".join(map(str, dropped_keys))
            dropped.append(f"{path}type: {old_type} -> {new_type} drops {keys}")
    # The type decides which schema is below the other keys, so it comes first.
    if "type" in change:
        merged["type"] = change["type"]
    for key, value in change.items():
        if isinstance(value, Mapping):
            old_value = merged.get(key)
            if isinstance(old_value, type | BaseModel | Handed):
                old_value = {"type": old_value}  # A Python object is changed as a mapping is.
            value = merge(
                old_value if isinstance(old_value, Mapping) else {},
                value,
                schema.child(key, merged),
                path=f"{path}{key}.",
                dropped=dropped,
            )
        merged[key] = value
    return merged


def merge_recipes(
    base: Mapping[str, object],
    change: Mapping[str, object],
    schema: Schema,
    *,
    dropped: list[str] | None = None,
) -> dict[str, object]:
    """Merge into a recipe the differences of another recipe or of a phase.

    Besides the rules of `merge`, a change of `reward.type` changes `advantage.streams`, and null
    removes a phase of the recipe.

    Args:
        base: The recipe before; never changed in place.
        change: The differences.
        schema: The schema of whole recipes.
        dropped: Receives a line for each change with dropped keys.
    """
    notes = [] if dropped is None else dropped
    merged = merge(base, change, schema, dropped=notes)
    merged = _replace_streams(base, change, merged, schema, notes)
    # A null takes a phase of the base out; a new phase of null is one without differences.
    base_phases = _mapping_at(base, PHASES)
    phases = dict(_mapping_at(merged, PHASES))
    num_before = len(phases)
    for name, difference in _mapping_at(change, PHASES).items():
        if difference is None and name in base_phases:
            notes.append(f"{PHASES}.{name}: null removes the phase")
            del phases[name]
    return merged if len(phases) == num_before else {**merged, PHASES: phases}


def _replace_streams(
    base: Mapping[str, object],
    change: Mapping[str, object],
    merged: dict[str, object],
    schema: Schema,
    notes: list[str],
) -> dict[str, object]:
    """Replace the old reward's streams by the new reward's; named streams always stay."""
    advantage = merged.get("advantage")
    old_streams = _mapping_at(merged, "advantage", "streams")
    rewards = schema.child("reward", merged)
    old_type = rewards.tag(_mapping_at(base, "reward"))
    new_type = rewards.tag(_mapping_at(merged, "reward"))
    if not isinstance(advantage, Mapping) or not old_streams or new_type in (None, old_type):
        return merged
    try:
        reward_streams = REWARD.validate_python(merged["reward"]).streams
    except ValidationError:  # Its keys are refused when the whole recipe is validated.
        return merged
    named_streams = _mapping_at(change, "advantage", "streams")
    streams: dict[str, object] = {}
    for name, stream in old_streams.items():
        if name in reward_streams or name in named_streams:
            streams[name] = stream
    if not named_streams:
        for name in reward_streams:
            streams.setdefault(name, NEW_STREAM)
    if list(streams) != list(old_streams):
        notes.append(
            f"reward.type: {old_type} -> {new_type} makes advantage.streams {', '.join(streams)} "
            f"of {', '.join(map(str, old_streams))}"
        )
    return {**merged, "advantage": {**advantage, "streams": streams}}


def _mapping_at(values: object, *keys: str) -> Mapping[str, object]:
    """Find the mapping below these keys; empty if it is absent."""
    for key in keys:
        values = values.get(key) if isinstance(values, Mapping) else None
    return values if isinstance(values, Mapping) else {}
