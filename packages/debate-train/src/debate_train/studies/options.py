"""What `debate-train study` takes."""

import argparse
from pathlib import Path


def add_study_options(parser: argparse.ArgumentParser) -> None:
    """Add the file and the options of the command."""
    parser.add_argument("file", type=Path, metavar="FILE", help="the YAML file of a study")
    parser.add_argument(
        "--check",
        action="store_true",
        help="say what would be run and whether its recipes can be, then stop",
    )
    parser.add_argument(
        "--tables", action="store_true", help="run nothing: tables of finished runs"
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="folder of runs and logs (default: runs/NAME)"
    )
    parser.add_argument(
        "--seeds", nargs="+", type=int, metavar="SEED", help="only these of its seeds"
    )
    parser.add_argument("--arms", nargs="+", metavar="ARM", help="only these of its arms")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs at once (default: 1)")
    parser.add_argument(
        "--devices",
        nargs="+",
        default=[],
        metavar="GPUS",
        help="run as many at once, each with one of these as CUDA_VISIBLE_DEVICES: 0 1, or 0,1 2,3",
    )
    parser.add_argument(
        "--nproc", type=int, metavar="N", help="processes of each run (trainer.type: deepspeed)"
    )
