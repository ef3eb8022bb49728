"""Drivers: run debates against an engine, in lock-step or freely."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import count
from math import inf
from operator import itemgetter
from typing import Any

from debate_protocol.plugins import did_you_mean
from debate_protocol.types import (
    DebateRun,
    Gate,
    GateDecision,
    Reply,
    Sent,
    Transcript,
    TurnRequest,
)
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
    CacheUse,
    DriverChoice,
    DriverConfig,
    FreeRunning,
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


LONGEST_WAIT_S = 60.0
"""Limit of one wait for replies; the loop then looks for overdue requests."""
IDLE_REST_S = 0.01
"""Rest after an engine returned no reply at once, so that a faulty engine burns no processor."""
DEBATES_PER_BURST = 64
"""Debates that advance between two looks at the engine: it works while prompts are made."""

Select = Callable[[Sequence[Gate]], Sequence[GateDecision]]
"""Answers the gates of a batch: `go_on`, `keep` (end with the turns so far) or `drop`."""
PendingReplies = dict[int, list[Reply | None]]
"""Replies to the open requests of each debate, by its index; None for a missing reply."""
RunnableDebates = deque[tuple[int, Sent | None]]
"""Debates that can go on, by index, each with the replies or the decision to send it."""


@dataclass(frozen=True, slots=True)
class DebateRequest:
    """A request, with debate and position among the debate's simultaneous requests."""

    debate: int
    position: int
    request: Request

    def failure(self, cause: Exception) -> EngineFailure:
        """Describe a request that failed again after a retry."""
        turn_request = self.request.turn_request
        how = "failed twice, the second time on this request alone"
        if isinstance(cause, RetriesExhaustedError):
            how = "gave this request up"
        return EngineFailure(
            f"debate {self.debate} (question {turn_request.question.id!r}), "
            f"agent {turn_request.agent}, round {turn_request.round}: the engine {how} "
            f"({len(self.request.prompt_ids)} prompt tokens): {type(cause).__name__}: {cause}"
        )


class RequestBuilder:
    """Builds requests: prompts by the renderer, sampling from the turn request.

    Args:
        renderer: The engine's; `None` for engines that take messages.
        max_tokens: Limit of a reply, where the turn request sets no limit.
        sampling: Fields of `Sampling`, in place of the turn requests' settings.

    Raises:
        EngineConfigError: A name in `sampling` is no field of `Sampling`.
    """

    # Debates of two calls of `play` must be two sessions of the engine.
    _calls = count()

    def __init__(self, renderer: Any, max_tokens: int, sampling: Mapping[str, object]) -> None:
        field_names = [field.name for field in fields(Sampling)]
        for name in sampling:
            if name not in field_names:
                expected = ", ".join(field_names) + did_you_mean(name, field_names)
                raise EngineConfigError(f"sampling.{name}: expected one of {expected}")
        self._renderer = renderer
        self._max_tokens = max_tokens
        self._sampling = dict(sampling)
        self._first_session = next(self._calls) << 32

    def build(self, debate: int, turn_requests: Sequence[TurnRequest]) -> list[DebateRequest]:
        """Build the engine's requests for the simultaneous turns of a debate."""
        requests = []
        for position, turn_request in enumerate(turn_requests):
            max_tokens = turn_request.max_tokens
            settings: dict[str, Any] = {
                "max_tokens": self._max_tokens if max_tokens is None else max_tokens,
                "temperature": turn_request.temperature,
                "stop": turn_request.stop,
                "seed": turn_request.seed,
            }
            prompt_ids: tuple[int, ...] = ()
            if self._renderer is not None:
                prompt_ids = self._renderer.render(turn_request).prompt_ids
            request = Request(
                turn_request,
                Sampling(**settings | self._sampling),
                prompt_ids,
                self._first_session + debate,
            )
            requests.append(DebateRequest(debate, position, request))
        return requests


