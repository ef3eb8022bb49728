"""Errors that are the user's to mend: one clear message, exit code 2, no traceback."""


class UsageError(ValueError):
    """Where, what was found, what was expected, and what to do."""


class RecipeError(UsageError):
    """A recipe that cannot be run as written."""


class DataError(UsageError):
    """Questions that are missing, empty or malformed."""


class ModelError(UsageError):
    """A model or tokenizer that cannot be used."""
