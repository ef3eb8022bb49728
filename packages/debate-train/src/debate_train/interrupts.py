"""Interrupts wait for the end of the step, so that a checkpoint can be written."""

import signal
from types import FrameType
from typing import Any


class Interrupts:
    """While open, the first SIGINT or SIGTERM is noted; the second stops at once."""

    def __init__(self) -> None:
        self.asked = False
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
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