class DebateBatch:
    """The debates of a batch, by index.

    Args:
        runs: Forms that were started.
        select: Answers gates; without it every debate goes on.
    """

    def __init__(self, runs: Sequence[DebateRun], select: Select | None) -> None:
        self._runs = runs
        self._select = select
        self._open_gates: dict[int, Gate] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def advance(self, debate: int, sent: Sent | None) -> Sequence[TurnRequest] | Transcript | None:
        """Start a debate, or send it the replies or the decision.

        Returns:
            The next turn requests, the transcript of an ended debate, or `None` for a debate at a
            gate.
        """
        run = self._runs[debate]
        try:
            step = next(run) if sent is None else run.send(sent)
        except StopIteration as stop:
            transcript: Transcript = stop.value
            return transcript
        if isinstance(step, Gate):
            self._open_gates[debate] = step
            return None
        return step

    def answer_gates(self) -> list[tuple[int, GateDecision]]:
        """Decide all open gates together, in order of debates; list the continuing debates.

        Raises:
            EngineConfigError: `select` does not decide each gate.
        """
        if not self._open_gates:
            return []
        debates = sorted(self._open_gates)
        gates = [self._open_gates[debate] for debate in debates]
        decisions: Sequence[GateDecision] = ["go_on"] * len(gates)
        if self._select is not None:
            decisions = self._select(gates)
            if len(decisions) != len(gates) or not {*decisions} <= {"keep", "drop", "go_on"}:
                raise EngineConfigError(
                    f"select decided {list(decisions)} on {len(gates)} gates; expected 'keep', "
                    "'drop' or 'go_on' for each"
                )
        self._open_gates.clear()
        going_on: list[tuple[int, GateDecision]] = []
        for debate, decision in zip(debates, decisions, strict=True):
            if decision == "drop":
                self._runs[debate].close()
            else:
                # A debate that is kept goes on, too: it ends itself with the turns so far.
                going_on.append((debate, decision))
        return going_on

    def close(self) -> None:
        """End every debate under way."""
        for run in self._runs:
            run.close()


@dataclass(frozen=True, slots=True)
class _Attempt:
    request: DebateRequest
    is_retry: bool


class OpenRequests:
    """The requests without a reply.

    A failed request, or a request older than `timeout_s`, is cancelled and tried once more, unless
    the engine has retried already (`RetriesExhaustedError`).

    Args:
        engine: Answers the requests.
        timeout_s: Limit in seconds from submitting a request to its reply.
        room: Room in the engine's cache, where the engine reports it.
    """

    def __init__(self, engine: Queue, timeout_s: float, room: CacheRoom | None = None) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._attempts: dict[int, _Attempt] = {}
        # All requests have the same limit, so the first submitted is the first overdue.
        self._deadlines: deque[tuple[float, int]] = deque()
        self._failure: EngineFailure | None = None
        self._cache_use = None if room is None else CacheUse(room)

    @property
    def max_debates(self) -> float:
        """Number of debates with room in the engine's cache."""
        return inf if self._cache_use is None else self._cache_use.room.debates

    def submit(self, requests: Sequence[DebateRequest]) -> None:
        """Send the simultaneous requests of a debate.

        Raises:
            EngineFailure: The engine refuses a request twice.
        """
        if self._cache_use is not None:
            debate = requests[0].debate
            self._cache_use.add_requests(debate, [each.request for each in requests])
        for request in requests:
            self._submit(_Attempt(request, is_retry=False))

    def end_debate(self, debate: int) -> None:
        """Count the cache of an ended debate as free."""
        if self._cache_use is not None:
            self._cache_use.end_debate(debate)

    def wait(self, patience_s: float) -> list[tuple[DebateRequest, Reply]]:
        """Wait for the first reply, at most about `patience_s`, and return all replies so far.

        Raises:
            EngineFailure: A request has failed twice. Replies beside the failure are returned
                first; the next call raises.
        """
        earlier_failure = self._failure
        if earlier_failure is not None:
            raise earlier_failure
        replies: list[tuple[DebateRequest, Reply]] = []
        for finished in self._collect(patience_s):
            attempt = self._attempts.pop(finished.ticket, None)
            if attempt is None:
                continue  # cancelled before
            if not isinstance(finished.outcome, Reply):
                self._retry_or_fail(attempt, finished.outcome)
                continue
            request = attempt.request
            replies.append((request, finished.outcome))
            if self._cache_use is not None:
                agent = request.request.turn_request.agent
                self._cache_use.add_reply(request.debate, agent, finished.outcome)

        now = time.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            _, ticket = self._deadlines.popleft()
            overdue = self._attempts.pop(ticket, None)
            if overdue is not None:
                self._engine.cancel(ticket)
                error = TimeoutError(f"no reply within {self._timeout_s:g} s")
                self._retry_or_fail(overdue, error)
        if self._failure is not None and not replies:
            raise self._failure
        return replies

    def close(self) -> None:
        """Cancel all open requests."""
        for ticket in self._attempts:
            self._engine.cancel(ticket)
        self._attempts.clear()

    def _submit(self, attempt: _Attempt) -> None:
        try:
            ticket = self._engine.submit(attempt.request.request)
        except Exception as error:
            return self._retry(attempt, error)
        self._attempts[ticket] = attempt
        self._deadlines.append((time.monotonic() + self._timeout_s, ticket))

    def _retry(self, attempt: _Attempt, error: Exception) -> None:
        if attempt.is_retry or isinstance(error, RetriesExhaustedError):
            raise attempt.request.failure(error) from error
        self._submit(_Attempt(attempt.request, is_retry=True))

    def _retry_or_fail(self, attempt: _Attempt, error: Exception) -> None:
        try:
            self._retry(attempt, error)
        except EngineFailure as failure:
            # The first failure names the cause; later ones mostly follow from it.
            self._failure = self._failure or failure

    def _collect(self, patience_s: float) -> list[Finished]:
        """Collect from the engine, at most until the next request is overdue."""
        patience_s = min(patience_s, LONGEST_WAIT_S)
        while self._deadlines:
            deadline, ticket = self._deadlines[0]
            if ticket in self._attempts:
                patience_s = min(patience_s, max(0.0, deadline - time.monotonic()))
                break
            # This request was answered in time.
            self._deadlines.popleft()
        start = time.monotonic()
        try:
            finished = self._engine.collect(patience_s)
        except Exception as error:
            # The engine as a whole has failed, so every open request has.
            return [Finished(ticket, error) for ticket in list(self._attempts)]
        returned_at_once = time.monotonic() - start < patience_s / 2
        if not finished and self._attempts and returned_at_once:
            time.sleep(min(IDLE_REST_S, patience_s))
        return finished


