"""A pool of killable processes that compare mathematical answers within a hard time limit."""

import atexit
import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from debate_protocol.plugins import install_command
from debate_rewards.confinement import minimal_environment

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
START_TIMEOUT_S = 120.0
RESTART_TIMEOUT_S = 10.0
MAX_DEFAULT_SIZE = 4
CHUNK_BYTES = 65536
TASK = "reasoning_gym"
"""The library with the tasks of `puzzle_answers`; the key of `Question.meta` with a task's name."""
_PROGRAM = """
import json, signal, sys
signal.alarm(int(sys.argv[3]))  # Ends an import that hangs, whether or not anybody waits for it.
sys.path.append(sys.argv[1])
try:
    for name in sys.argv[4:]:
        __import__(name)
    from debate_rewards.math_worker import main
except ImportError as error:
    print(json.dumps({"error": str(error)}))
else:
    main(int(sys.argv[2]))
"""

# Libraries that workers import before they take a job. It only grows: a worker with fewer is
# replaced when it is needed next.
_needed: list[str] = []
# A process forked off must not use its parent's workers: `_after_fork`.
_pools: "weakref.WeakSet[MathPool]" = weakref.WeakSet()
_shared: "MathPool | None" = None
_shared_lock = threading.Lock()


class TaskJob(str):
    """A question of reasoning-gym as a gold for `MathPool.compare`, in JSON.

    A separate class, so a gold answer of a file is never taken for a job.
    """

    __slots__ = ()


class AnswerComparison(NamedTuple):
    """The outcome of comparing two answers, and the worker's time."""

    outcome: Outcome
    seconds: float


class _WorkerGone(Exception):
    """The worker cannot be used any more."""


