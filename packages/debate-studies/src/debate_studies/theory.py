"""A run or evaluation beside SDRL's theory: drift, ρ and effective voters."""

import argparse
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence

from debate_protocol.command_line import DONE, heed_options, transcripts_in
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
from debate_studies.options import THEORY, theory_parser
from debate_train.commands.recipe_command import exit_code
from debate_train.errors import UsageError

__all__ = ["lay_beside"]

_FEWEST_DEBATES = 100
_MOST_DEBATES = 1_000_000
ValueAndEnds = tuple[float | None, float | None, float | None]
"""A figure and the ends of its 95 % interval, None if unknown."""
_UNKNOWN: ValueAndEnds = (None, None, None)


def lay_beside(figures: Mapping[str, float | Estimate], num_agents: int) -> list[Row]:
    """Compare the drift of each round of a run with the drift of a constant advantage.

    With a constant advantage Theorem 4.4 gives drift_t / drift_1 = (S + C) / (S + t C), between 1
    and 1 / t for all S and C, which a run does not show.

    Args:
        figures: `accuracy/round_R`, `drift/round_R` and `rho/round_R`, each also with `train/`
            before it. Those of `debate_statistics` have intervals; those of `debate_metrics` and
            of a row of `metrics.jsonl` have none.
        num_agents: N.

    Raises:
        ValueError: The figures have no accuracy of a round.
    """
    by_round: dict[str, dict[int, ValueAndEnds]] = {"accuracy": {}, "drift": {}, "rho": {}}
    for name, figure in figures.items():
        match = re.fullmatch(r"(?:train/)?(accuracy|drift|rho)/round_(\d+)", name)
        if match is None:
            continue
        values: ValueAndEnds
        if isinstance(figure, Estimate):
            values = (figure.value, figure.low, figure.high)
        else:
            values = (float(figure), None, None)
        by_round[match[1]][int(match[2])] = values
    if not by_round["accuracy"]:
        raise ValueError(
            "found no accuracy/round_R, expected figures of debates with known answers"
        )
    first_drift = by_round["drift"].get(1, _UNKNOWN)[0]
    rows: list[Row] = []
    for round_, (accuracy, _, _) in sorted(by_round["accuracy"].items()):
        drift, drift_low, drift_high = by_round["drift"].get(round_, _UNKNOWN)
        rho, rho_low, rho_high = by_round["rho"].get(round_, _UNKNOWN)
        # The two ends of the curve. Round 0 has no earlier round to drift from.
        constant_mass = first_drift if round_ else None
        no_prior = None if constant_mass is None else constant_mass / round_
        rows.append(
            {
                "round": round_,
                "accuracy": accuracy,
                "drift": drift,
                "drift_low": drift_low,
                "drift_high": drift_high,
                "constant_mass": constant_mass,
                "no_prior": no_prior,
                "rho": rho,
                "rho_low": rho_low,
                "rho_high": rho_high,
                "voters": _voters(num_agents, rho),
            }
        )
    return rows


def _voters(num_agents: int, rho: float | None) -> float | None:
    """Compute N_eff; `None` also for agents less alike than independent ones."""
    if rho is None:
        return None
    voters = effective_voters(num_agents, rho)
    return voters if math.isfinite(voters) else None


def main(argv: Sequence[str] | None = None) -> int:
    """Run `debate-theory`; return its exit code."""
    arguments = theory_parser().parse_args(argv)
    heed_options(arguments)
    return exit_code(THEORY, lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    try:
        file = arguments.transcripts
        results = _of_run(file) if file else _of_grid(arguments)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if arguments.json:
        print(json.dumps(results, ensure_ascii=False))
    else:
        print("\n\n".join("\n".join(_table(rows)) for rows in results.values()))
    return DONE


def _of_grid(arguments: argparse.Namespace) -> dict[str, list[Row]]:
    debates: int = arguments.debates
    seed: int = arguments.seed
    if not _FEWEST_DEBATES <= debates <= _MOST_DEBATES:
        raise UsageError(
            f"--debates: found {debates}, expected {_FEWEST_DEBATES} to {_MOST_DEBATES:,}"
        )
    if seed < 0:
        raise UsageError(f"--seed: found {seed}, expected at least 0")
    rows_of_rounds: list[Row] = []
    for name in BY_ROUND:
        rows_of_rounds += round_rows(name, 6, debates, seed)
    return {
        "drift": [drift_row(names, debates, seed) for names in settings()],
        "votes": [vote_row(cell, debates, seed) for cell in VOTES],
        "rounds": rows_of_rounds,
    }


def _of_run(file: str) -> dict[str, list[Row]]:
    transcripts = list(transcripts_in("debate-study", file))
    sizes = sorted({transcript.protocol.num_agents for transcript in transcripts})
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
