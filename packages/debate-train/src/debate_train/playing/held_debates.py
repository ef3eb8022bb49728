"""Debates that wait at their first gate while others are still drawn."""

from dataclasses import dataclass

from debate_protocol.types import DebateRun, Gate


@dataclass(frozen=True, slots=True)
class Held:
    """A debate at its first gate."""

    run: DebateRun
    gate: Gate


def held(run: DebateRun, name: str, waiting: dict[str, Held]) -> DebateRun:
    """Return a debate to be played in the place of this one: it ends at its first gate.

    Where it may go on, it is put into `waiting` under its name, and what was played so far is its
    transcript.
    """
    is_held = False
    try:
        waits = next(run)
        while True:
            sent = yield waits
            if isinstance(waits, Gate) and sent == "go_on":
                waiting[name], is_held = Held(run, waits), True
                return waits.transcript
            waits = run.send(sent)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        if not is_held:
            run.close()


def go_on(one: Held) -> DebateRun:
    """Return the rest of a debate, which begins with the gate at which it waits."""
    waits, run = one.gate, one.run
    try:
        while True:
            waits = run.send((yield waits))  # type: ignore[assignment]
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        run.close()
