"""Nearest valid names for messages about unknown ones."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Suggest the nearest known name as `; did you mean 'x'?`, or "" where no name is near."""
    nearest = difflib.get_close_matches(str(name), list(known), n=1, cutoff=cutoff)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""
