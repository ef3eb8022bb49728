"""Errors with one clear message instead of a traceback."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from debate_protocol.command_line import UsageError as UsageError
from debate_rollout.engine import EngineConfigError, MissingExtraError


class RunFailure(RuntimeError):
    """A run that cannot go on through no fault of its recipe: one clear message, exit code 1."""


class RecipeError(UsageError):
    """A recipe that cannot be run as written."""


class DataError(UsageError):
    """Questions that are missing, empty or malformed."""


class ModelError(UsageError):
    """A model or tokenizer that cannot be used."""


REFUSALS = (UsageError, EngineConfigError, MissingExtraError)
"""Errors that end a command with exit code 2."""


@contextmanager
def errors_only(library: str) -> Iterator[None]:
    """Keep a library from logging warnings.

    An unreachable hub, for example, logs two lines for each of six attempts, and our refusal says
    the same in one.
    """
    logger = logging.getLogger(library)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
