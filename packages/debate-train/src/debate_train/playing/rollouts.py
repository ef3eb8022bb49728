"""The debates of each step: played when they are wanted, or ahead of training."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, cast

from debate_protocol.types import Reply, Transcript
from debate_rollout.engine import Engine, Finished, Request, SleepingEngine, Weights
from debate_rollout.routing import ForwardingEngine
from debate_train.errors import RunFailure
from debate_train.playing.lookahead import read_lookahead, write_lookahead
from debate_train.playing.phase_start import start_mode as start_mode

if TYPE_CHECKING:
    from torch import Tensor

Play = Callable[[int, Engine], Sequence[Transcript]]
"""Plays the debates of a step with an engine."""

_SLICE_S = 0.2
"""Longest wait for a reply before the stop signal is read again."""
_PATIENCE_S = 60.0
"""Longest wait at the end of a run for a call of a batch engine."""


class _GivenUp(BaseException):
    """The debates are not wanted any more; no `Exception`, as drivers retry those."""


class Prefetcher:
    """Plays steps in order, each with exactly the weights of max(first, step - max_staleness).

    The engine belongs to the thread, weights included, but for `paused`.

    Args:
        play: Plays the debates of a step with an engine.
        engine: Samples.
        steps: To be played, `first` before all others.
        max_staleness: Most steps between the weights and the step that is played with them.
        known: Steps that were played before a checkpoint.
    """

    def __init__(
        self,
        play: Play,
        engine: Engine,
        steps: range,
        max_staleness: int,
        known: Mapping[int, Sequence[Transcript]],
    ) -> None:
        self.steps = steps
        self._play = play
        self._max_staleness = max_staleness
        self._stop = threading.Event()
        self._engine = StoppableEngine(engine, self._stop)
        self._engine_lock = threading.Lock()
        self._loaded_version: int | None = None
        self._newest_version = steps.start
        self.played: dict[int, Future[tuple[Sequence[Transcript], float]]] = {}
        """Debates of the steps that are not complete, and the seconds that playing them took."""
        for step, transcripts in known.items():
            self.played[step] = Future()
            self.played[step].set_result((transcripts, 0.0))
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="debate-train-rollouts", daemon=True)
        self._thread.start()

    def complete(self, step: int) -> None:
        """Drop the debates of a step after its update, which makes the newest weights."""
        self._newest_version = max(self._newest_version, step + 1)
        self.played = {number: result for number, result in self.played.items() if number > step}

    def offer(self, version: int, weights: Callable[[int], Weights]) -> None:
        """Queue the steps that need the weights of a version, with a copy of the weights."""
        last = version + self._max_staleness
        # The first weights serve all steps up to the staleness, every later version one more step.
        first = version if version == self.steps.start else last
        due_steps = range(first, min(last + 1, self.steps.stop))
        new_steps = [step for step in due_steps if step not in self.played]
        if new_steps:
            copy = copied(weights(version))
            for step in new_steps:
                self.played[step] = Future()
                self._jobs.put(partial(self._play_with, copy, step, self.played[step]))

    def take(self, step: int) -> tuple[Sequence[Transcript], float]:
        """Wait for a step's debates and the seconds that playing them took.

        Raises:
            BaseException: The error that ended the step.
        """
        return self.played[step].result()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Wait for the end of the step that is played; no other begins while this is open."""
        with self._engine_lock:
            self._loaded_version = None  # The borrower may load other weights.
            yield

    def in_flight(self) -> dict[int, Sequence[Transcript]]:
        """Wait for the debates of steps with weights older than the newest.

        Steps that failed are left out. Later ones can be played again with the newest weights.
        """
        last = self._newest_version - 1 + self._max_staleness
        # Before the first update all weights still exist: nothing has to be waited for.
        has_first_weights = self._newest_version == self.steps.start
        debates = {}
        for step, result in self.played.items():
            if step > last or (has_first_weights and not result.done()):
                continue
            if not result.exception():
                debates[step] = result.result()[0]
        return debates

    def close(self) -> None:
        """Give up the step under way and end the thread; a call of a batch engine may end."""
        self._stop.set()
        self._jobs.put(None)
        self._thread.join(_PATIENCE_S)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # With its weights.

    def _play_with(
        self, weights: Weights, step: int, played: Future[tuple[Sequence[Transcript], float]]
    ) -> None:
        try:
            with self._engine_lock:
                if self._loaded_version != weights.version:
                    self._engine.load(weights)
                    self._loaded_version = weights.version
                began = time.perf_counter()
                transcripts = self._play(step, self._engine)
                played.set_result((transcripts, time.perf_counter() - began))
        except BaseException as error:
            self._stop.set()  # Steps after a failed one are not played.
            played.set_exception(error)