class _AnswerWorker:
    """A supervisor process with one child; used by one thread at a time."""

    def __init__(self) -> None:
        package_folder = str(Path(__file__).parents[1])
        arguments = [package_folder, str(os.getpid()), str(int(START_TIMEOUT_S)), *_needed]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Unbuffered: a process forked off in the middle of a job must not send it again.
            bufsize=0,
            env=minimal_environment(os.environ),
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._jobs = self._process.stdin
        self._messages = self._process.stdout
        os.set_blocking(self._jobs.fileno(), False)
        self._buffer = b""
        self._child = 0
        self._num_imported = len(_needed)

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
            install = " ".join([install_command("debate-rewards[math]"), *_needed])
            raise RuntimeError(
                f"math answers: cannot start a Math-Verify worker ({cause}); "
                f"install it with: {install}"
            )

    def compare(self, job: dict[str, object], limit_s: float) -> Outcome:
        """Compare within the limit, and leave a child ready for more.

        The child reports `started`, then `gold` once the gold answer is read, then an outcome.

        Raises:
            _WorkerGone: The supervisor ended or does not answer.
        """
        # The limit begins when the child has the job: a busy machine must not count against it.
        deadline = time.monotonic() + RESTART_TIMEOUT_S
        self._write(json.dumps(job | {"limit_s": limit_s}).encode() + b"\n", deadline)
        has_started = False
        has_read_gold = False
        while (message := self._read(deadline)) is not None:
            if "outcome" in message:
                outcome: Outcome = message["outcome"]
                return outcome
            if message["stage"] == "started":
                has_started = True
                deadline = time.monotonic() + limit_s
            elif message["stage"] == "gold":
                has_read_gold = True
            elif message["stage"] == "ready":
                # A new child is ready, so the child with the job has died of it.
                return "crashed" if has_read_gold else "gold_crashed"

        if not has_started:
            raise _WorkerGone  # The rest of the job must not reach another child.
        self._replace_child()
        return "timeout" if has_read_gold else "gold_timeout"

    def _replace_child(self) -> None:
        slow_child = self._child
        self._process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + RESTART_TIMEOUT_S
        while self._child == slow_child:
            if self._read(deadline) is None:
                raise _WorkerGone

    def _write(self, job: bytes, deadline: float) -> None:
        # A pipe may take less than a whole job at once.
        while job and _ready(self._jobs.fileno(), select.POLLOUT, deadline):
            try:
                num_written = os.write(self._jobs.fileno(), job)
            except BrokenPipeError:
                raise _WorkerGone from None
            job = job[num_written:]

    def _read(self, deadline: float) -> dict[str, Any] | None:
        """Wait for the next message; `None` at the deadline."""
        while b"\n" not in self._buffer:
            if not _ready(self._messages.fileno(), select.POLLIN, deadline):
                return None
            chunk = os.read(self._messages.fileno(), CHUNK_BYTES)
            if not chunk:
                raise _WorkerGone
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        self._child = message.get("child", self._child)
        return message

    def is_usable(self) -> bool:
        """Check for a running process with all libraries needed by now."""
        return self._process.poll() is None and self._num_imported == len(_needed)

    def end(self) -> None:
        """End supervisor and child and reap them; a reading thread notices."""
        self._process.terminate()
        try:
            self._process.wait(RESTART_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def kill(self) -> None:
        """End the processes and close our ends of the pipes; only for the worker's user."""
        self.end()
        self.forget()

    def forget(self) -> None:
        """Close our ends of the pipes."""
        for pipe in (self._jobs, self._messages):
            with contextlib.suppress(OSError):
                pipe.close()


def _ready(descriptor: int, event: int, deadline: float) -> bool:
    # Unlike `select`, `poll` takes descriptors above 1023.
    poll = select.poll()
    poll.register(descriptor, event)
    wait_s = deadline - time.monotonic()
    return wait_s > 0 and bool(poll.poll(wait_s * 1000))


class MathPool:
    """Workers that compare mathematical answers; safe from any thread.

    Workers start when first needed (a second or two); at the limit a worker is killed and replaced
    within milliseconds. The limit counts from when a worker takes the answer up.

    Args:
        size: How many processes at most; default: the usable cores, at most 4.
        cached: Whether workers remember parsed answers; off only for measuring.
    """

    def __init__(self, size: int | None = None, *, cached: bool = True) -> None:
        if not size:
            has_affinity = hasattr(os, "sched_getaffinity")
            num_cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
            size = min(MAX_DEFAULT_SIZE, num_cores)
        self.size = size
        self._cached = cached
        self._closed = False
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        # Workers without work, last used first, and None for each that may be started.
        self._free: queue.LifoQueue[_AnswerWorker | None] = queue.LifoQueue()
        for _ in range(self.size):
            self._free.put(None)
        self._workers: set[_AnswerWorker] = set()

    def compare(self, gold: str, prediction: str, limit_s: float) -> AnswerComparison:
        """Compare two expressions, back within `limit_s` once a worker is free.

        Raises:
            RuntimeError: No worker can be started, for example because Math-Verify is missing.
        """
        comparison = self._compare_once(gold, prediction, limit_s)
        if comparison.outcome in ("crashed", "gold_crashed") and comparison.seconds < limit_s:
            # Something else may have ended the process, so the answer gets a second one.
            return self._compare_once(gold, prediction, limit_s - comparison.seconds)
        return comparison

    def close(self) -> None:
        """End all workers; the pool cannot be used afterwards."""
        self._closed = True
        with self._free.mutex:
            idle_workers = set(self._free.queue)
        for worker in list(self._workers):
            worker.end()
            # The thread of a busy worker still reads its pipes, and closes them itself.
            if worker in idle_workers:
                worker.forget()

    def forget(self) -> None:
        """Leave the workers to the parent, after a fork."""
        for worker in self._workers:
            worker.forget()
        self._reset()

    def _compare_once(self, gold: str, prediction: str, limit_s: float) -> AnswerComparison:
        start = time.monotonic()
        is_task = isinstance(gold, TaskJob)
        if is_task and TASK not in _needed:
            _needed.append(TASK)
        job = {"gold": gold, "prediction": prediction, "cached": self._cached, "is_task": is_task}
        try:
            with self._lent_worker() as worker:
                start = time.monotonic()  # Waiting for a worker does not count.
                outcome = worker.compare(job, limit_s)
        except _WorkerGone:
            outcome = "crashed"
        return AnswerComparison(outcome, time.monotonic() - start)

    @contextlib.contextmanager
    def _lent_worker(self) -> Iterator[_AnswerWorker]:
        """Lend an idle or a new worker; after a failure it is not lent again."""
        worker = self._free.get()
        try:
            if self._closed:
                raise RuntimeError("math answers: the pool of workers is closed")
            if worker and not worker.is_usable():
                self._drop(worker)
                worker = None
            if worker is None:
                worker = _AnswerWorker()
                self._workers.add(worker)
            yield worker
        except BaseException:
            if worker is not None:
                self._drop(worker)
            self._free.put(None)
            raise
        self._free.put(worker)

    def _drop(self, worker: _AnswerWorker) -> None:
        self._workers.discard(worker)
        worker.kill()


def shared_pool() -> MathPool:
    """Open this process's pool, once; its workers end with the process."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = MathPool()
            atexit.register(_shared.close)
        return _shared


def _after_fork() -> None:
    global _shared_lock
    # Another thread of the parent may have held it.
    _shared_lock = threading.Lock()
    for pool in list(_pools):
        pool.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
