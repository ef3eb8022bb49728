"""Standard streams that end no command: what cannot be shown is left out."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO, cast


class SteadyStream:
    """A text stream whose writes never fail: a closed pipe or a full disk loses the text alone.

    Args:
        stream: Where to write; None, as Python has it for a descriptor that is closed, drops all.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what can be written; return the length of the text."""
        try:
            self._write(text)
        except UnicodeEncodeError as error:
            plain = text.encode(error.encoding, "backslashreplace").decode(error.encoding)
            with suppress(OSError, ValueError):
                self._write(plain)
        except (OSError, ValueError):  # ValueError: the stream was closed.
            pass
        return len(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        with suppress(OSError, ValueError):
            if self._stream is not None:
                self._stream.flush()

    def isatty(self) -> bool:
        """Return whether this is a terminal."""
        try:
            return self._stream is not None and self._stream.isatty()
        except ValueError:
            return False

    def settle(self) -> None:
        """Flush; where that fails send the rest nowhere, so that Python's own flush succeeds."""
        try:
            if self._stream is not None:
                self._stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError, AttributeError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, cast(TextIO, self._stream).fileno())
                os.close(nowhere)

    def _write(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def steady(stream: TextIO | None) -> TextIO:
    """Return a stream that writes where this one does, and never fails."""
    return cast(TextIO, SteadyStream(stream))


@contextmanager
def steady_streams() -> Iterator[None]:
    """Let standard output and error be steady while this is open.

    Descriptors 0 to 2 that are closed are opened onto nothing first: a file of the run that got
    one of them would take what libraries print.
    """
    _occupy_standard_descriptors()
    before = sys.stdout, sys.stderr
    own = SteadyStream(sys.stdout), SteadyStream(sys.stderr)
    sys.stdout, sys.stderr = cast(tuple[TextIO, TextIO], own)
    try:
        yield
    finally:
        for stream in own:
            stream.settle()
        sys.stdout, sys.stderr = before


def _occupy_standard_descriptors() -> None:
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
