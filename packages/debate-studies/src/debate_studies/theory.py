"""A run or evaluation beside SDRL's theory: drift, ρ and effective voters."""

import argparse
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from debate_protocol.command_line import DONE, add_options, heed_options
from debate_protocol.transcripts.files import TranscriptError, read_transcripts
from debate_protocol.types import Transcript, agents_by_policy
from debate_rewards.cli import transcripts_in
from debate_rewards.estimates import Estimate
from debate_rewards.metrics import debate_statistics
from debate_studies.belief_grid import BY_ROUND, VOTES, drift_row, round_rows, settings, vote_row
from debate_studies.belief_model import effective_voters
from debate_train.commands.compare import Side, sides_of
from debate_train.commands.recipe_command import exit_code
from debate_train.interrupts import UsageError

__all__ = ["lay_beside"]


@dataclass(frozen=True, slots=True)
class RoundComparison:
    """A round beside the curve; None where the run did not measure it.

    `low` and `high` are the ends of 95 % intervals, None where figures came without.
    """

    round: int
    accuracy: float | None
    drift: float | None
    drift_low: float | None
    drift_high: float | None
    constant_mass: float | None
    """The drift of round 1: of a constant advantage when rounds add little to the belief, C ≪ S."""
    no_prior: float | None
    """The drift of round 1 over the round: of a constant advantage when C ≫ S."""
    rho: float | None
    rho_low: float | None
    rho_high: float | None
    voters: float | None
    """None also where agents are less alike than any independent ones: ρ ≤ −1 / (N − 1)."""


def lay_beside(figures: Mapping[str, float | Estimate], num_agents: int) -> list[RoundComparison]:
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
    found: dict[str, dict[int, _Seen]] = {"accuracy": {}, "drift": {}, "rho": {}}
    for name, value in figures.items():
        match = re.fullmatch(r"(?:train/)?(accuracy|drift|rho)/round_(\d+)", name)
        if match and isinstance(value, Estimate):
            found[match[1]][int(match[2])] = _Seen(value.value, value.low, value.high)
        elif match and isinstance(value, int | float):
            found[match[1]][int(match[2])] = _Seen(float(value), None, None)
    if not found["accuracy"]:
        raise ValueError(
            "found no accuracy/round_R, expected figures of debates with known answers"
        )
    none = _Seen(None, None, None)
    first = found["drift"].get(1, none).value
    rows = []
    for round_ in sorted(found["accuracy"]):
        drift, rho = (found[name].get(round_, none) for name in ("drift", "rho"))
        curve = first if round_ else None
        rows.append(
            RoundComparison(
                round_,
                found["accuracy"][round_].value,
                drift.value,
                drift.low,
                drift.high,
                curve,
                None if curve is None else curve / round_,
                rho.value,
                rho.low,
                rho.high,
                None if rho.value is None else _voters(num_agents, rho.value),
            )
        )
    return rows


def _voters(num_agents: int, rho: float) -> float | None:
    voters = effective_voters(num_agents, rho)
    return voters if math.isfinite(voters) else None


@dataclass(frozen=True, slots=True)
class _Seen:
    """A figure and its interval, where one is known."""

    value: float | None
    low: float | None
    high: float | None


NAME = "debate-theory"
_LEAST, _MOST = 100, 1_000_000
_DESCRIPTION = """\
Simulate SDRL's model of beliefs beside what the paper says of it; or lay a finished evaluation or
run beside the theory: for each policy and mode whose agents are all of one policy, accuracy, drift,
ρ and the effective number of voters of each round, with 95 % intervals over questions,
beside the drift that a constant advantage would give. ρ needs two debates on a question
(evaluation.runs of 2 or more). docs/theory.md has the formulas."""


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
        "evaluation", nargs="?", metavar="FOLDER[:POLICY]", help="a finished evaluation"
    )
    parser.add_argument(
        "--transcripts", metavar="FILE.jsonl", help="debates of a finished run, or - for stdin"
    )
    parser.add_argument("--debates", type=int, default=100_000, help="simulated for each setting")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    add_options(parser, "debate_studies")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    if arguments.evaluation is not None:
        found = _of_evaluation(arguments.evaluation)
        text = "\n\n".join(f"{name}\n\n{as_text(own)}" for name, own in found.items())
    else:
        try:
            found = _of_run(arguments) if arguments.transcripts else _of_grid(arguments)
        except ValueError as error:
            raise UsageError(str(error)) from error
        text = as_text(found)
    print(json.dumps(found, ensure_ascii=False) if arguments.json else text)
    return DONE


