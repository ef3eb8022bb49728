"""How much work code does, as its number of calls: no busy machine changes it."""

import cProfile
import pstats
from collections.abc import Callable


def num_calls(act: Callable[[], object]) -> int:
    """Count the calls of functions, those written in C included."""
    with cProfile.Profile() as profile:
        act()
    total_calls: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    return total_calls
