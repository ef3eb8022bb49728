"""The command `debate-report RUN_DIR`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from debate_protocol.command_options import add_options, heed_options
from debate_protocol.command_streams import BAD_USAGE, DONE, FAILED, complain, run_command
from debate_train import __version__
from debate_train.report.page import write_report


def report_main(argv: Sequence[str] | None = None) -> int:
    """Write the report of a run directory and print where it lies.

    Returns:
        0 when written, 2 when the folder is not a run directory, 1 when it cannot be written.
    """
    parser = command_parser()

    def run() -> int:
        arguments = parser.parse_args(argv)
        heed_options(arguments)
        run_dir: Path = arguments.run_dir
        try:
            path = write_report(run_dir)
        except FileNotFoundError as error:
            complain(parser.prog, error)
            return BAD_USAGE
        except OSError as error:
            complain(parser.prog, f"cannot write {run_dir}/report.html: {error.strerror}")
            return FAILED
        print(path)
        return DONE

    return run_command(parser.prog, run)


def command_parser() -> argparse.ArgumentParser:
    """Return what the command takes."""
    parser = argparse.ArgumentParser(
        prog="debate-report", description="Write report.html from the files of a run directory."
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="folder of a run")
    add_options(parser, __version__)
    return parser