def _of_grid(arguments: argparse.Namespace) -> dict[str, Any]:
    debates, seed = arguments.debates, arguments.seed
    if not _LEAST <= debates <= _MOST:
        raise UsageError(f"--debates: found {debates}, expected {_LEAST} to {_MOST:,}")
    if seed < 0:
        raise UsageError(f"--seed: found {seed}, expected at least 0")
    by_round = [row for name in BY_ROUND for row in round_rows(name, 6, debates, seed)]
    return {
        "drift": [asdict(drift_row(names, debates, seed)) for names in settings()],
        "votes": [asdict(vote_row(cell, debates, seed)) for cell in VOTES],
        "rounds": [asdict(row) for row in by_round],
    }


def _of_run(arguments: argparse.Namespace) -> dict[str, Any]:
    return of_debates(transcripts_in(arguments.transcripts), arguments.transcripts)


def of_debates(transcripts: Sequence[Transcript], name: str) -> dict[str, Any]:
    """Return finished debates beside the theory, a row for each round.

    Raises:
        UsageError: They are of several numbers of agents; `name` is where they come from.
        ValueError: No question has an answer that is known.
    """
    sizes = sorted({one.protocol.num_agents for one in transcripts})
    if len(sizes) > 1:
        raise UsageError(
            f"{name}: found debates of {sizes[0]} and of {sizes[1]} agents, "
            "expected the same number in all"
        )
    rows = lay_beside(debate_statistics(transcripts), sizes[0])
    return {"run": [asdict(row) for row in rows]}


def as_text(found: Mapping[str, Any]) -> str:
    """Return tables."""
    return "\n\n".join(map(_table, found.values()))


def _table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as a Markdown table."""
    rows = list(rows)
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    lines += [[_cell(name, value) for name, value in row.items()] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(name: str, value: object) -> str:
    if isinstance(value, float):
        digits = 1 if name.startswith("z") or name == "slack" else 4
        return f"{value:.{digits}f}"
    if isinstance(value, list | tuple):
        return ", ".join(f"{part:g}" for part in value)
    return "" if value is None else str(value)


def _of_evaluation(text: str) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {}
    for side in sides_of([text]):
        for mode, debates in _debates(side):
            try:
                found[f"{side.policy}, {mode}"] = of_debates(debates, mode)
            except UsageError:
                raise
            except ValueError as error:
                raise UsageError(f"{text}, mode {mode}: {error}") from error
    if not found:
        raise UsageError(
            f"{text}: found no debates of several rounds among agents of one policy; expected a "
            "mode of type debate with max_rounds of 2 or more"
        )
    return found


def _debates(side: Side) -> Iterator[tuple[str, list[Transcript]]]:
    """Yield the modes whose debates the theory is about, with their debates."""
    folder: Path = side.evaluation.path / "transcripts" / side.policy
    for mode in side.evaluation.results["modes"]:
        try:
            debates = list(read_transcripts(folder / f"{mode}.jsonl"))
        except (OSError, TranscriptError) as error:
            raise UsageError(f"{folder / mode}.jsonl: cannot be read: {error}") from error
        rules = [one.protocol for one in debates]
        if rules and all(one.max_rounds > 1 and not agents_by_policy(one) for one in rules):
            yield mode, debates


if __name__ == "__main__":
    sys.exit(main())
