"""Debates that wait at their first gate, to be continued once other debates are drawn."""

from dataclasses import dataclass

from debate_protocol.types import DebateRun, Gate


@dataclass(frozen=True, slots=True)
class WaitingDebate:
    """A debate at its first gate."""

    run: DebateRun
    gate: Gate


def stop_at_gate(run: DebateRun, name: str, waiting: dict[str, WaitingDebate]) -> DebateRun:
    """Wrap a debate so that it ends at its first gate.

    A debate with the decision `go_on` enters `waiting` under its name, and its transcript so far
    is the result.
    """
    is_waiting = False
    try:
        pending = next(run)
        while True:
            answer = yield pending
            if isinstance(pending, Gate) and answer == "go_on":
                waiting[name] = WaitingDebate(run, pending)
                is_waiting = True
                return pending.transcript
            pending = run.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        # A waiting run stays open: `go_on` sends it the decision.
        if not is_waiting:
            run.close()


def go_on(debate: WaitingDebate) -> DebateRun:
    """Continue a debate, from the gate at which it waits."""
    pending = debate.gate
    try:
        while True:
            pending = debate.run.send((yield pending))  # type: ignore[assignment]
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        debate.run.close()
