"""Drift, ρ and effective number of voters of a finished run, beside what the theory predicts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from debate_train.theory.expressions import effective_voters


@dataclass(frozen=True, slots=True)
class RoundComparison:
    """A round beside the curve; None where the run did not measure it."""

    round: int
    accuracy: float | None
    drift: float | None
    constant_mass: float | None
    """The drift of round 1: of a constant advantage when rounds add little to the belief, C ≪ S."""
    no_prior: float | None
    """The drift of round 1 over the round: of a constant advantage when C ≫ S."""
    rho: float | None
    voters: float | None


def lay_beside(figures: Mapping[str, float], num_agents: int) -> list[RoundComparison]:
    """Return each round of a run beside the curve.

    With a constant advantage Theorem 4.4 gives drift_t / drift_1 = (S + C) / (S + t C), between 1
    and 1 / t whatever S and C are, which a run does not show.

    Args:
        figures: Of `debate_metrics`, or a row of `metrics.jsonl`: `accuracy/round_R`,
            `drift/round_R` and `rho/round_R`, each also with `train/` before it.
        num_agents: N.

    Raises:
        ValueError: There is no accuracy of a round among the figures.
    """
    by_round: dict[str, dict[int, float]] = {"accuracy": {}, "drift": {}, "rho": {}}
    for name, value in figures.items():
        found = re.fullmatch(r"(?:train/)?(accuracy|drift|rho)/round_(\d+)", name)
        if found and isinstance(value, int | float):
            by_round[found[1]][int(found[2])] = float(value)
    if not by_round["accuracy"]:
        raise ValueError(
            "found no accuracy/round_R, expected figures of debates with known answers"
        )
    first = by_round["drift"].get(1)
    rows = []
    for round_ in sorted(by_round["accuracy"]):
        rho = by_round["rho"].get(round_)
        curve = first if round_ else None
        rows.append(
            RoundComparison(
                round_,
                by_round["accuracy"][round_],
                by_round["drift"].get(round_),
                curve,
                None if curve is None else curve / round_,
                rho,
                None if rho is None else effective_voters(num_agents, rho),
            )
        )
    return rows


def in_words(rows: list[RoundComparison], tolerance: float = 0.01) -> list[str]:
    """Return in sentences what the theory predicts and what was seen.

    Args:
        rows: Of `lay_beside`.
        tolerance: A change of accuracy or ρ up to this counts as none. It should be about the
            standard error of the run's figures.
    """
    return [*_of_drift(rows, tolerance), *_of_correlation(rows, tolerance)]


def _of_drift(rows: list[RoundComparison], tolerance: float) -> list[str]:
    drifts = [(row.round, row.drift) for row in rows if row.drift is not None]
    if not drifts:
        return ["The run has no drift: its debates have one round."]
    first = drifts[0][1]
    sign = "no" if abs(first) <= tolerance else "a positive" if first > 0 else "a negative"
    said = [
        f"Predicted (Theorem 4.4): accuracy moves by δ / (S + t C), in the direction of the "
        f"critique's advantage δ. Seen: {first:+.3f} in round {drifts[0][0]}, as with {sign} "
        "advantage among agents who are all heard alike."
    ]
    later = [(row, row.drift) for row in rows if row.round > 1 and row.drift is not None]
    if sign == "no" or not later:
        return said
    said.append(
        "Predicted for a constant advantage: later drifts have the same sign and lie between that "
        "of round 1 and that of round 1 divided by the round (diminishing returns, Lemma 4.5)."
    )
    for row, drift in later:
        ends = sorted((row.constant_mass or 0.0, row.no_prior or 0.0))
        within = ends[0] - tolerance <= drift <= ends[1] + tolerance
        if within:
            seen = "as predicted"
        elif first * drift < 0 and abs(drift) > tolerance:
            seen = "the advantage has changed its sign"
        elif abs(drift) < abs(first):
            seen = "smaller than a constant advantage gives: the advantage shrinks"
        else:
            seen = "larger than a constant advantage gives: the advantage grows"
        said.append(
            f"Seen in round {row.round}: {drift:+.3f}, predicted {ends[0]:+.3f} to "
            f"{ends[1]:+.3f}; {seen}."
        )
    return said


def _of_correlation(rows: list[RoundComparison], tolerance: float) -> list[str]:
    known = [(row, row.rho, row.voters) for row in rows if row.rho is not None]
    if len(known) < 2:
        return ["ρ is not known in two rounds: it needs two debates on a question."]
    (begin, low, before), (end, high, after) = known[0], known[-1]
    change = high - low
    seen = "ρ did not change" if abs(change) <= tolerance else "ρ rose" if change > 0 else "ρ fell"
    return [
        "Predicted: what agents hear from each other raises the correlation ρ of their answers, "
        "most in the first rounds, so that the effective number of voters shrinks (Lemma 4.7). "
        f"Seen: {seen}, from {low:.3f} in round {begin.round} to {high:.3f} in round "
        f"{end.round}; effective voters {before:.2f} and {after:.2f}."
    ]
