"""The running forms of a batch and the gates they wait at, for every driver."""

from collections.abc import Callable, Sequence

from debate_protocol.types import Ask, DebateRun, Gate, GateDecision, Sent, Transcript
from debate_rollout.errors import EngineConfigError

Select = Callable[[Sequence[Gate]], Sequence[GateDecision]]
"""Answers the gates of a batch: `go_on` goes on, `keep` ends the debate with the turns it has,
`drop` leaves the debate out of the results."""


class Debates:
    """Debates by their place in the batch.

    Args:
        runs: Forms that were started.
        select: Answers gates; without it every debate goes on.
    """

    def __init__(self, runs: Sequence[DebateRun], select: Select | None) -> None:
        self._runs = runs
        self._select = select
        self._gates: dict[int, Gate] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def advance(self, place: int, sent: Sent | None) -> Sequence[Ask] | Transcript | None:
        """Start a debate, or send it what it waits for.

        Returns:
            What it asks now, its transcript when it has ended, or None when it is at a gate.
        """
        run = self._runs[place]
        try:
            waits = next(run) if sent is None else run.send(sent)
        except StopIteration as stop:
            transcript: Transcript = stop.value
            return transcript
        if isinstance(waits, Gate):
            self._gates[place] = waits
            return None
        return waits

    def answer_gates(self) -> list[tuple[int, GateDecision]]:
        """Decide all open gates together, in order of place; return the debates that go on.

        Raises:
            EngineConfigError: When `select` does not decide each gate.
        """
        places = sorted(self._gates)
        gates = [self._gates[place] for place in places]
        self._gates.clear()
        if not gates:
            return []
        decisions: Sequence[GateDecision] = (
            ["go_on"] * len(gates) if self._select is None else self._select(gates)
        )
        if len(decisions) != len(gates):
            raise EngineConfigError(
                f"select gave {len(decisions)} decisions to {len(gates)} gates; expected one a gate"
            )
        going: list[tuple[int, GateDecision]] = []
        for place, decision in zip(places, decisions, strict=True):
            if decision not in ("keep", "drop", "go_on"):
                raise EngineConfigError(
                    f"select decided {decision!r}; expected 'keep', 'drop' or 'go_on'"
                )
            if decision == "drop":
                self._runs[place].close()
            else:
                going.append((place, decision))
        return going

    def close(self) -> None:
        """End every debate that is still under way."""
        for run in self._runs:
            run.close()
