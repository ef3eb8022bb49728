"""Play debates: engines, token rendering and drivers."""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from debate_rollout.drivers import play, play_each
    from debate_rollout.engine import Engine, Request, Sampling
    from debate_rollout.engines import (
        OpenAIEngine,
        ScriptedEngine,
        TransformersEngine,
        VllmEngine,
        VllmServerEngine,
    )

_HOMES = {
    "drivers": ("play", "play_each"),
    "engine": ("Engine", "Request", "Sampling"),
    "engines": (
        *("OpenAIEngine", "ScriptedEngine", "TransformersEngine"),
        *("VllmEngine", "VllmServerEngine"),
    ),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    # Importing a name's module only when it is asked for keeps `import debate_rollout` quick.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Engine",
    "OpenAIEngine",
    "Request",
    "Sampling",
    "ScriptedEngine",
    "TransformersEngine",
    "VllmEngine",
    "VllmServerEngine",
    "play",
    "play_each",
]
