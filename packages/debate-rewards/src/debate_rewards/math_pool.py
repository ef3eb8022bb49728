"""A pool of killable processes that compare mathematical answers within a hard time limit."""

import atexit
import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

Outcome = Literal[
    "equal",
    "different",
    "unparsable",
    "timeout",
    "crashed",
    "gold_unparsable",
    "gold_timeout",
    "gold_crashed",
]
_FATAL = ("timeout", "crashed", "gold_timeout", "gold_crashed")
START_TIMEOUT_S = 120.0


class Comparison(NamedTuple):
    """What came of comparing two answers, and how long the worker took."""

    outcome: Outcome
    seconds: float


class _WorkerGone(Exception):
    """The worker process ended without an answer."""


class _Worker:
    """One process; used by one thread at a time."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("math_worker.py")
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._buffer = b""
        try:
            message = self._read(time.monotonic() + START_TIMEOUT_S)
        except _WorkerGone:
            message = {"error": "the process ended while starting"}
        except BaseException:
            self.kill()
            raise
        if message is None or "error" in message:
            self.kill()
            cause = message["error"] if message else f"no answer in {START_TIMEOUT_S:g} s"
            raise RuntimeError(
                f"math answers: cannot start a Math-Verify worker ({cause}); "
                "install it with: pip install 'debate-rewards[math]'"
            )

    def compare(self, gold: str, prediction: str, limit_s: float) -> Outcome:
        """Return the outcome; after those in `_FATAL` the worker must be dropped."""
        deadline = time.monotonic() + limit_s
        gold_read = False
        job = {"gold": gold, "prediction": prediction, "limit_s": limit_s}
        try:
            stdin = self._process.stdin
            assert stdin is not None
            stdin.write(json.dumps(job).encode() + b"\n")
            stdin.flush()
            while (message := self._read(deadline)) is not None:
                if "outcome" in message:
                    outcome: Outcome = message["outcome"]
                    return outcome
                gold_read = gold_read or message.get("stage") == "gold"
        except (_WorkerGone, BrokenPipeError):
            return "crashed" if gold_read else "gold_crashed"
        return "timeout" if gold_read else "gold_timeout"

    def _read(self, deadline: float) -> dict[str, Any] | None:
        """Return the next message, None at the deadline."""
        stdout = self._process.stdout
        assert stdout is not None
        while b"\n" not in self._buffer:
            wait_s = deadline - time.monotonic()
            if wait_s <= 0 or not select.select([stdout], [], [], wait_s)[0]:
                return None
            chunk = os.read(stdout.fileno(), 65536)
            if not chunk:
                raise _WorkerGone
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """End the process at once and reap it."""
        self._process.kill()
        self._process.wait()
        self.forget()

    def forget(self) -> None:
        """Close our ends of the pipes."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class MathPool:
    """Workers that compare mathematical answers; safe from any thread.

    Processes start when first needed and a worker that ran into its limit is killed and replaced
    at the next need. The time limit counts from when a worker takes the answer up.

    Args:
        size: How many processes at most; default: the usable cores, at most 4.
    """

    def __init__(self, size: int | None = None) -> None:
        self.size = size or min(4, _usable_cores())
        self._free = threading.Semaphore(self.size)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._workers: set[_Worker] = set()
        self._closed = False

    def compare(self, gold: str, prediction: str, limit_s: float) -> Comparison:
        """Compare two expressions, back within `limit_s` once a worker is free.

        Raises:
            RuntimeError: No worker can be started, for example because Math-Verify is missing.
        """
        with self._free:
            result = self._try(gold, prediction, limit_s)
            if result.outcome in ("crashed", "gold_crashed") and result.seconds < limit_s:
                # Something else may have ended the process, so the answer gets a second one.
                return self._try(gold, prediction, limit_s - result.seconds)
            return result

    def close(self) -> None:
        """End all workers; the pool cannot be used afterwards."""
        with self._lock:
            self._closed = True
            workers, self._workers, self._idle = self._workers, set(), []
        for worker in workers:
            worker.kill()

    def forget(self) -> None:
        """Let go of the workers without ending them, in a process that was forked off."""
        for worker in self._workers:
            worker.forget()

    def _try(self, gold: str, prediction: str, limit_s: float) -> Comparison:
        worker = self._take()
        started = time.monotonic()
        try:
            outcome = worker.compare(gold, prediction, limit_s)
        except BaseException:
            self._drop(worker)
            raise
        if outcome in _FATAL:
            self._drop(worker)
        else:
            with self._lock:
                self._idle.append(worker)
        return Comparison(outcome, time.monotonic() - started)

    def _take(self) -> _Worker:
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.alive():
                    return worker
                self._workers.discard(worker)
                worker.kill()
            if self._closed:
                raise RuntimeError("math answers: the pool of workers is closed")
        worker = _Worker()
        with self._lock:
            self._workers.add(worker)
        return worker

    def _drop(self, worker: _Worker) -> None:
        with self._lock:
            self._workers.discard(worker)
        worker.kill()


_shared: MathPool | None = None
_shared_lock = threading.Lock()


def shared_pool() -> MathPool:
    """Return this process's pool; its workers end with the process."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = MathPool()
            atexit.register(_shared.close)
        return _shared


def _after_fork() -> None:
    global _shared, _shared_lock
    _shared_lock = threading.Lock()
    if _shared is not None:
        atexit.unregister(_shared.close)
        _shared.forget()
        _shared = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
