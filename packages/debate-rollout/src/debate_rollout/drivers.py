"""Drivers: run debates against an engine, in lock-step or each at its own pace."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import count
from math import inf
from operator import itemgetter
from typing import Any

from debate_protocol.plugins import did_you_mean
from debate_protocol.types import Ask, DebateRun, Gate, GateDecision, Reply, Sent, Transcript
from debate_rollout.engine import (
    Engine,
    EngineConfigError,
    EngineFailure,
    Finished,
    Queue,
    Request,
    RetriesExhaustedError,
    Sampling,
    streaming,
)
from debate_rollout.pacing import (
    AUTO,
    DRIVERS,
    TIMEOUT_S,
    Auto,
    CacheRoom,
    DriverChoice,
    DriverConfig,
    FreeRunning,
    Held,
    LockStep,
)

__all__ = [
    "AUTO",
    "DRIVERS",
    "Auto",
    "DriverChoice",
    "DriverConfig",
    "FreeRunning",
    "LockStep",
    "play",
    "play_each",
]


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

    _calls = count()  # Debates of two calls of `play` are two sessions.

    def __init__(self, renderer: Any, max_tokens: int, sampling: Mapping[str, object]) -> None:
        known = [field.name for field in fields(Sampling)]
        for name in sampling:
            if name not in known:
                near = f"{', '.join(known)}{did_you_mean(name, known)}"
                raise EngineConfigError(f"sampling.{name}: expected one of {near}")
        self._renderer, self._max_tokens = renderer, max_tokens
        self._sampling = dict(sampling)
        self._first_session = next(self._calls) << 32

    def make(self, place: int, number: int, ask: Ask) -> Asked:
        """Return an ask as a request."""
        wanted: dict[str, Any] = {
            "max_tokens": self._max_tokens if ask.max_tokens is None else ask.max_tokens,
            "temperature": ask.temperature,
            "stop": ask.stop,
            "seed": ask.seed,
        }
        ids = () if self._renderer is None else self._renderer.render(ask).prompt_ids
        sampling = Sampling(**wanted | self._sampling)
        return Asked(place, number, Request(ask, sampling, ids, self._first_session + place))


Select = Callable[[Sequence[Gate]], Sequence[GateDecision]]
"""Answers the gates of a batch: `go_on`, `keep` (end with the turns so far) or `drop`."""


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
        if len(decisions) != len(gates) or not {*decisions} <= {"keep", "drop", "go_on"}:
            raise EngineConfigError(
                f"select decided {list(decisions)} on {len(gates)} gates; expected 'keep', 'drop' "
                "or 'go_on' for each"
            )
        going: list[tuple[int, GateDecision]] = []
        for place, decision in zip(places, decisions, strict=True):
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
        timeout_s: Most seconds from submitting a request to its reply.
        room: Of the engine's cache, where it says it.
    """

    def __init__(self, engine: Queue, timeout_s: float, room: CacheRoom | None = None) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._open: dict[int, _Open] = {}
        # The limit is the same for all, so those submitted first are due first.
        self._due: deque[tuple[float, int]] = deque()
        self._failure: EngineFailure | None = None
        self._held = None if room is None else Held(room)

    @property
    def most(self) -> float:
        """How many debates should be under way."""
        return inf if self._held is None else self._held.room.debates

    def submit(self, asked: Sequence[Asked]) -> None:
        """Send all requests that a debate makes at once.

        Raises:
            EngineFailure: When the engine refuses one twice.
        """
        if self._held is not None:
            self._held.ask(asked[0].place, [one.request for one in asked])
        for one in asked:
            self._submit(_Open(one, is_second_try=False))

    def end(self, place: int) -> None:
        """Take note that a debate has ended."""
        if self._held is not None:
            self._held.end(place)

    def wait(self, patience_s: float) -> list[tuple[Asked, Reply]]:
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
            if isinstance(done.outcome, Reply):
                replies.append((one.asked, done.outcome))
                if self._held is not None:
                    self._held.hear(one.asked.place, one.asked.request.ask.agent, done.outcome)
            else:
                self._end(one, done.outcome)
        self._end_overdue()
        return replies

    def _submit(self, one: _Open) -> None:
        try:
            ticket = self._engine.submit(one.asked.request)
        except Exception as error:
            return self._try_again(one, error)
        self._open[ticket] = one
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


