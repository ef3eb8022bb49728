"""`debate-report`: the requested page, and the run or file behind it."""

import argparse
import gc
import sys
from collections.abc import Sequence
from pathlib import Path

from debate_protocol.command_line import (
    BAD_USAGE,
    DONE,
    FAILED,
    UsageError,
    add_options,
    complain,
    heed_options,
    is_quiet,
    run_command,
)
from debate_rewards.what_if_command import (
    DEFAULT_REWARDS,
    add_replay_options,
    check_seed_options,
    named_rewards,
)

# What writes pages is imported where a page is written: help and a mistyped option need none of it.

# Options that only the page of --what-if reads.
REPLAY_OPTIONS = ("reward", "phase", "truth_gain", "seed_deviation")


def report_main(argv: Sequence[str] | None = None) -> int:
    """Write the report of a run, or a page of several, and print the path.

    Returns:
        0 when written, 2 when a folder is not a run directory, 1 when it cannot be written.
    """
    parser = command_parser()

    def run() -> int:
        arguments = parser.parse_args(argv)
        heed_options(arguments)
        # A page is millions of small objects that all stay: to look for garbage takes a sixth more.
        # A run is followed for hours, and its pages go.
        if not arguments.follow:
            gc.disable()
        try:
            paths = _write_pages(arguments)
        except (FileNotFoundError, UsageError) as error:
            complain(parser.prog, error)
            return BAD_USAGE
        except OSError as error:
            page = arguments.output or error.filename
            complain(parser.prog, f"cannot write {page}: {error.strerror}")
            return FAILED
        finally:
            gc.enable()
        print("\n".join(map(str, paths)))
        return DONE

    return run_command(parser.prog, run)


def _write_pages(arguments: argparse.Namespace) -> list[Path]:
    """Write the requested page, and the charts beside it."""
    sources: list[Path] = arguments.run_dirs
    output: Path | None = arguments.output
    tokenizer: Path | None = arguments.tokenizer
    if arguments.follow:
        return [_follow(arguments)]
    if arguments.what_if:
        return [_write_what_if(arguments)]
    # An option that would have no effect is a mistake.
    for name in REPLAY_OPTIONS:
        if getattr(arguments, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')}: needs --what-if")
    from debate_report.page import default_output, write_charts, write_comparison, write_report

    if len(sources) > 1:
        comparison = output or Path("comparison.html")
        paths = [write_comparison(sources, comparison, tokenizer=tokenizer)]
    else:
        page = output or default_output(sources[0])
        paths = [write_report(sources[0], page, tokenizer=tokenizer)]
    if arguments.csv is not None or arguments.svg is not None:
        charts = {"csv": arguments.csv, "svg": arguments.svg}
        paths += write_charts(sources, **charts, tokenizer=tokenizer)
    return paths


def _follow(arguments: argparse.Namespace) -> Path:
    sources: list[Path] = arguments.run_dirs
    others = ("csv", "svg", "tokenizer", *REPLAY_OPTIONS)
    is_other_page = arguments.what_if or any(getattr(arguments, name) for name in others)
    if len(sources) > 1 or is_other_page:
        raise UsageError("--follow: expected one RUN, and no other option than --output")

    from debate_report.following import follow_report
    from debate_report.page import default_output

    def say(text: str) -> None:
        if not is_quiet():
            print(text, file=sys.stderr, flush=True)

    return follow_report(sources[0], arguments.output or default_output(sources[0]), say)


def _write_what_if(arguments: argparse.Namespace) -> Path:
    sources: list[Path] = arguments.run_dirs
    if len(sources) > 1 or arguments.csv is not None or arguments.svg is not None:
        raise UsageError("--what-if: expected one RUN, and neither --csv nor --svg")
    check_seed_options(arguments.truth_gain, arguments.seed_deviation)
    from debate_report.page import write_what_if
    from debate_report.what_if_sections import ReplayChoices

    choices = ReplayChoices(
        rewards=named_rewards(arguments.reward or ()),
        default_rewards=named_rewards(DEFAULT_REWARDS),
        phase=arguments.phase,
        seed=arguments.seed,
        truth_gain=arguments.truth_gain,
        deviation=arguments.seed_deviation,
    )
    return write_what_if(
        sources[0], arguments.output, choices=choices, tokenizer=arguments.tokenizer
    )


def command_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="debate-report",
        description="Write one page of a run, of several runs, of an evaluation, or of "
        "rollouts of TRL, verl, verifiers, prime-rl and other programs.",
    )
    parser.add_argument(
        "run_dirs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="folder of a run or evaluation, or rollouts: a file, a folder, or a quoted pattern "
        "such as 'rollouts/step_*/train/all'",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the page (default report.html of one run's folder, comparison.html of several)",
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="write the page of a run that goes on whenever it has grown, until it ends",
    )
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="also write the points of all charts as data"
    )
    parser.add_argument(
        "--svg", type=Path, metavar="FOLDER", help="also write each chart as an image"
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FILE",
        help="tokenizer.json or a model's folder, for rollouts that are token ids alone",
    )
    parser.add_argument(
        "--what-if",
        action="store_true",
        help="instead write what each reward says of these debates or replies "
        "(what-if.html of a folder, FILE.what-if.html)",
    )
    add_replay_options(parser.add_argument_group("with --what-if"))
    add_options(parser, "debate_report")
    return parser
