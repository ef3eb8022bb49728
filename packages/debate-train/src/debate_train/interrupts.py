"""Signals during a run: an interrupt waits for the end of a step, a second one does not."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

Result = TypeVar("Result")

# Ctrl-C, `kill`, and a closed terminal or connection. Windows has no SIGHUP.
SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
_AHEAD = "; debates that were begun ahead have to end first, as the checkpoint needs them"
_AFTER_STEP = (
    "interrupted: stopping after this step, with a checkpoint; press again to stop at once, "
    "without this step"
)
_AT_ONCE = "interrupted: stopping now, with a checkpoint of all steps that are complete"
_SOON = "interrupted: a checkpoint is being made; press again to stop without it"


def heeded() -> list[signal.Signals]:
    """List the signals that stop a run: without an ignored SIGHUP, as under `nohup`."""
    numbers = []
    for number in SIGNALS:
        if number.name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN:
            continue
        numbers.append(number)
    return numbers


class _Stopped(KeyboardInterrupt):
    """The first interrupt came where no step under way needs to end."""


class Interrupts:
    """While open, the first SIGINT, SIGTERM or SIGHUP is noted; the second ends the step.

    The second raises KeyboardInterrupt, upon which the last complete step can still be saved; the
    third stops whatever is under way. An ignored SIGHUP, as under `nohup`, stays ignored.

    Args:
        echo_s: seconds during which further signals count as the first: a launcher passes on
            signals of the terminal to processes that already got them.
        say: shows what will happen; called from a signal handler.
        plays_ahead: whether a checkpoint may have to wait for debates.
    """

    def __init__(
        self,
        echo_s: float = 0.0,
        say: Callable[[str], None] | None = None,
        plays_ahead: bool = False,
    ) -> None:
        self._echo_s = echo_s
        self._say = say or _write
        self._ahead = _AHEAD if plays_ahead else ""
        self._num_signals = 0
        self._first_at = 0.0
        self._may_stop = False
        self._is_guarded = False
        self._previous_handlers: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether the run is to stop."""
        return self._num_signals > 0

    def __enter__(self) -> "Interrupts":
        for number in heeded():
            try:
                self._previous_handlers[number] = signal.signal(number, self._note)
            except ValueError:  # Not the main thread: its owner handles interrupts.
                break
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def stoppable(self, call: Callable[[], Result]) -> Result | None:
        """Call a function; give `None` if an interrupt ends the call or came before."""
        try:
            # Set before `asked` is read: an interrupt between the two would be lost.
            self._may_stop = True
            try:
                return None if self.asked else call()
            finally:
                self._may_stop = False
        except _Stopped:
            return None

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """While weights change or a checkpoint is written the second interrupt is noted, too."""
        self._is_guarded = True
        try:
            yield
        finally:
            self._is_guarded = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked and time.monotonic() - self._first_at < self._echo_s:
            return
        self._num_signals += 1
        if self._num_signals == 1:
            self._first_at = time.monotonic()
            if self._may_stop:
                self._say(_AT_ONCE + self._ahead)
                raise _Stopped
            self._say(_AFTER_STEP + self._ahead)
        elif self._is_guarded and self._num_signals == 2:
            self._say(_SOON)
        else:
            raise KeyboardInterrupt


def _write(text: str) -> None:
    # A signal may arrive inside a write of Python's own streams, which are not reentrant.
    with suppress(OSError):
        os.write(2, f"\n{text}\n".encode())


def interruptible(call: Callable[[], Result]) -> Result:
    """Call a function; SIGTERM and SIGHUP end the call as Ctrl-C does, so clean-up runs."""
    # A handler of somebody else stays: only signals that would kill the process are changed.
    numbers = [number for number in SIGNALS if signal.getsignal(number) == signal.SIG_DFL]
    with handled(numbers, signal.default_int_handler):
        return call()


@contextmanager
def handled(numbers: Iterable[int], handler: Callable[..., object]) -> Iterator[None]:
    """Set a handler of signals, and restore the previous handlers afterwards."""
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous_handler in previous.items():
            signal.signal(number, previous_handler)


def leave_on_interrupt() -> None:
    """Let an interrupt end the process at once, without a traceback, until `raise_interrupts`."""
    with suppress(ValueError):  # Not the main thread.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _leave)


def raise_interrupts() -> None:
    """Let an interrupt raise KeyboardInterrupt again."""
    with suppress(ValueError):
        if signal.getsignal(signal.SIGINT) is _leave:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def ignore_interrupts() -> None:
    """Ignore further interrupts of a process that ends anyway."""
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _leave(number: int, frame: FrameType | None) -> None:
    with suppress(OSError):
        os.write(2, b"interrupted\n")
    # Not sys.exit: imports under way would turn SystemExit into a traceback or catch it.
    os._exit(130)
