"""The belief model on a grid of settings, beside the paper's statements."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from debate_studies import belief_model as measures
from debate_studies.belief_model import (
    BeliefModel,
    Critique,
    FindsRight,
    FixedShare,
    Floats,
    Lift,
    effective_voters,
    lemma_4_7,
    lemma_e1,
    neighbours,
    simulate,
    symmetric,
    theorem_4_4,
)

AGENTS = 5
ROUNDS = 4
WEIGHT = 0.5
CRITIQUES: Mapping[str, Critique] = {
    "neutral": Lift(1, 0),
    "lift +.05": Lift(1, 0.05),
    "lift −.05": Lift(1, -0.05),
    "share .8": FixedShare(1, 0.8),
    "finds right .6": FindsRight(1, 0.6),
}
HEARS: Mapping[str, Floats] = {
    "all, self": neighbours("all", AGENTS, with_own=True),
    "all": neighbours("all", AGENTS),
    "ring": neighbours("ring", AGENTS),
    "central": neighbours("central", AGENTS),
}
_MIXED = (0.8, 0.6, 0.5, 0.4, 0.2)
STARTS: Mapping[str, Floats] = {
    "equal": np.tile((2.0, 1.0, 1.0), (AGENTS, 1)),
    "mixed": np.array([(4 * p, 2 * (1 - p), 2 * (1 - p)) for p in _MIXED]),
}
"""Prior counts of 3 answers with S = 4."""


Row = dict[str, Any]
"""A row of a table; z is the largest number of standard errors of all rounds."""


def settings() -> Iterator[tuple[str, str, str]]:
    """List settings by the names of critique, neighbours and start; two also with mixed agents."""
    for hears in HEARS:
        for critique in CRITIQUES:
            yield critique, hears, "equal"
        for critique in ("neutral", "finds right .6"):
            yield critique, hears, "mixed"


def model_of(critique: str, hears: str, start: str) -> BeliefModel:
    """Build the model of a setting."""
    weights = np.full(AGENTS, WEIGHT)
    return BeliefModel(STARTS[start], HEARS[hears], weights, CRITIQUES[critique])


def drift_row(names: tuple[str, str, str], debates: int, seed: int) -> Row:
    """Simulate D debates of a setting and compare them with both predictions."""
    model = model_of(*names)
    simulated = simulate(model, ROUNDS, debates, _generator(seed, *names))
    before = simulated.beliefs[0]
    after = simulated.beliefs[1:]
    lemma = lemma_e1(model, simulated)
    theorem = theorem_4_4(model, simulated)
    critique, hears, start = names
    slack = measures.slack_of_lemma_4_5(model, simulated) if start == "equal" else None
    return {
        "critique": critique,
        "hears": hears,
        "start": start,
        "drift": float((after[0] - before).mean()),
        "lemma_e1": float((lemma[0] - before).mean()),
        "theorem_4_4": float((theorem[0] - before).mean()),
        "z_lemma": measures.worst_unconditional(after - lemma),
        "z_lemma_given": measures.worst_given_beliefs(model, simulated, after - lemma),
        "z_theorem": measures.worst_of_mean_agent(after - theorem),
        "z_theorem_given": measures.worst_given_beliefs(model, simulated, after - theorem),
        "slack": slack,
    }


VOTES: tuple[tuple[int, tuple[float, ...], float, int], ...] = (
    (5, (48, 2), 0.5, 1),
    (9, (45, 5), 0.5, 2),
    (15, (45, 5), 0.5, 2),
    (15, (45, 5), 2, 2),
    (25, (40, 5, 5), 0.5, 1),
    (25, (40, 5, 5), 0.5, 4),
    (51, (70, 10, 10, 10), 0.5, 2),
    (5, (2, 1, 1), 0.5, 2),
)
"""Agents, prior counts, weight and rounds."""


def vote_row(cell: tuple[int, tuple[float, ...], float, int], debates: int, seed: int) -> Row:
    """Simulate D debates of a cell of `VOTES`, with a neutral critique."""
    agents, prior, weight, rounds = cell
    model = symmetric(prior, neighbours("all", agents, with_own=True), weight, Lift(1, 0))
    answers = simulate(model, rounds, debates, _generator(seed, *cell)).answers[-1]
    rho = max(measures.correlation(answers, k) for k in range(len(prior)))
    shares = [float((answers == k).mean()) for k in range(len(prior))]
    gap = shares[0] - max(shares[1:])
    voters = effective_voters(agents, rho)
    wrong = 1 - measures.plurality(answers, len(prior))[1]
    return {
        "agents": agents,
        "prior": prior,
        "weight": weight,
        "rounds": rounds,
        "rho": rho,
        "voters": voters,
        "gap": gap,
        "bound": lemma_4_7(len(prior), voters, gap),
        "error": float(wrong.mean()),
        "error_deviation": float(wrong.std(ddof=1) / np.sqrt(debates)),
    }


BY_ROUND: Mapping[str, tuple[tuple[float, ...], Critique]] = {
    "neutral, p₀ = .6": ((1.2, 0.8), Lift(1, 0)),
    "neutral, p₀ = .4": ((0.8, 1.2), Lift(1, 0)),
    "lift +.05, p₀ = .6": ((1.2, 0.8), Lift(1, 0.05)),
    "share .7, p₀ = .6": ((3, 1, 1), FixedShare(1, 0.7)),
}
"""Prior counts and critique, each with weight 1."""


def round_rows(name: str, rounds: int, debates: int, seed: int) -> list[Row]:
    """Simulate D debates of a setting of `BY_ROUND`, with a row for each round."""
    prior, critique = BY_ROUND[name]
    model = symmetric(prior, neighbours("all", AGENTS, with_own=True), 1, critique)
    simulated = simulate(model, rounds, debates, _generator(seed, name))
    rows = []
    for round_, answers in enumerate(simulated.answers):
        rho = measures.correlation(answers)
        rows.append(
            {
                "setting": name,
                "round": round_,
                "accuracy": float((answers == 0).mean()),
                "majority": float(measures.plurality(answers, len(prior))[0].mean()),
                "rho": rho,
                "voters": effective_voters(AGENTS, rho),
            }
        )
    return rows


def _generator(seed: int, *names: object) -> np.random.Generator:
    """Seed a generator by the names of a setting, so settings may be left out."""
    return np.random.default_rng([seed, *repr(names).encode()])
