"""Errors that end a command with one clear message and no traceback."""

from debate_rollout.errors import EngineConfigError, MissingExtraError


class UsageError(ValueError):
    """Where, what was found, what was expected, and what to do: exit code 2."""


class RunFailure(RuntimeError):
    """A run that cannot go on through no fault of its recipe: one clear message, exit code 1."""


class RecipeError(UsageError):
    """A recipe that cannot be run as written."""


class DataError(UsageError):
    """Questions that are missing, empty or malformed."""


class ModelError(UsageError):
    """A model or tokenizer that cannot be used."""


REFUSALS = (UsageError, EngineConfigError, MissingExtraError)
"""What ends a command with exit code 2."""
