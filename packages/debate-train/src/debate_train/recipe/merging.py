"""How whole recipes merge: by keys, with the streams of another reward, and without phases."""

from collections.abc import Mapping

from pydantic import TypeAdapter, ValidationError

from debate_rewards.rewards import RewardChoice
from debate_train.recipe.problems import PHASES, Schema, merge

_REWARD: TypeAdapter[RewardChoice] = TypeAdapter(RewardChoice)
_OWN_STREAM = {"weight": 1.0}


def merge_recipes(
    base: Mapping[str, object],
    change: Mapping[str, object],
    schema: Schema,
    *,
    dropped: list[str] | None = None,
) -> dict[str, object]:
    """Return a recipe with the differences of another, or of one of its phases.

    Beside what `merge` does, a change of `reward.type` changes `advantage.streams`, and a phase of
    the recipe that the change sets to null is removed.

    Args:
        base: What is changed; left as it is.
        change: The differences.
        schema: Of whole recipes.
        dropped: Receives one line for each change that dropped keys.
    """
    notes = [] if dropped is None else dropped
    merged = merge(base, change, schema, dropped=notes)
    merged = _with_streams_of_reward(base, change, merged, schema, notes)
    return _without_removed_phases(base, change, merged, notes)


def _with_streams_of_reward(
    base: Mapping[str, object],
    change: Mapping[str, object],
    merged: dict[str, object],
    schema: Schema,
    notes: list[str],
) -> dict[str, object]:
    """Replace the streams of the old reward by those of the new one; named ones always hold."""
    advantage, streams = merged.get("advantage"), _mapping_at(merged, "advantage", "streams")
    rewards = schema.child("reward", merged)
    old_type = rewards.tag(_mapping_at(base, "reward"))
    new_type = rewards.tag(_mapping_at(merged, "reward"))
    if not isinstance(advantage, Mapping) or not streams or new_type in (None, old_type):
        return merged
    try:
        rewarded = _REWARD.validate_python(merged["reward"]).streams
    except ValidationError:  # Its keys are refused when the whole recipe is validated.
        return merged
    named = _mapping_at(change, "advantage", "streams")
    swapped = {name: own for name, own in streams.items() if name in rewarded or name in named}
    if not named:
        swapped |= {name: _OWN_STREAM for name in rewarded if name not in swapped}
    if list(swapped) != list(streams):
        text = f"reward.type: {old_type} -> {new_type} makes advantage.streams"
        notes.append(f"{text} {', '.join(swapped)} of {', '.join(map(str, streams))}")
    return {**merged, "advantage": {**advantage, "streams": swapped}}


def _without_removed_phases(
    base: Mapping[str, object],
    change: Mapping[str, object],
    merged: dict[str, object],
    notes: list[str],
) -> dict[str, object]:
    """Remove the phases of the base that the change sets to null; a new one has no differences."""
    known = _mapping_at(base, PHASES)
    changed = _mapping_at(change, PHASES).items()
    removed = [name for name, difference in changed if difference is None and name in known]
    if not removed:
        return merged
    notes += [f"{PHASES}.{name}: null removes the phase" for name in removed]
    phases = _mapping_at(merged, PHASES)
    return {**merged, PHASES: {name: own for name, own in phases.items() if name not in removed}}


def _mapping_at(values: object, *keys: str) -> Mapping[str, object]:
    """Return the mapping below these keys, empty where there is none."""
    for key in keys:
        values = values.get(key) if isinstance(values, Mapping) else None
    return values if isinstance(values, Mapping) else {}