class StoppableEngine(ForwardingEngine):
    """An engine whose calls end soon after `stop` is set, by an exception that nothing catches."""

    def __init__(self, engine: Engine, stop: threading.Event) -> None:
        super().__init__(engine)
        self._stop = stop

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Answer a batch; one that is under way is not cut short."""
        self._check()
        replies = super().generate(requests)
        self._check()
        return replies

    def load(self, weights: Weights) -> None:
        """Serve other weights."""
        self._check()
        super().load(weights)

    def close(self) -> None:
        """Do nothing: the engine is only lent."""

    def collect(self, timeout_s: float) -> list[Finished]:
        """Collect finished requests, in short waits."""
        until = time.monotonic() + timeout_s
        while True:
            self._check()
            began = time.monotonic()
            wait_s = max(0.0, min(_SLICE_S, until - began))
            finished = super().collect(wait_s)
            now = time.monotonic()
            # An engine that did not wait has no request under way.
            was_idle = now - began < wait_s / 2
            if finished or now >= until or was_idle:
                return finished

    def _check(self) -> None:
        if self._stop.is_set():
            raise _GivenUp


def copied(weights: Weights) -> Weights:
    """Copy weights into CPU memory; tensors under two names are copied once."""
    copies: dict[tuple[object, ...], Tensor] = {}
    tensors = {}
    for name, tensor in weights.tensors.items():
        # Tied weights, such as embedding and head, and no mere views of one storage.
        identity = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if identity not in copies:
            copies[identity] = tensor.detach().to("cpu", copy=True)
        tensors[name] = copies[identity]
    return replace(weights, tensors=tensors)


class Rollouts:
    """Hands over the debates of steps in order.

    Step s is played with exactly the weights of version max(first, s - max_staleness), where
    `first` is the first step since the last border: results do not depend on how long anything
    takes. All methods are called from the thread that trains.

    Args:
        play: Plays the debates of a step.
        engine: Samples from the policy.
        weights: Gives the policy's present weights under a version; memory may be shared.
        max_staleness: Most steps that are played ahead; 0 plays each when it is wanted.
        border: The first step after a given one that must not be played before all earlier ones
            are trained, such as the step after a check of the exit criterion.
        demonstrator: Writes replies in the place of the engine, which is given no weights then.
    """

    def __init__(
        self,
        play: Play,
        engine: Engine,
        weights: Callable[[int], Weights],
        max_staleness: int = 0,
        border: Callable[[int], int] = lambda step: step + 1,
        demonstrator: Engine | None = None,
    ) -> None:
        self._play = play
        self._engine = engine
        self._weights = weights
        self._demonstrator = demonstrator
        self._max_staleness = max_staleness if demonstrator is None else 0
        self._border = border
        self._known: dict[int, Sequence[Transcript]] = {}
        self._ahead: Prefetcher | None = None
        self._are_lost = False
        self.times: dict[str, float] = {}
        """Seconds of playing the last step, and of training's wait for it."""

    @contextmanager
    def open(self) -> Iterator[None]:
        """While open, steps may be taken; closing gives up steps under way."""
        try:
            yield
        except BaseException:  # For a checkpoint of the last complete step.
            if self._ahead is not None:
                self._are_lost = True
                self._known = self._ahead.in_flight()  # An interrupt may end the wait.
                self._are_lost = False
            raise
        finally:
            self._close()

    def take(self, step: int) -> Sequence[Transcript]:
        """Play the debates of a step, or wait for them where they are played ahead.

        Raises:
            Exception: The error that ended the step.
        """
        began = time.perf_counter()
        if self._max_staleness > 0 and self._ahead is None:
            steps = range(step, self._border(step))
            self._ahead = Prefetcher(
                self._play, self._engine, steps, self._max_staleness, self._known
            )
            self._known = {}
            self._ahead.offer(steps.start, self._weights)
        rollout_s = None
        if self._ahead is not None:
            transcripts, rollout_s = self._ahead.take(step)
        elif step in self._known:
            transcripts = self._known[step]
            rollout_s = 0.0
        else:
            transcripts = self._play(step, self._demonstrator or self._engine)
            if "sleeps" in self._engine.capabilities and self._demonstrator is None:
                cast(SleepingEngine, self._engine).sleep()  # `refresh` wakes it.
        wait_s = time.perf_counter() - began
        if rollout_s is None:
            rollout_s = wait_s
        self.times = {"time/rollout_s": rollout_s, "time/wait_s": wait_s}
        return transcripts

    def complete(self, step: int) -> None:
        """Drop the debates of a step after its update: no checkpoint needs them any more."""
        self._known = {number: debates for number, debates in self._known.items() if number > step}
        if self._ahead is not None:
            self._ahead.complete(step)

    def refresh(self, version: int) -> None:
        """Let later steps be played with the policy's present weights; end earlier steps."""
        self.complete(version - 1)
        if self._ahead is not None:
            if version < self._ahead.steps.stop:
                self._ahead.offer(version, self._weights)
            else:
                self._close()
        elif self._max_staleness == 0 and self._demonstrator is None:
            self._engine.load(self._weights(version))

    @contextmanager
    def serving(self, version: int) -> Iterator[Engine]:
        """Lend the engine with the policy's present weights; nothing is played meanwhile."""
        with nullcontext() if self._ahead is None else self._ahead.paused():
            if self._max_staleness > 0 or self._demonstrator is not None:
                self._engine.load(self._weights(version))
            yield self._engine

    def save(self, directory: Path) -> None:
        """Write the debates played ahead with weights that will be gone; wait for them first.

        Raises:
            RunFailure: The debates were given up: a resumed run could not go on as this one.
        """
        if self._are_lost:
            raise RunFailure("the debates that were begun ahead, which it needs, were given up")
        debates = self._known if self._ahead is None else self._ahead.in_flight()
        if debates:
            write_lookahead(directory, debates)

    def load(self, directory: Path) -> None:
        """Read the debates of `save`."""
        self._known = read_lookahead(directory)

    def _close(self) -> None:
        ahead = self._ahead
        # First, so that an interrupt within `close` leaves no closed one behind.
        self._ahead = None
        if ahead is not None:
            ahead.close()