class _BatchQueue:
    """Makes a queue of a batch engine: `collect` is a single call with all requests.

    After a failed call, open requests are sent singly: some may then pass, and the error of a
    second failure names the request.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._requests: dict[int, Request] = {}
        self._tickets = count()
        self._one_by_one = False

    def submit(self, request: Request) -> int:
        ticket = next(self._tickets)
        self._requests[ticket] = request
        return ticket

    def collect(self, timeout_s: float) -> list[Finished]:
        tickets = list(self._requests)
        if self._one_by_one:
            tickets = tickets[:1]
        requests = [self._requests.pop(ticket) for ticket in tickets]
        try:
            replies = self._engine.generate(requests)
            if len(replies) != len(requests):
                raise EngineFailure(
                    f"the engine gave {len(replies)} replies to {len(requests)} requests"
                )
        except Exception as error:
            self._one_by_one = True
            return [Finished(ticket, error) for ticket in tickets]
        if not self._requests:
            self._one_by_one = False
        return list(map(Finished, tickets, replies))

    def cancel(self, ticket: int) -> None:
        self._requests.pop(ticket, None)


def _run_free(
    debates: DebateBatch, open_requests: OpenRequests, builder: RequestBuilder, in_flight: int
) -> Iterator[tuple[int, Transcript]]:
    """Yield (debate, transcript) as debates end; each goes on when all replies to it are in.

    Debates under way go before debates not yet begun. Gates are answered when no debate can run.

    Args:
        debates: All are run to their ends.
        open_requests: Sends the requests.
        builder: Builds the requests.
        in_flight: Limit of debates that wait for replies at once; debates at a gate do not count.

    Raises:
        EngineFailure: A request has failed twice.
    """
    runnable: RunnableDebates = deque((debate, None) for debate in range(len(debates)))
    pending: PendingReplies = {}

    def has_room() -> bool:
        return len(pending) < min(in_flight, open_requests.max_debates)

    while runnable or pending:
        num_advanced = 0
        while runnable and has_room() and num_advanced < DEBATES_PER_BURST:
            num_advanced += 1
            yield from _advance(runnable, debates, open_requests, builder, pending)
        if pending:
            # With more debates to begin, the engine is only asked what it has finished by now.
            patience_s = 0.0 if runnable and has_room() else LONGEST_WAIT_S
            completed = _complete(open_requests, pending, patience_s)
            # In front: their prefixes are still in the engine's cache.
            runnable.extendleft(reversed(completed))
        elif not runnable:
            runnable.extend(debates.answer_gates())


def _run_in_lock_step(
    debates: DebateBatch, open_requests: OpenRequests, builder: RequestBuilder
) -> Iterator[tuple[int, Transcript]]:
    """Yield (debate, transcript) as debates end; all advance, then all wait for all replies.

    Raises:
        EngineFailure: A request has failed twice.
    """
    runnable: RunnableDebates = deque((debate, None) for debate in range(len(debates)))
    pending: PendingReplies = {}
    while runnable:
        while runnable:
            yield from _advance(runnable, debates, open_requests, builder, pending)
        completed: list[tuple[int, Sent | None]] = []
        while pending:
            completed += _complete(open_requests, pending, LONGEST_WAIT_S)
        # Sorted, because requests reach the engine in this order: a batch must not depend on the
        # times at which replies arrived.
        runnable.extend(sorted(completed, key=itemgetter(0)) or debates.answer_gates())


def _advance(
    runnable: RunnableDebates,
    debates: DebateBatch,
    open_requests: OpenRequests,
    builder: RequestBuilder,
    pending: PendingReplies,
) -> Iterator[tuple[int, Transcript]]:
    """Let the next debate go on: submit its requests, or yield its transcript at the end."""
    debate, sent = runnable.popleft()
    step = debates.advance(debate, sent)
    if step is None:
        return  # at a gate
    if isinstance(step, Transcript):
        open_requests.end_debate(debate)
        yield debate, step
    elif step:
        pending[debate] = [None] * len(step)
        open_requests.submit(builder.build(debate, step))
    else:
        runnable.appendleft((debate, []))  # without requests it waits for no reply


def _complete(
    open_requests: OpenRequests, pending: PendingReplies, patience_s: float
) -> list[tuple[int, Sent | None]]:
    """Wait for replies; return the debates with all of their replies, in order of arrival."""
    completed: list[tuple[int, Sent | None]] = []
    for request, reply in open_requests.wait(patience_s):
        replies = pending[request.debate]
        replies[request.position] = reply
        replies_in = [reply for reply in replies if reply is not None]
        if len(replies_in) == len(replies):
            del pending[request.debate]
            completed.append((request.debate, replies_in))
    return completed


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
    debate is finished or at a gate; `select` then answers them together, in order of debates.

    Args:
        runs: Started forms; each is run to its end or closed.
        engine: Samples the replies.
        max_tokens: Limit of a reply, where the turn request sets no limit.
        sampling: Fields of `Sampling`, such as `temperature`, in place of the turn requests'.
        select: Answers gates; by default every debate goes on.
        driver: Decides on waiting for other debates' replies, and on time limits.

    Returns:
        The transcripts in the order of `runs`, dropped debates left out.

    Raises:
        EngineFailure: The engine failed on a request, and again on a retry of this request only;
            `finished` holds the debates that had ended.
        EngineConfigError: A name in `sampling` is no field of `Sampling`.
    """
    transcripts: dict[int, Transcript] = {}
    try:
        for debate, transcript in play_each(
            runs, engine, max_tokens=max_tokens, sampling=sampling, select=select, driver=driver
        ):
            transcripts[debate] = transcript
    except EngineFailure as error:
        error.finished = tuple(transcripts[debate] for debate in sorted(transcripts))
        raise
    return [transcripts[debate] for debate in sorted(transcripts)]


