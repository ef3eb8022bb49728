"""Rewards that other installed packages bring, found by entry point."""

import warnings
from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points
from typing import Literal, get_args, get_origin

from pydantic import BaseModel

GROUP = "debate_rewards.rewards"
"""The entry point group; an entry's name is the reward's `type`."""


class RewardNotLoadedWarning(UserWarning):
    """An installed package offers a reward that cannot be used; the others can."""


def third_party_rewards(taken: Collection[str]) -> dict[str, type[BaseModel]]:
    """Return the rewards of other packages by `type`.

    One that cannot be imported, is no reward model, or takes a name that is already there is left
    out with a `RewardNotLoadedWarning` that names the entry point and its package.

    Args:
        taken: Names that are not free.
    """
    found: dict[str, type[BaseModel]] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda e: (e.name, e.value)):
        known = found.get(entry.name)
        if entry.name in taken:
            _warn(entry, "found a name that is taken; expected another one")
        elif known is None:
            reward = _load(entry)
            if reward is not None:
                found[entry.name] = reward
        elif entry.value != f"{known.__module__}:{known.__qualname__}":
            _warn(entry, f"found a second reward of this name; {known.__module__} brings the first")
    return found


def _load(entry: EntryPoint) -> type[BaseModel] | None:
    try:
        loaded = entry.load()
    except Exception as error:  # Whatever another package does, our own rewards must work.
        _warn(entry, f"cannot be imported: {type(error).__name__}: {error}")
        return None
    problem = _problem(loaded, entry.name)
    if problem is None:
        assert isinstance(loaded, type)
        return loaded
    _warn(entry, problem)
    return None


def _problem(loaded: object, name: str) -> str | None:
    if not (isinstance(loaded, type) and issubclass(loaded, BaseModel)):
        return f"found {loaded!r}; expected a pydantic model"
    field = loaded.model_fields.get("type")
    annotation = None if field is None else field.annotation
    if get_origin(annotation) is not Literal or get_args(annotation) != (name,):
        return f'expected a field type: Literal["{name}"] = "{name}" in {loaded.__name__}'
    if not any("__call__" in vars(parent) for parent in loaded.__mro__):
        return f"expected {loaded.__name__} to have __call__(transcripts)"
    return None


def _warn(entry: EntryPoint, problem: str) -> None:
    package = entry.dist.name if entry.dist is not None else "?"
    warnings.warn(
        f"reward {entry.name!r} of package {package} ({entry.value}): {problem}",
        RewardNotLoadedWarning,
        stacklevel=4,
    )
