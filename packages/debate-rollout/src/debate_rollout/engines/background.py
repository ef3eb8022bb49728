"""An event loop in a thread of its own, for engines whose replies come from elsewhere."""

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from debate_protocol.types import Reply
from debate_rollout.engine import Finished, RolloutError

Result = TypeVar("Result")


class Background:
    """Runs coroutines on its own loop; `submit`, `collect` and `cancel` are those of an engine."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._tickets = itertools.count()
        self._open: dict[int, Future[Reply]] = {}
        self._waited_for: set[Future[Any]] = set()
        self._over: Exception | None = None
        self._ended: queue.SimpleQueue[Finished] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def open_tickets(self) -> int:
        """How many requests `collect` has not returned yet."""
        return len(self._open)

    def submit(self, work: Coroutine[object, None, Reply]) -> int:
        """Start a request and return its ticket."""
        ticket = next(self._tickets)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._open[ticket] = future
        future.add_done_callback(lambda done: self._ended.put(self._finished(ticket, done)))
        return ticket

    def collect(self, timeout_s: float) -> list[Finished]:
        """Return the requests that have ended since the last call, as engines do."""
        deadline = time.monotonic() + timeout_s
        found: list[Finished] = []
        while self._open and not found:
            one = _next(self._ended, max(0.0, deadline - time.monotonic()))
            while one is not None:
                if self._open.pop(one.ticket, None) is not None:
                    found.append(one)
                one = _next(self._ended, 0.0)
            if time.monotonic() >= deadline:
                break
        return found

    def cancel(self, ticket: int) -> None:
        """Give a request up; `collect` never returns it."""
        future = self._open.pop(ticket, None)
        if future is not None:
            future.cancel()

    def run(self, work: Coroutine[object, None, Result], timeout_s: float, what: str) -> Result:
        """Wait for a coroutine.

        Raises:
            RolloutError: When it takes longer than `timeout_s`; `what` says what it was.
            Exception: The one that `watch` found meanwhile.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._waited_for.add(future)
        try:
            return _result(future, timeout_s, what)
        except CancelledError:
            raise self._over or RolloutError(f"{what}: cancelled") from None
        finally:
            self._waited_for.discard(future)

    def watch(self, died: Callable[[], Exception | None], every_s: float = 1.0) -> None:
        """Ask now and then whether what answers has died; if so, end all that waits for it.

        What an engine says of its own death goes first: it has `every_s` seconds for it.
        """

        async def ask() -> None:
            while True:
                error = died()
                await asyncio.sleep(every_s)
                if error is not None:
                    self._over = error
                    for future in (*self._open.values(), *self._waited_for):
                        future.cancel()

        asyncio.run_coroutine_threadsafe(ask(), self._loop)

    def close(self, last: Callable[[], Coroutine[object, None, None]] | None = None) -> None:
        """Cancel what is open, run `last` on the loop and end the thread."""
        if not self._thread.is_alive():
            return
        self._open.clear()
        try:
            self._end(_cancel_all(), "cancelling requests")
            if last is not None:
                self._end(last(), "closing an engine")
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(30.0)
            self._loop.close()

    def _end(self, work: Coroutine[object, None, None], what: str) -> None:
        """Wait for a coroutine that has nothing to do with whether an engine lives."""
        _result(asyncio.run_coroutine_threadsafe(work, self._loop), 30.0, what)

    def _finished(self, ticket: int, done: Future[Reply]) -> Finished:
        try:
            return Finished(ticket, done.result())
        except CancelledError:
            return Finished(ticket, self._over or RolloutError("the request was cancelled"))
        except Exception as error:
            return Finished(ticket, error)


def _result(future: Future[Result], timeout_s: float, what: str) -> Result:
    try:
        return future.result(timeout_s)
    except TimeoutError as error:
        if future.done():
            raise
        future.cancel()
        raise RolloutError(f"{what}: not done after {timeout_s:g} s") from error


def _next(ended: "queue.SimpleQueue[Finished]", wait_s: float) -> Finished | None:
    try:
        return ended.get(timeout=wait_s) if wait_s else ended.get_nowait()
    except queue.Empty:
        return None


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
