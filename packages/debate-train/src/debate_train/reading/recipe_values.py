"""Interpolations: resolved for the run, kept as text wherever the environment takes part."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import (
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)
from omegaconf.resolvers import oc

from debate_train.errors import RecipeError

_ABSENT = object()
SHORTEST_SECRET = 4
"""Shorter environment values are not searched for in messages: they match by accident."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The two readings of a recipe's raw values.

    Attributes:
        resolved: Every interpolation replaced by its value; what a run uses.
        written: The same, but text that draws on the environment stays as it is written;
            what goes to files and messages.
        environment: The variables that were read, as (name, value).
    """

    resolved: dict[Any, Any]
    written: dict[Any, Any]
    environment: tuple[tuple[str, str], ...] = ()

    def redact(self, text: str) -> str:
        """Return the text with environment values replaced by the interpolation."""
        for name, value in sorted(self.environment, key=lambda item: -len(item[1])):
            if len(value) >= SHORTEST_SECRET:
                text = text.replace(value, f"${{oc.env:{name}}}")
        return text


def resolve(raw: dict[Any, Any]) -> Reading:
    """Resolve the interpolations of merged raw values.

    Raises:
        RecipeError: One cannot be resolved.
    """
    resolver = _Resolver()
    with resolver.watched_environment():
        resolved, written = resolver.mapping(OmegaConf.create(raw))
    return Reading(resolved, written, tuple(set(resolver.environment)))


class _Resolver:
    def __init__(self) -> None:
        self.environment: list[tuple[str, str]] = []

    @contextmanager
    def watched_environment(self) -> Iterator[None]:
        """Note every environment variable that is read, whatever expression reads it."""

        def env(key: str, default: object = _ABSENT) -> object:
            value = oc.env(key) if default is _ABSENT else oc.env(key, default)
            self.environment.append((key, os.environ.get(key, "")))
            return value

        OmegaConf.register_resolver("oc.env", env, replace=True)
        try:
            yield
        finally:
            OmegaConf.register_resolver("oc.env", oc.env, replace=True)

    def mapping(self, config: DictConfig) -> tuple[dict[Any, Any], dict[Any, Any]]:
        pairs = {key: self._item(config, key) for key in config}
        return {k: pair[0] for k, pair in pairs.items()}, {k: pair[1] for k, pair in pairs.items()}

    def _sequence(self, config: ListConfig) -> tuple[list[object], list[object]]:
        pairs = [self._item(config, index) for index in range(len(config))]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def _item(self, parent: DictConfig | ListConfig, key: Any) -> tuple[object, object]:
        if not OmegaConf.is_interpolation(parent, key):
            value = _plain(parent, key)
            if isinstance(value, DictConfig):
                return self.mapping(value)
            return self._sequence(value) if isinstance(value, ListConfig) else (value, value)
        before = len(self.environment)
        value = _plain(parent, key)
        if len(self.environment) == before:
            return value, value
        raw = OmegaConf.to_container(parent, resolve=False)
        return value, raw[key]  # type: ignore[index]


def _plain(parent: DictConfig | ListConfig, key: Any) -> Any:
    try:
        value = parent[key]
        if OmegaConf.is_interpolation(parent, key) and OmegaConf.is_config(value):
            return OmegaConf.to_container(value, resolve=True)
        return value
    except MissingMandatoryValue as error:
        raise RecipeError(f"{error.full_key}: found ??? (left open); expected a value") from error
    except OmegaConfBaseException as error:
        place = error.full_key or str(key)
        reason = str(error).strip().splitlines()[0]
        if isinstance(error, InterpolationResolutionError) and "Environment variable" in reason:
            reason = reason[reason.index("Environment variable") :].rstrip('"')
        raise RecipeError(
            f"{place}: {reason}; expected ${{oc.env:NAME}} of a variable that is set, "
            "${oc.env:NAME,default}, or ${other.key} of this recipe"
        ) from error
    except RecursionError as error:
        raise RecipeError(f"{key}: this interpolation leads back to itself") from error
