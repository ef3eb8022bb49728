"""Debates that report each played turn, for progress bars."""

from collections.abc import Callable, Sequence

from debate_protocol.types import DebateRun, Gate

Watch = Callable[[Sequence[DebateRun], int, str], list[DebateRun]]
"""Wraps debates to be played: (runs, most turns of a debate, a text for the screen) to runs."""


def unwatched(runs: Sequence[DebateRun], turns: int, what: str) -> list[DebateRun]:
    """Pass debates on as they are."""
    return list(runs)


def counted(
    runs: Sequence[DebateRun], turns: int, changed: Callable[[int, int], None]
) -> list[DebateRun]:
    """Wrap debates so that `changed` is called with (turns played, turns in total).

    Args:
        runs: not started; played in one thread.
        turns: most turns of one debate; those left out by an early end count as played.
        changed: called when the number of played turns grows.
    """
    total = len(runs) * turns
    num_played = 0

    def add(num_more: int) -> None:
        nonlocal num_played
        if num_more:
            num_played += num_more
            changed(num_played, total)

    return [_counted(run, turns, add) for run in runs]


def _counted(run: DebateRun, num_left: int, add: Callable[[int], None]) -> DebateRun:
    try:
        pending = next(run)
        while True:
            replies = yield pending
            if not isinstance(pending, Gate):
                # At most `turns` in all: a bar must not go beyond its total.
                num_turns = min(num_left, len(pending))
                num_left -= num_turns
                add(num_turns)
            pending = run.send(replies)
    except StopIteration as stop:
        add(num_left)
        return stop.value  # type: ignore[no-any-return]
    finally:
        run.close()
