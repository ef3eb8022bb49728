"""Options that every command takes: --version, --quiet and --verbose."""

import argparse
import logging
from importlib import import_module

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_shown = {"quiet": False}


def add_options(
    parser: argparse.ArgumentParser, package: str, *, part: bool = False, quiet: bool = True
) -> None:
    """Add the options to a parser.

    Args:
        parser: That of a command, or of one of its parts.
        package: Whose version `--version` prints.
        part: Whether it is that of a part, whose command takes them, too.
        quiet: False where the command has a `--quiet` of its own.
    """
    version = import_module(package).__version__
    parser.add_argument("--version", action="version", version=version)
    missing = argparse.SUPPRESS if part else None
    if quiet:
        parser.add_argument(
            "-q",
            "--quiet",
            action="store_true",
            default=missing or False,
            help="print results, warnings and errors alone",
        )
    parser.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=missing or 0,
        help="log to standard error what is done; twice for details",
    )


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
