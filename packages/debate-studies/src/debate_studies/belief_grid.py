"""The belief model on a grid of agents, beside what the paper says of it."""

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

AGENTS, ROUNDS, WEIGHT = 5, 4, 0.5
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
"""Of a table: z is a number of standard errors, the largest of all rounds."""


def settings() -> Iterator[tuple[str, str, str]]:
    """Yield names of critiques, neighbours and starts; agents that differ for two critiques."""
    for hears in HEARS:
        for critique in CRITIQUES:
            yield critique, hears, "equal"
        for critique in ("neutral", "finds right .6"):
            yield critique, hears, "mixed"


def model_of(critique: str, hears: str, start: str) -> BeliefModel:
    """Return the model of a setting."""
    weights = np.full(AGENTS, WEIGHT)
    return BeliefModel(STARTS[start], HEARS[hears], weights, CRITIQUES[critique])


def drift_row(names: tuple[str, str, str], debates: int, seed: int) -> Row:
    """Return a setting measured over D debates."""
    model = model_of(*names)
    simulated = simulate(model, ROUNDS, debates, _generator(seed, *names))
    after, before = simulated.beliefs[1:], simulated.beliefs[0]
    lemma, theorem = lemma_e1(model, simulated), theorem_4_4(model, simulated)
    return {
        **dict(zip(("critique", "hears", "start"), names, strict=True)),
        "drift": float((after[0] - before).mean()),
        "lemma_e1": float((lemma[0] - before).mean()),
        "theorem_4_4": float((theorem[0] - before).mean()),
        "z_lemma": measures.worst_unconditional(after - lemma),
        "z_lemma_given": measures.worst_given_beliefs(model, simulated, after - lemma),
        "z_theorem": measures.worst_of_mean_agent(after - theorem),
        "z_theorem_given": measures.worst_given_beliefs(model, simulated, after - theorem),
        "slack": measures.slack_of_lemma_4_5(model, simulated) if names[2] == "equal" else None,
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
    """Return a cell of `VOTES`, with a neutral critique, measured over D debates."""
    agents, prior, weight, rounds = cell
    model = symmetric(prior, neighbours("all", agents, with_own=True), weight, Lift(1, 0))
    said = simulate(model, rounds, debates, _generator(seed, *cell)).answers[-1]
    rho = max(measures.correlation(said, k) for k in range(len(prior)))
    shares = [float((said == k).mean()) for k in range(len(prior))]
    gap = shares[0] - max(shares[1:])
    voters = effective_voters(agents, rho)
    wrong = 1 - measures.plurality(said, len(prior))[1]
    return {
        **dict(zip(("agents", "prior", "weight", "rounds"), cell, strict=True)),
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
    """Return the rounds of a setting of `BY_ROUND`, measured over D debates."""
    prior, critique = BY_ROUND[name]
    model = symmetric(prior, neighbours("all", AGENTS, with_own=True), 1, critique)
    simulated = simulate(model, rounds, debates, _generator(seed, name))
    rows = []
    for round_, said in enumerate(simulated.answers):
        rho = measures.correlation(said)
        row = {"setting": name, "round": round_, "accuracy": float((said == 0).mean())}
        row |= {"majority": float(measures.plurality(said, len(prior))[0].mean())}
        rows.append(row | {"rho": rho, "voters": effective_voters(AGENTS, rho)})
    return rows


def _generator(seed: int, *names: object) -> np.random.Generator:
    """Return a generator of its own for each setting."""
    return np.random.default_rng([seed, *repr(names).encode()])
