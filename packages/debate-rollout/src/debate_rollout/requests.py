"""Requests of running debates: from asks to an engine, their age, second try and end."""

import difflib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from debate_protocol.types import Ask, DebateRun, Gate, GateDecision, Reply, Sent, Transcript
from debate_rollout.engine import (
    EngineConfigError,
    EngineFailure,
    Finished,
    Request,
    RetriesExhaustedError,
    Sampling,
    StreamingEngine,
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and whose it is: ask `number` of those that debate `place` waits for."""

    place: int
    number: int
    request: Request

    def failure(self, cause: Exception) -> EngineFailure:
        """Return the error for a request that failed again after it was retried."""
        ask = self.request.ask
        how = "failed twice, the second time on this request alone"
        if isinstance(cause, RetriesExhaustedError):
            how = "gave this request up"
        return EngineFailure(
            f"debate {self.place} (question {ask.question.id!r}), agent {ask.agent}, "
            f"round {ask.round}: the engine {how} "
            f"({len(self.request.prompt_ids)} prompt tokens): {type(cause).__name__}: {cause}"
        )


class Requests:
    """Makes requests: prompts by the renderer, sampling from the ask.

    Args:
        renderer: The engine's; None for engines that take messages.
        max_tokens: Most tokens of a reply whose ask sets none.
        sampling: Fields of `Sampling` that replace what the asks say.

    Raises:
        EngineConfigError: When `sampling` names no field of `Sampling`.
    """

    def __init__(self, renderer: Any, max_tokens: int, sampling: Mapping[str, object]) -> None:
        known = [field.name for field in fields(Sampling)]
        for name in sampling:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; nearest: {near[0]!r}" if near else ""
                raise EngineConfigError(
                    f"sampling.{name}: expected one of {', '.join(known)}{hint}"
                )
        self._renderer = renderer
        self._max_tokens = max_tokens
        self._sampling = dict(sampling)

    def make(self, place: int, number: int, ask: Ask) -> Asked:
        """Return an ask as a request."""
        wanted: dict[str, Any] = {
            "max_tokens": self._max_tokens if ask.max_tokens is None else ask.max_tokens,
            "temperature": ask.temperature,
            "stop": ask.stop,
            "seed": ask.seed,
        }
        ids = () if self._renderer is None else self._renderer.render(ask).prompt_ids
        return Asked(place, number, Request(ask, Sampling(**wanted | self._sampling), ids))


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


_LONG_S = 60.0
"""One wait of `collect` at most."""
_PAUSE_S = 0.01
"""A rest when an engine that should wait does not, so that its fault costs no processor."""


@dataclass(frozen=True, slots=True)
class _Open:
    asked: Asked
    is_second_try: bool


class Flight:
    """Submits requests and hands over their replies.

    A request that ends with an exception, or is older than `timeout_s`, is cancelled and tried
    once more, unless its engine has tried it again itself (`RetriesExhaustedError`).

    Args:
        engine: Answers.
        timeout_s: Most seconds from submitting a request to its reply; None sets no limit.
    """

    def __init__(self, engine: StreamingEngine, timeout_s: float | None) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._open: dict[int, _Open] = {}
        # The limit is the same for all, so those submitted first are due first.
        self._due: deque[tuple[float, int]] = deque()
        self._failure: EngineFailure | None = None

    def submit(self, asked: Asked) -> None:
        """Send a request.

        Raises:
            EngineFailure: When the engine refuses it twice.
        """
        self._submit(_Open(asked, is_second_try=False))

    def wait(self, patience_s: float = _LONG_S) -> list[tuple[Asked, Reply]]:
        """Return replies that are in; waits for the first, at most about `patience_s`.

        Raises:
            EngineFailure: When a request has failed twice; not before the replies that came with
                the failure were handed over.
        """
        replies = [] if self._failure else self._arrived(patience_s)
        if self._failure and not replies:
            raise self._failure
        return replies

    def close(self) -> None:
        """Cancel what is still open."""
        for ticket in self._open:
            self._engine.cancel(ticket)
        self._open.clear()

    def _arrived(self, patience_s: float) -> list[tuple[Asked, Reply]]:
        replies: list[tuple[Asked, Reply]] = []
        for done in self._collect(min(patience_s, self._until_due())):
            one = self._open.pop(done.ticket, None)
            if one is None:
                continue
            if isinstance(done.outcome, Exception):
                self._end(one, done.outcome)
            else:
                replies.append((one.asked, done.outcome))
        self._end_overdue()
        return replies

    def _submit(self, one: _Open) -> None:
        try:
            ticket = self._engine.submit(one.asked.request)
        except Exception as error:
            self._try_again(one, error)
            return
        self._open[ticket] = one
        if self._timeout_s is not None:
            self._due.append((time.monotonic() + self._timeout_s, ticket))

    def _try_again(self, one: _Open, error: Exception) -> None:
        if one.is_second_try or isinstance(error, RetriesExhaustedError):
            raise one.asked.failure(error) from error
        self._submit(_Open(one.asked, is_second_try=True))

    def _end(self, one: _Open, error: Exception) -> None:
        try:
            self._try_again(one, error)
        except EngineFailure as failure:
            self._failure = self._failure or failure

    def _collect(self, patience_s: float) -> list[Finished]:
        began = time.monotonic()
        try:
            found = self._engine.collect(patience_s)
        except Exception as error:
            # The engine as a whole has failed: every open request has.
            return [Finished(ticket, error) for ticket in list(self._open)]
        if not found and self._open and time.monotonic() - began < patience_s / 2:
            time.sleep(min(_PAUSE_S, patience_s))
        return found

    def _until_due(self) -> float:
        while self._due and self._due[0][1] not in self._open:
            self._due.popleft()
        return max(0.0, self._due[0][0] - time.monotonic()) if self._due else _LONG_S

    def _end_overdue(self) -> None:
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            _, ticket = self._due.popleft()
            one = self._open.pop(ticket, None)
            if one is not None:
                self._engine.cancel(ticket)
                self._end(one, TimeoutError(f"no reply within {self._timeout_s:g} s"))
