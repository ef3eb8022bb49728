"""Turns played of those that are known, while debates run."""

from collections.abc import Callable, Sequence

from debate_protocol.types import DebateRun, Gate

Watch = Callable[[Sequence[DebateRun], int, str], list[DebateRun]]
"""Returns the same debates to be played in their place; each has at most so many turns, and the
text says what is played."""


def unwatched(runs: Sequence[DebateRun], turns: int, what: str) -> list[DebateRun]:
    """Return the debates as they are."""
    return list(runs)


def counted(
    runs: Sequence[DebateRun], turns: int, changed: Callable[[int, int], None]
) -> list[DebateRun]:
    """Return the debates; while they are played, `changed` hears (turns played, turns known).

    Args:
        runs: Not started; they are played in one thread.
        turns: Most of one debate; those that one which ends early leaves out count as played.
        changed: Is called when the number of played turns grows.
    """
    total, played = len(runs) * turns, 0

    def add(more: int) -> None:
        nonlocal played
        if more:
            played += more
            changed(played, total)

    return [_counted(run, turns, add) for run in runs]


def _counted(run: DebateRun, left: int, add: Callable[[int], None]) -> DebateRun:
    try:
        waits = next(run)
        while True:
            sent = yield waits
            if not isinstance(waits, Gate):
                found = min(left, len(waits))
                left -= found
                add(found)
            waits = run.send(sent)
    except StopIteration as stop:
        add(left)
        return stop.value  # type: ignore[no-any-return]
    finally:
        run.close()