class _Batches:
    """Lets an engine that answers batches take single requests: `collect` is one call for all.

    After a call that failed, what is open is asked one by one: what failed as a batch may pass
    alone, and what fails again has a name.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: dict[int, Request] = {}
        self._tickets = count()
        self._one_by_one = False

    def submit(self, request: Request) -> int:
        ticket = next(self._tickets)
        self._open[ticket] = request
        return ticket

    def collect(self, timeout_s: float) -> list[Finished]:
        tickets = list(self._open)[: 1 if self._one_by_one else None]
        asked = [self._open.pop(ticket) for ticket in tickets]
        try:
            replies = self._engine.generate(asked)
            if len(replies) != len(asked):
                raise EngineFailure(
                    f"the engine gave {len(replies)} replies to {len(asked)} requests"
                )
        except Exception as error:
            self._one_by_one = True
            return [Finished(ticket, error) for ticket in tickets]
        self._one_by_one = self._one_by_one and bool(self._open)
        return list(map(Finished, tickets, replies))

    def cancel(self, ticket: int) -> None:
        self._open.pop(ticket, None)


_BURST = 64
"""Debates that go on before the engine is looked at again: it works while prompts are made."""


_Waiting = dict[int, list[Reply | None]]
"""By the place of a debate the replies that it waits for, None where one is not in."""


def _run(
    debates: Debates, flight: Flight, requests: Requests, in_flight: int | None
) -> Iterator[tuple[int, Transcript]]:
    """Yield (place, transcript) as debates end.

    Debates under way go before those not yet begun. Gates are answered when nothing else can run.

    Args:
        debates: All are run to their ends.
        flight: Sends the requests.
        requests: Makes the requests.
        in_flight: Most debates that wait for replies at once; those at a gate do not count. None
            is lock-step: all that can ask do, and then wait until all replies are in.

    Raises:
        EngineFailure: When a request has failed twice.
    """
    most, burst = (inf, inf) if in_flight is None else (in_flight, _BURST)
    ready: deque[tuple[int, Sent | None]] = deque((place, None) for place in range(len(debates)))
    waiting: _Waiting = {}
    try:
        while ready or waiting:
            begun = 0
            while ready and begun < burst and len(waiting) < min(most, flight.most):
                begun += 1
                place, sent = ready.popleft()
                found = debates.advance(place, sent)
                if isinstance(found, Transcript):
                    flight.end(place)
                    yield place, found
                elif found:
                    waiting[place] = [None] * len(found)
                    flight.submit([requests.make(place, *one) for one in enumerate(found)])
                elif found is not None:
                    ready.appendleft((place, []))
            if waiting:
                can_go_on = ready and len(waiting) < min(most, flight.most)
                done = _completed(flight, waiting, 0.0 if can_go_on else _LONG_S)
                while in_flight is None and waiting:
                    done += _completed(flight, waiting, _LONG_S)
                ready.extendleft(reversed(done if in_flight else sorted(done, key=itemgetter(0))))
            elif not ready:
                ready.extend(debates.answer_gates())
    finally:
        flight.close()


def _completed(flight: Flight, waiting: _Waiting, patience_s: float) -> list[tuple[int, Sent]]:
    """Wait for replies; return the debates that have all of theirs, the first in first."""
    complete: list[tuple[int, Sent]] = []
    for asked, reply in flight.wait(patience_s):
        replies = waiting[asked.place]
        replies[asked.number] = reply
        sent = [one for one in replies if one is not None]
        if len(sent) == len(replies):
            del waiting[asked.place]
            complete.append((asked.place, sent))
    return complete


def play(
    runs: Sequence[DebateRun],
    engine: Engine,
    *,
    max_tokens: int,
    sampling: Mapping[str, object] = {},
    select: Select | None = None,
    driver: DriverConfig = AUTO,
) -> list[Transcript]:
    """Run debates to their ends.

    With a deterministic engine all drivers give the same transcripts. Gates wait until every
    debate is finished or at a gate; `select` then answers them together, in order of place.

    Args:
        runs: Forms that were started; each is run to its end or closed.
        engine: Samples the replies.
        max_tokens: Most tokens of a reply whose ask sets none.
        sampling: Fields of `Sampling` that replace what the asks say, such as `temperature`.
        select: Answers gates; without it every debate goes on.
        driver: Which debates wait for which, and how long.

    Returns:
        The transcripts in the order of `runs`, dropped debates left out.

    Raises:
        EngineFailure: When the engine fails on a request, and again when it is tried alone;
            `finished` holds the debates that had ended.
        EngineConfigError: When `sampling` names no field of `Sampling`.
    """
    finished: dict[int, Transcript] = {}
    try:
        for place, transcript in play_each(
            runs, engine, max_tokens=max_tokens, sampling=sampling, select=select, driver=driver
        ):
            finished[place] = transcript
    except EngineFailure as error:
        error.finished = tuple(finished[place] for place in sorted(finished))
        raise
    return [finished[place] for place in sorted(finished)]


def play_each(
    runs: Sequence[DebateRun],
    engine: Engine,
    *,
    max_tokens: int,
    sampling: Mapping[str, object] = {},
    select: Select | None = None,
    driver: DriverConfig = AUTO,
) -> Iterator[tuple[int, Transcript]]:
    """Yield (place in `runs`, transcript) as debates end; else as `play`.

    Leaving the iterator early closes the debates and cancels their requests.
    """
    debates = Debates(runs, select)
    try:
        requests = Requests(engine.renderer, max_tokens, sampling)
        stream, in_flight = streaming(engine), getattr(driver, "in_flight", None)
        if stream is None:
            flight, in_flight = Flight(_Batches(engine), inf), None
        else:
            room = None if in_flight is None else getattr(engine, "room", None)
            flight = Flight(stream, driver.timeout_s or TIMEOUT_S, room)
        yield from _run(debates, flight, requests, in_flight)
    finally:
        debates.close()