def play_each(
    runs: Sequence[DebateRun],
    engine: Engine,
    *,
    max_tokens: int,
    sampling: Mapping[str, object] = {},
    select: Select | None = None,
    driver: DriverConfig = AUTO,
) -> Iterator[tuple[int, Transcript]]:
    """Yield (index in `runs`, transcript) as debates end; otherwise like `play`.

    Leaving the iterator early closes the debates and cancels their requests.
    """
    debates = DebateBatch(runs, select)
    open_requests: OpenRequests | None = None
    try:
        builder = RequestBuilder(engine.renderer, max_tokens, sampling)
        stream = streaming(engine)
        # LockStep has no limit of its own: all debates wait for all replies.
        in_flight = getattr(driver, "in_flight", None)
        if stream is None:
            # A batch is one call, so no request of it can be overdue before the others.
            open_requests = OpenRequests(_BatchQueue(engine), inf)
            yield from _run_in_lock_step(debates, open_requests, builder)
        elif in_flight is None:
            open_requests = OpenRequests(stream, driver.timeout_s or TIMEOUT_S)
            yield from _run_in_lock_step(debates, open_requests, builder)
        else:
            room = getattr(engine, "room", None)
            open_requests = OpenRequests(stream, driver.timeout_s or TIMEOUT_S, room)
            yield from _run_free(debates, open_requests, builder, in_flight)
    finally:
        if open_requests is not None:
            open_requests.close()
        debates.close()
