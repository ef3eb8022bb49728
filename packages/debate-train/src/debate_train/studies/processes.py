"""Runs in processes of their own, several at once, in an order in which each has what it needs."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import BinaryIO

from debate_train.checkpointing.whole_files import open_plain
from debate_train.errors import RunFailure, UsageError
from debate_train.interrupts import handled, heeded

_STOPPING = (
    "interrupted: runs end their step and write a checkpoint; press again to stop without the step"
)
STOPPED = 130
"""Exit code of a run that was not begun, as the study is being stopped."""


class Processes:
    """Runs `debate-train`, each run in a process of its own with one thread of OpenMP.

    Args:
        variables: Of the environment of each, beside the caller's.
        places: As many as are under way at once, each with variables of its own.
        options: Of each run, such as `--nproc 2`.
    """

    def __init__(
        self,
        variables: Mapping[str, str],
        places: Sequence[Mapping[str, str]] = ({},),
        options: Sequence[str] = (),
    ) -> None:
        self._variables, self._options = dict(variables), list(options)
        self._free: SimpleQueue[Mapping[str, str]] = SimpleQueue()
        for place in places:
            self._free.put(place)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock, self._is_stopping = Lock(), False

    def __call__(self, arguments: Sequence[str], log: Path) -> int:
        """Run `debate-train` with these arguments, its output at the end of a log."""
        place = self._free.get()
        try:
            return self._run([*arguments, *self._options], log, place)
        finally:
            self._free.put(place)

    def _run(self, arguments: Sequence[str], log: Path, place: Mapping[str, str]) -> int:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **self._variables, **place}
        command = [sys.executable, "-m", "debate_train", *arguments]
        with _closed_at_end() as pipe, _opened(log) as file:
            if not self._options:  # The launcher of several processes has a pipe of its own.
                command.append(f"--interrupts=/dev/fd/{pipe}")
            with self._lock:
                if self._is_stopping:
                    return STOPPED
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=environment,
                    pass_fds=[pipe],
                    start_new_session=True,  # The terminal's Ctrl-C comes through `stop` alone.
                )
                self._running.add(process)
            code = process.wait()
        with self._lock:
            self._running.discard(process)
        return code

    def stop(self) -> None:
        """Begin no further run, and let those under way end their step and write a checkpoint.

        A second call has them stop as a second Ctrl-C does.
        """
        with self._lock:
            if not self._is_stopping and self._running:
                print(_STOPPING, file=sys.stderr, flush=True)
            self._is_stopping = True
            for process in self._running:
                process.send_signal(signal.SIGINT)


@contextmanager
def _closed_at_end() -> Iterator[int]:
    """Yield the reading end of a pipe that closes when this process ends, in whatever way."""
    ends = os.pipe()
    try:
        yield ends[0]
    finally:
        for end in ends:
            os.close(end)


def _opened(log: Path) -> BinaryIO:
    return os.fdopen(open_plain(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")


@dataclass(frozen=True, slots=True)
class Task:
    """Something to do once."""

    act: Callable[[], object]
    needs: str | None = None
    """The task that has to be done before."""


def work(
    tasks: Mapping[str, Task], jobs: int, stop: Callable[[], None]
) -> tuple[dict[str, RunFailure], list[str]]:
    """Do tasks, at most `jobs` at once, in their order as far as each has what it needs.

    What needs a task that failed is left out.

    Args:
        tasks: By name; none needs one that comes later.
        jobs: How many at once.
        stop: Called at each interrupt; has tasks that are under way end soon.

    Returns:
        The failures, by name, and the names of those that were left out.

    Raises:
        KeyboardInterrupt: After all that was under way has ended.
    """
    waiting, running = dict(tasks), dict[Future[object], str]()
    failed, lost = dict[str, RunFailure](), list[str]()
    # A handler that raised could do so anywhere, in `stop` or in the pool's own locks, too.
    ended = SimpleQueue[Future[object] | None]()  # None is an interrupt.
    ending: BaseException | None = None
    with handled(heeded(), lambda *_: ended.put(None)), ThreadPoolExecutor(jobs) as pool:
        while True:
            for name, task in [*waiting.items()]:
                if task.needs in failed or task.needs in lost:
                    lost.append(name)
                    del waiting[name]
                elif len(running) < jobs and task.needs not in {*waiting, *running.values()}:
                    future = pool.submit(task.act)
                    running[future] = name
                    future.add_done_callback(ended.put)
                    del waiting[name]
            if not running:
                break
            done = ended.get()
            error = done.exception() if done else KeyboardInterrupt()
            name = running.pop(done) if done else ""
            if isinstance(error, RunFailure | UsageError | OSError):
                failed[name] = RunFailure(str(error))  # Others are done meanwhile.
            elif error is not None:
                ending = ending or error
                waiting.clear()
                stop()
    if ending is not None:
        raise ending
    return failed, lost
