"""Interrupts wait for the end of the step, so that a checkpoint can be written."""

import signal
import time
from types import FrameType
from typing import Any


class Interrupts:
    """While open, the first SIGINT or SIGTERM is noted; the second stops at once.

    Args:
        echo_s: seconds in which further signals are taken for the first: a launcher passes on
            what the terminal has sent to its processes already.
    """

    def __init__(self, echo_s: float = 0.0) -> None:
        self.asked = False
        self._echo_s = echo_s
        self._first = 0.0
        self._old: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._old[number] = signal.signal(number, self._note)
            except ValueError:  # Not the main thread: whoever owns it handles interrupts.
                break
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked and time.monotonic() - self._first >= self._echo_s:
            raise KeyboardInterrupt
        if not self.asked:
            self.asked, self._first = True, time.monotonic()
