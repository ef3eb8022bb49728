"""Train and measure language models on debate."""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from debate_train.running.run_context import StepEnd
    from debate_train.training import Trained, train

_MODULES = {"StepEnd": "running.run_context", "Trained": "training", "train": "training"}


def __getattr__(name: str) -> object:
    # Importing a name's module only when it is asked for keeps the commands quick to start.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = ["StepEnd", "Trained", "train"]
