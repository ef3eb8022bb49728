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
from debate_rewards.estimates import Estimate
from debate_studies.belief_grid import BY_ROUND, VOTES, drift_row, round_rows, settings, vote_row
from debate_studies.belief_model import effective_voters
from debate_train.commands.compare import Side, sides_of
from debate_train.commands.recipe_command import exit_code
from debate_train.interrupts import UsageError

__all__ = ["in_words", "lay_beside"]

_APART = " among agents who each hear as many others, but not the same ones"
_HEARD = {
    "central": "; but the center is heard by all and the others by it alone, which moves accuracy "
    "without any advantage (Lemma E.1)",
    "ring": _APART,
    "sparse": _APART,
}
"""By topology, in place of what holds where everybody hears everybody."""


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
    """A figure and its interval, which is the figure alone where none is known."""

    value: float | None
    low: float | None
    high: float | None

    @property
    def ends(self) -> tuple[float, float]:
        value = self.value or 0.0
        return (value if self.low is None else self.low, value if self.high is None else self.high)

    def __str__(self) -> str:
        between = "" if self.low is None else f" [{self.low:+.3f}, {self.high:+.3f}]"
        return f"{self.value:+.3f}{between}"


def in_words(rows: Sequence[RoundComparison], topology: str = "all") -> list[str]:
    """Return in sentences what the theory predicts and what was seen.

    A change counts as seen where its interval leaves 0 out, and as against a prediction where its
    interval leaves out all that is predicted, the interval of round 1 included. Figures without
    intervals are taken at their word, which a last sentence says.

    Args:
        rows: Of `lay_beside`.
        topology: Of the debates; the theorem holds where everybody hears everybody.
    """
    said = [*_of_drift(rows, topology), *_of_correlation(rows)]
    figures = [row for row in rows if row.drift is not None or row.rho is not None]
    if figures and all(row.drift_low is None and row.rho_low is None for row in figures):
        said.append("These figures came without intervals: what is said of them may be noise.")
    return said


def _of_drift(rows: Sequence[RoundComparison], topology: str) -> list[str]:
    drifts = [
        (row.round, _Seen(row.drift, row.drift_low, row.drift_high))
        for row in rows
        if row.drift is not None
    ]
    if not drifts:
        return ["The run has no drift: its debates have one round."]
    number, first = drifts[0]
    low, high = first.ends
    sign = "a positive" if low > 0 else "a negative" if high < 0 else "no"
    beyond = "" if sign != "no" or low == high else " beyond its interval"
    heard = _HEARD.get(topology, " among agents who are all heard alike")
    said = [
        f"Predicted (Theorem 4.4): accuracy moves by δ / (S + t C), in the direction of the "
        f"critique's advantage δ. Seen: {first} in round {number}, as with {sign} "
        f"advantage{beyond}{heard}."
    ]
    if sign == "no" or number != 1 or len(drifts) == 1:
        return said
    said.append(
        "Predicted for a constant advantage: later drifts have the same sign and lie between that "
        "of round 1 and that of round 1 divided by the round (diminishing returns, Lemma 4.5)."
    )
    return said + [_later(first, number, drift) for number, drift in drifts[1:]]


def _later(first: _Seen, number: int, drift: _Seen) -> str:
    """Say how the drift of a later round stands to that of round 1."""
    corners = [end / part for end in first.ends for part in (1, number)]
    least, most = min(corners), max(corners)
    low, high = drift.ends
    if low <= most and high >= least:
        seen = "as predicted"
    elif (high < 0) if least > 0 else (low > 0):
        seen = "the advantage has changed its sign"
    elif (high < least) if least > 0 else (low > most):
        seen = "smaller than a constant advantage gives: the advantage shrinks"
    else:
        seen = "larger than a constant advantage gives: the advantage grows"
    return f"Seen in round {number}: {drift}, predicted {least:+.3f} to {most:+.3f}; {seen}."


def _of_correlation(rows: Sequence[RoundComparison]) -> list[str]:
    known = [row for row in rows if row.rho is not None]
    if len(known) < 2:
        return ["ρ is not known in two rounds: it needs two debates on a question."]
    begin, end = known[0], known[-1]
    before, after = (_Seen(row.rho, row.rho_low, row.rho_high) for row in (begin, end))
    if after.ends[0] > before.ends[1]:
        seen = "ρ rose"
    elif after.ends[1] < before.ends[0]:
        seen = "ρ fell"
    else:
        seen = "ρ did not change" if before.low is None else "no change of ρ beyond its intervals"
    return [
        "Predicted: what agents hear from each other raises the correlation ρ of their answers, "
        "most in the first rounds, so that the effective number of voters shrinks (Lemma 4.7). "
        f"Seen: {seen}, from {_plain(before)} in round {begin.round} to {_plain(after)} in round "
        f"{end.round}; effective voters {_number(begin.voters)} and {_number(end.voters)}."
    ]


def _number(voters: float | None) -> str:
    return "not defined" if voters is None else f"{voters:.2f}"


def _plain(rho: _Seen) -> str:
    return str(rho).replace("+", "")


NAME = "debate-theory"
_LEAST, _MOST = 100, 1_000_000
_DESCRIPTION = """\
Simulate SDRL's model of beliefs beside what the paper says of it; or lay a finished evaluation or
run beside the theory: for each policy and mode whose agents are all of one policy, accuracy, drift,
ρ and the effective number of voters of each round, with 95 % intervals over questions, and in words
what the theory predicts and what was seen. ρ needs two debates on a question (evaluation.runs of 2
or more). docs/theory.md has the formulas."""


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
    from debate_rewards.cli import transcripts_in

    return of_debates(transcripts_in(arguments.transcripts), arguments.transcripts)


def of_debates(transcripts: Sequence[Transcript], name: str) -> dict[str, Any]:
    """Return finished debates beside the theory: rows of rounds, and sentences.

    Raises:
        UsageError: They are of several numbers of agents; `name` is where they come from.
        ValueError: No question has an answer that is known.
    """
    from debate_rewards.metrics import debate_statistics

    sizes = sorted({one.protocol.num_agents for one in transcripts})
    if len(sizes) > 1:
        raise UsageError(
            f"{name}: found debates of {sizes[0]} and of {sizes[1]} agents, "
            "expected the same number in all"
        )
    rows = lay_beside(debate_statistics(transcripts), sizes[0])
    return {
        "run": [asdict(row) for row in rows],
        "words": in_words(rows, transcripts[0].protocol.topology),
    }


def as_text(found: Mapping[str, Any]) -> str:
    """Return tables, and sentences where there are some."""
    parts = [_table(rows) for name, rows in found.items() if name != "words"]
    return "\n\n".join([*parts, *found.get("words", ())])


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
