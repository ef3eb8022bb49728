"""What all commands share: options, files of transcripts, and how one ends on a closed pipe."""

import argparse
import contextlib
import itertools
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import BinaryIO

from debate_protocol.transcripts.files import TranscriptError, read_lines
from debate_protocol.transcripts.showing import escaped
from debate_protocol.types import Transcript


class UsageError(ValueError):
    """Where, what was found, what was expected, and what to do: exit code 2."""


_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_shown = {"quiet": False, "as_subcommands": False}


@contextlib.contextmanager
def named_as_subcommands() -> Iterator[None]:
    """Let help and messages call the commands as `debate` starts them: `debate train`."""
    _shown["as_subcommands"] = True
    try:
        yield
    finally:
        _shown["as_subcommands"] = False


def typed_name(program: str) -> str:
    """Spell a program as the user typed it: `debate train` or its alias `debate-train`."""
    return program.replace("-", " ", 1) if _shown["as_subcommands"] else program


def add_options(parser: argparse.ArgumentParser, package: str, *, part: bool = False) -> None:
    """Add the options to a parser.

    Args:
        parser: That of a command, or of one of its parts.
        package: Whose version `--version` prints.
        part: Whether it is that of a part, whose command takes them, too.
    """
    parser.prog = typed_name(parser.prog)
    version = import_module(package).__version__
    parser.add_argument("--version", action="version", version=version)
    missing = argparse.SUPPRESS if part else None
    said = "print results, warnings and errors alone"
    default = missing or False
    parser.add_argument("-q", "--quiet", action="store_true", default=default, help=said)
    said = "log progress to standard error; twice for details"
    parser.add_argument("-v", "--verbose", action="count", default=missing or 0, help=said)


def heed_options(arguments: argparse.Namespace) -> None:
    """Be as quiet or verbose from here on as arguments ask for."""
    _shown["quiet"] = bool(getattr(arguments, "quiet", False))
    if arguments.verbose:
        level = logging.INFO if arguments.verbose == 1 else logging.DEBUG
        logging.basicConfig(level=level, format=_FORMAT)
        logging.getLogger().setLevel(level)


def is_quiet() -> bool:
    """Return whether only results, warnings and errors are to be printed."""
    return _shown["quiet"]


DONE, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130


def run_command(name: str, command: Callable[[], int]) -> int:
    """Run a command to its exit code, without a traceback whatever becomes of its streams.

    A reader of the output that has seen enough ends the command well; output that cannot be
    written, as on a full disk or where it is closed, fails it.

    Args:
        name: What messages call the command.
        command: Returns the exit code; it may raise `UsageError`, or `SystemExit` as argparse does.
    """
    try:
        if sys.stdout is None:  # as Python has it for a descriptor that is closed
            complain(name, "standard output is closed")
            return FAILED
        code = command()
        sys.stdout.flush()
        return code
    except UsageError as problem:
        complain(name, problem)
        return BAD_USAGE
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


@contextlib.contextmanager
def opened(file: str) -> Iterator[tuple[BinaryIO, str]]:
    """Open a file to read, or standard input for `-`; give what messages call it, too.

    Raises:
        UsageError: It cannot be opened.
    """
    if file == "-":
        if sys.stdin is None:
            raise UsageError("standard input: cannot be read: it is closed")
        yield sys.stdin.buffer, "standard input"
        return
    try:
        stream = open(file, "rb")  # noqa: SIM115 - closed below; only opening may be misuse
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise UsageError(f"{file}: cannot be read ({reason})") from None
    with stream:
        yield stream, file


# A document may begin with a byte order mark; no line of JSON does in these encodings.
_XML_STARTS = (b"<", b"\xef\xbb\xbf<", b"\xff\xfe", b"\xfe\xff")
NO_TRANSCRIPTS = "found no transcripts, expected one a line, or an XML document of them"


def read_debates(
    stream: BinaryIO, name: str
) -> Iterator[tuple[int, Transcript | TranscriptError, bool]]:
    """Read JSON Lines or XML, whichever begins in the first line that is not blank.

    Yields line number, transcript or what is wrong, and whether it is a torn last line.
    """
    lines: list[bytes] = []
    for line in stream:
        lines.append(line)
        if line.strip():
            break
    if lines and lines[-1].lstrip().startswith(_XML_STARTS):
        from debate_protocol.transcripts.xml import read_xml

        found = read_xml(b"".join((*lines, *stream)), name)
        yield from ((number, read, False) for number, read in found)
    else:
        yield from read_lines(itertools.chain(lines, stream), name)


def transcripts_in(command: str, file: str) -> Iterator[Transcript]:
    """Yield the transcripts of a file, or of standard input for `-`.

    A torn last line is reported in the command's name, and the others are read.

    Raises:
        UsageError: The file, or a line of it, cannot be read, or it holds no transcript.
    """
    is_empty = True
    with opened(file) as (stream, name):
        for _, read, torn in read_debates(stream, name):
            if isinstance(read, Transcript):
                is_empty = False
                yield read
            elif torn:
                complain(command, f"{read}; the other lines are read")
            else:
                raise UsageError(str(read))
    if is_empty:
        raise UsageError(f"{name}: {NO_TRANSCRIPTS}")


def complain(name: str, message: object) -> None:
    """Write a line to standard error, as far as it goes."""
    line = escaped(f"{typed_name(name)}: {message}").encode("utf-8", "backslashreplace").decode()
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
