"""A run or evaluation beside SDRL's theory: drift, ρ and effective voters."""

import argparse
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence

from debate_protocol.command_line import DONE, add_options, heed_options, transcripts_in
from debate_rewards.estimates import Estimate
from debate_rewards.metrics import debate_statistics
from debate_studies.belief_grid import (
    BY_ROUND,
    VOTES,
    Row,
    drift_row,
    round_rows,
    settings,
    vote_row,
)
from debate_studies.belief_model import effective_voters
from debate_studies.lines import table
from debate_train.commands.recipe_command import exit_code
from debate_train.errors import UsageError

__all__ = ["lay_beside"]

Seen = tuple[float | None, float | None, float | None]
"""A figure and the ends of its 95 % interval, None where they are not known."""


def lay_beside(figures: Mapping[str, float | Estimate], num_agents: int) -> list[Row]:
    """Return each round of a run beside the curve.

    With a constant advantage Theorem 4.4 gives drift_t / drift_1 = (S + C) / (S + t C), between 1
    and 1 / t whatever S and C are, which a run does not show.

    Args:
        figures: Of `debate_statistics`, with intervals, or of `debate_metrics` or a row of
            `metrics.jsonl`, without: `accuracy/round_R`, `drift/round_R` and `rho/round_R`, each
            also with `train/` before it.
        num_agents: N.

    Raises:
        ValueError: There is no accuracy of a round among the figures.
    """
    found: dict[str, dict[int, Seen]] = {"accuracy": {}, "drift": {}, "rho": {}}
    for name, value in figures.items():
        if match := re.fullmatch(r"(?:train/)?(accuracy|drift|rho)/round_(\d+)", name):
            seen = ((value.value, value.low, value.high) if isinstance(value, Estimate)
                    else (float(value), None, None))  # fmt: skip
            found[match[1]][int(match[2])] = seen
    if not found["accuracy"]:
        raise ValueError(
            "found no accuracy/round_R, expected figures of debates with known answers"
        )
    none: Seen = (None, None, None)
    first = found["drift"].get(1, none)[0]
    rows: list[Row] = []
    for round_, (accuracy, *_) in sorted(found["accuracy"].items()):
        drift, rho = (found[name].get(round_, none) for name in ("drift", "rho"))
        curve = first if round_ else None
        row: Row = {"round": round_, "accuracy": accuracy}
        row |= dict(zip(("drift", "drift_low", "drift_high"), drift, strict=True))
        row |= {"constant_mass": curve, "no_prior": None if curve is None else curve / round_}
        row |= dict(zip(("rho", "rho_low", "rho_high"), rho, strict=True))
        rows.append(row | {"voters": _voters(num_agents, rho[0])})
    return rows


def _voters(num_agents: int, rho: float | None) -> float | None:
    """Return N_eff; None also where agents are less alike than any independent ones."""
    voters = math.inf if rho is None else effective_voters(num_agents, rho)
    return voters if math.isfinite(voters) else None


NAME = "debate-theory"
_LEAST, _MOST = 100, 1_000_000
_DESCRIPTION = """\
Simulate SDRL's model of beliefs beside what the paper says of it; or lay recorded debates beside
the theory: accuracy, drift, ρ and the effective number of voters of each round, with 95 % intervals
over questions, beside the drift that a constant advantage would give. ρ needs two debates on a
question. docs/theory.md has the formulas."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `debate-theory`; return its exit code."""
    arguments = command_parser().parse_args(argv)
    heed_options(arguments)
    return exit_code(NAME, lambda: _run(arguments))


def command_parser() -> argparse.ArgumentParser:
    """Return what the command takes."""
    parser = argparse.ArgumentParser(
        prog=NAME,
        description=_DESCRIPTION,
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


def _run(arguments: argparse.Namespace) -> int:
    try:
        found = _of_run(arguments.transcripts) if arguments.transcripts else _of_grid(arguments)
    except ValueError as error:
        raise UsageError(str(error)) from error
    text = "\n\n".join("\n".join(_table(rows)) for rows in found.values())
    print(json.dumps(found, ensure_ascii=False) if arguments.json else text)
    return DONE


def _of_grid(arguments: argparse.Namespace) -> dict[str, list[Row]]:
    debates, seed = arguments.debates, arguments.seed
    if not _LEAST <= debates <= _MOST:
        raise UsageError(f"--debates: found {debates}, expected {_LEAST} to {_MOST:,}")
    if seed < 0:
        raise UsageError(f"--seed: found {seed}, expected at least 0")
    return {
        "drift": [drift_row(names, debates, seed) for names in settings()],
        "votes": [vote_row(cell, debates, seed) for cell in VOTES],
        "rounds": [row for name in BY_ROUND for row in round_rows(name, 6, debates, seed)],
    }


def _of_run(file: str) -> dict[str, list[Row]]:
    transcripts = list(transcripts_in("debate-study", file))
    sizes = sorted({one.protocol.num_agents for one in transcripts})
    if len(sizes) > 1:
        raise UsageError(
            f"{file}: found debates of {sizes[0]} and of {sizes[1]} agents, "
            "expected the same number in all"
        )
    return {"run": lay_beside(debate_statistics(transcripts), sizes[0])}


def _table(rows: Sequence[Row]) -> list[str]:
    cells = ([_cell(name, value) for name, value in row.items()] for row in rows)
    return table([*rows[0]], cells)


def _cell(name: str, value: object) -> str:
    if isinstance(value, float):
        digits = 1 if name.startswith("z") or name == "slack" else 4
        return f"{value:.{digits}f}"
    if isinstance(value, list | tuple):
        return ", ".join(f"{part:g}" for part in value)
    return "" if value is None else str(value)


if __name__ == "__main__":
    sys.exit(main())
