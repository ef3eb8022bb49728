"""How a run ends early: errors with one clear message, and interrupts between two steps."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

from debate_protocol.command_line import UsageError as UsageError
from debate_rollout.engine import EngineConfigError, MissingExtraError


class RunFailure(RuntimeError):
    """A run that cannot go on through no fault of its recipe: one clear message, exit code 1."""


class RecipeError(UsageError):
    """A recipe that cannot be run as written."""


class DataError(UsageError):
    """Questions that are missing, empty or malformed."""


class ModelError(UsageError):
    """A model or tokenizer that cannot be used."""


REFUSALS = (UsageError, EngineConfigError, MissingExtraError)
"""What ends a command with exit code 2."""


SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""Ctrl-C, `kill`, and a terminal or connection that is closed, where the system has them."""
_AHEAD = "; debates that were begun ahead have to end first, as the checkpoint needs them"
_AFTER_STEP = (
    "interrupted: stopping after this step, with a checkpoint; press again to stop at once, "
    "without this step"
)
_AT_ONCE = "interrupted: stopping now, with a checkpoint of all steps that are complete"
_SOON = "interrupted: a checkpoint is being made; press again to stop without it"


def heeded() -> list[signal.Signals]:
    """Return the signals that stop a run: not a SIGHUP that is ignored, as under `nohup`."""
    return [
        number
        for number in SIGNALS
        if number.name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN
    ]


class _Stopped(KeyboardInterrupt):
    """The first interrupt came where nothing that is under way needs to end."""


Result = TypeVar("Result")


class Interrupts:
    """While open, the first SIGINT, SIGTERM or SIGHUP is noted; the second ends the step.

    It raises KeyboardInterrupt, upon which the last complete step can still be saved; the third
    stops whatever is under way.

    A SIGHUP that is ignored when this opens, as under `nohup`, stays ignored.

    Args:
        echo_s: seconds in which further signals are taken for the first: a launcher passes on
            what the terminal has sent to its processes already.
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
        self._count = 0
        self._first = 0.0
        self._may_stop = self._is_guarded = False
        self._old: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether the run is to stop."""
        return self._count > 0

    def __enter__(self) -> "Interrupts":
        for number in heeded():
            try:
                self._old[number] = signal.signal(number, self._note)
            except ValueError:  # Not the main thread: whoever owns it handles interrupts.
                break
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def stoppable(self, call: Callable[[], Result]) -> Result | None:
        """Return what a call returns; None where an interrupt ends it, or came before it."""
        try:
            self._may_stop = True  # Before the look at earlier ones: none may come between the two.
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
        if self.asked and time.monotonic() - self._first < self._echo_s:
            return
        self._count += 1
        if self._count == 1:
            self._first = time.monotonic()
            if self._may_stop:
                self._say(_AT_ONCE + self._ahead)
                raise _Stopped
            self._say(_AFTER_STEP + self._ahead)
        elif self._is_guarded and self._count == 2:
            self._say(_SOON)
        else:
            raise KeyboardInterrupt


def _write(text: str) -> None:
    """Write past Python's streams, which may be in the middle of a write of their own."""
    with suppress(OSError):
        os.write(2, f"\n{text}\n".encode())


def interruptible(call: Callable[[], Result]) -> Result:
    """Return what a call returns; SIGTERM and SIGHUP end it as Ctrl-C does, so it can tidy up."""
    ends = [number for number in SIGNALS if signal.getsignal(number) == signal.SIG_DFL]
    with handled(ends, signal.default_int_handler):
        return call()


@contextmanager
def handled(numbers: Iterable[int], handler: Callable[..., object]) -> Iterator[None]:
    """Have signals handled so, and afterwards as before."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def leave_on_interrupt() -> None:
    """Let an interrupt end this process at once, without a traceback, until `raise_interrupts`."""
    with suppress(ValueError):  # Not the main thread.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _leave)


def raise_interrupts() -> None:
    """Let an interrupt raise KeyboardInterrupt again."""
    with suppress(ValueError):
        if signal.getsignal(signal.SIGINT) is _leave:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def ignore_interrupts() -> None:
    """Heed no further interrupt: the process ends anyway."""
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _leave(number: int, frame: FrameType | None) -> None:
    with suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(130)
