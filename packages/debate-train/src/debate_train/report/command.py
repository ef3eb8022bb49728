"""The command `debate-report RUN_DIR …`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from debate_protocol.command_options import add_options, heed_options
from debate_protocol.command_streams import BAD_USAGE, DONE, FAILED, complain, run_command
from debate_train.report.page import write_comparison, write_report


def report_main(argv: Sequence[str] | None = None) -> int:
    """Write the report of one run, or one page of several, and print where it lies.

    Returns:
        0 when written, 2 when a folder is not a run directory, 1 when it cannot be written.
    """
    parser = command_parser()

    def run() -> int:
        arguments = parser.parse_args(argv)
        heed_options(arguments)
        runs: list[Path] = arguments.run_dirs
        output: Path = arguments.output or (
            runs[0] / "report.html" if len(runs) == 1 else Path("comparison.html")
        )
        try:
            if len(runs) == 1:
                path = write_report(runs[0], output)
            else:
                path = write_comparison(runs, output)
        except FileNotFoundError as error:
            complain(parser.prog, error)
            return BAD_USAGE
        except OSError as error:
            complain(parser.prog, f"cannot write {output}: {error.strerror}")
            return FAILED
        print(path)
        return DONE

    return run_command(parser.prog, run)


def command_parser() -> argparse.ArgumentParser:
    """Return what the command takes."""
    parser = argparse.ArgumentParser(
        prog="debate-report",
        description="Write report.html from the files of a run directory, or one page of several.",
    )
    parser.add_argument("run_dirs", type=Path, nargs="+", metavar="RUN_DIR", help="folder of a run")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the page (default report.html of one run's folder, comparison.html of several)",
    )
    add_options(parser, "debate_train")
    return parser
