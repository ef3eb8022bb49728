"""The arguments of `debate-study` and `debate-theory`; nothing heavy is imported here."""

import argparse
from pathlib import Path

from debate_protocol.command_line import add_options

STUDY, THEORY = "debate-study", "debate-theory"
_STUDY = """\
Run arms of recipes over seeds, as FILE says and as far as they are missing; compare them."""

_THEORY = """\
Simulate SDRL's model of beliefs beside what the paper says of it; or lay recorded debates beside
the theory: accuracy, drift, ρ and the effective number of voters of each round, with 95 % intervals
over questions, beside the drift that a constant advantage would give. ρ needs two debates on a
question. docs/theory.md has the formulas."""


def study_parser() -> argparse.ArgumentParser:
    """Build the parser of `debate-study`."""
    parser = argparse.ArgumentParser(prog=STUDY, description=_STUDY, allow_abbrev=False)
    parser.add_argument("file", type=Path, metavar="FILE", help="the YAML file of a study")
    flags = {"check": "check its recipes and stop", "tables": "tables of finished runs alone"}
    for name, what in flags.items():
        parser.add_argument(f"--{name}", action="store_true", help=what)
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder (default: runs/NAME)")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="SEED", help="only these")
    parser.add_argument("--arms", nargs="+", metavar="ARM", help="only these")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs at once (default: 1)")
    parser.add_argument("--nproc", type=int, metavar="N", help="processes of each run (deepspeed)")
    gpus = "a run at once on each: 0 1, or 0,1 2,3"
    parser.add_argument("--devices", nargs="+", default=[], metavar="GPUS", help=gpus)
    add_options(parser, "debate_studies")
    return parser


def theory_parser() -> argparse.ArgumentParser:
    """Build the parser of `debate-theory`."""
    parser = argparse.ArgumentParser(
        prog=THEORY,
        description=_THEORY,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--transcripts",
        metavar="FILE.jsonl",
        help="debates of a run or an evaluation, or - for stdin",
    )
    parser.add_argument("--debates", type=int, default=100_000, help="simulated for each setting")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    add_options(parser, "debate_studies")
    return parser
