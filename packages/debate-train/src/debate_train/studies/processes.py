"""Runs in processes of their own, several at once, in an order in which each has what it needs."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from debate_train.errors import RunFailure, UsageError

_STOPPING = (
    "interrupted: runs end their step and write a checkpoint; press again to stop without the step"
)
STOPPED = 130
"""Exit code of a run that was not begun, as the study is being stopped."""


class Processes:
    """Runs `debate-train`, each run in a process of its own with one thread of OpenMP.

    Args:
        variables: Of the environment of each, beside the caller's.
        devices: What CUDA_VISIBLE_DEVICES is for runs that are under way at once; without any it
            stays as it is.
        options: Of each run, such as `--nproc 2`.
    """

    def __init__(
        self,
        variables: Mapping[str, str],
        devices: Sequence[str] = (),
        options: Sequence[str] = (),
    ) -> None:
        self._variables, self._options = dict(variables), list(options)
        self._free: SimpleQueue[dict[str, str]] = SimpleQueue()
        for device in devices:
            self._free.put({"CUDA_VISIBLE_DEVICES": device})
        self._has_devices = bool(devices)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock, self._is_stopping = Lock(), False

    def __call__(self, arguments: Sequence[str], log: Path) -> int:
        """Run `debate-train` with these arguments, its output at the end of a log."""
        device = self._free.get() if self._has_devices else {}
        try:
            return self._run([*arguments, *self._options], log, device)
        finally:
            if self._has_devices:
                self._free.put(device)

    def _run(self, arguments: Sequence[str], log: Path, device: Mapping[str, str]) -> int:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **self._variables, **device}
        command, pipe = [sys.executable, "-m", "debate_train", *arguments], log.with_suffix(".pipe")
        if not self._options:  # The launcher of several processes has a pipe of its own.
            command.append(f"--interrupts={pipe}")
        with _closed_at_end(pipe), log.open("ab") as file:
            with self._lock:
                if self._is_stopping:
                    return STOPPED
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=environment,
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
def _closed_at_end(pipe: Path) -> Iterator[None]:
    """Hold a pipe that closes when this process ends, in whatever way, which a run heeds."""
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR)  # So that neither end ever waits for the other to open it.
    try:
        yield
    finally:
        os.close(end)
        pipe.unlink(missing_ok=True)


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
    with ThreadPoolExecutor(jobs) as pool:
        try:
            return _worked(tasks, jobs, pool)
        except BaseException:
            _end(pool, stop)
            raise


def _worked(
    tasks: Mapping[str, Task], jobs: int, pool: ThreadPoolExecutor
) -> tuple[dict[str, RunFailure], list[str]]:
    waiting, running = dict(tasks), dict[Future[object], str]()
    failed, lost = dict[str, RunFailure](), list[str]()
    while waiting or running:
        for name, task in [*waiting.items()]:
            if task.needs in failed or task.needs in lost:
                lost.append(name)
                del waiting[name]
            elif len(running) < jobs and task.needs not in {*waiting, *running.values()}:
                running[pool.submit(task.act)] = name
                del waiting[name]
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            name = running.pop(future)
            try:
                future.result()
            except (RunFailure, UsageError, OSError) as error:  # Others are done meanwhile.
                failed[name] = RunFailure(str(error))
    return failed, lost


def _end(pool: ThreadPoolExecutor, stop: Callable[[], None]) -> None:
    """Wait until what is under way has ended; each further interrupt is passed on."""
    while True:
        stop()
        try:
            pool.shutdown(cancel_futures=True)
        except KeyboardInterrupt:
            continue
        return
