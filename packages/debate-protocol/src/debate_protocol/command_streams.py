"""How a command ends when its output cannot be written or it is interrupted."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable

from debate_protocol.transcripts.control_characters import escaped

DONE, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130


def run_command(name: str, command: Callable[[], int]) -> int:
    """Run a command to its exit code, without a traceback whatever becomes of its streams.

    A reader of the output that has seen enough ends the command well; output that cannot be
    written, as on a full disk or where it is closed, fails it.

    Args:
        name: What messages call the command.
        command: Returns the exit code; it may raise `SystemExit`, as argparse does.
    """
    try:
        if sys.stdout is None:  # as Python has it for a descriptor that is closed
            complain(name, "standard output is closed")
            return FAILED
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return DONE
    except KeyboardInterrupt:
        with contextlib.suppress(ValueError):  # only the main thread may
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return INTERRUPTED
    except OSError as problem:
        complain(name, f"cannot go on: {problem.strerror or problem}")
        return FAILED
    finally:
        _settle()


def complain(name: str, message: object) -> None:
    """Write a line to standard error, as far as it goes."""
    line = escaped(f"{name}: {message}").encode("utf-8", "backslashreplace").decode()
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:
            print(line, file=sys.stderr, flush=True)


def _settle() -> None:
    """Flush; where that fails send the rest nowhere, so that Python's own flush succeeds."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
