"""What the paper says of the belief model, as functions; below them what else follows from it.

Source: SDRL (paper), arXiv 2601.22297v1, section 4 and appendix E. S is the sum of an agent's
prior counts, C what a round adds to it (Theorem 4.4), m_β the mass of its critique.
"""

import numpy as np

from debate_train.theory.beliefs import BeliefModel, Simulated
from debate_train.theory.critiques import Floats


def lemma_e1(model: BeliefModel, simulated: Simulated) -> Floats:
    """Return E[p_{i,t} | F_{t−1}] for t = 1 … T, (T, D, N) (eq. 19).

    p + δ / Z + w |N| / Z · (p̄_N − p), all of round t − 1, with Z = ‖α_{i,t−1}‖₁ + C_i.
    """
    before = simulated.beliefs[:-1]
    heard = before @ model.hears.T - model.degree * before
    z = _totals(model, len(before))
    return before + (simulated.advantages + model.weight * heard) / z


def theorem_4_4(model: BeliefModel, simulated: Simulated) -> Floats:
    """Return E[p_{i,t} | F_{t−1}] as under mean-consistency p̄_N = p, (T, D, N) (eq. 11)."""
    before = simulated.beliefs[:-1]
    return before + simulated.advantages / _totals(model, len(before))


def _totals(model: BeliefModel, rounds: int) -> Floats:
    """Return Z_{i,t−1} for t = 1 … T, (T, 1, N)."""
    return np.stack([model.total(t) for t in range(1, rounds + 1)])[:, None]


def lemma_4_5(start: float, mu: float, total: float, gain: float, rounds: int) -> Floats:
    """Return both lower bounds of E[p_T], the sum and the logarithm (eq. 12), (2,).

    Args:
        start: p_{i,0}.
        mu: μ, at most δ_{i,t} in rounds 0 … T − 1.
        total: S_{i,0}.
        gain: C_i, above 0.
        rounds: T.
    """
    steps = np.arange(1, rounds + 1)
    summed = np.sum(1 / (total + steps * gain))
    logarithm = np.log((total + (rounds + 1) * gain) / (total + gain)) / gain
    return start + mu * np.array([summed, logarithm])


def effective_voters(num_agents: int, rho: float) -> float:
    """Return N_eff = N / (1 + (N − 1) ρ) (Lemma 4.7); infinite at ρ = −1 / (N − 1)."""
    spread = 1 + (num_agents - 1) * rho
    return num_agents / spread if spread > 0 else float("inf")


def lemma_4_7(num_answers: int, num_voters: float, gap: float) -> float:
    """Return K / (N_eff Δ²), at least the probability that the plurality is wrong (Lemma 4.7).

    It says nothing where it is 1 or more.

    Args:
        num_answers: K.
        num_voters: N_eff.
        gap: Δ = p_1 − p_2 > 0, from the right answer to the most frequent other one.
    """
    return num_answers / (num_voters * gap**2)


def fixed_share_belief(
    start: float, share: float, total: float, gain: float, mass: float, rounds: int
) -> float:
    """Return E[p_T] of a critique that gives the right answer the same share in each round.

    q − (q − p_0) Π_{t=1…T} (1 − m_β / (S + t C)), from eq. 11 with δ_t = m_β (q − p_t). With
    share 1 no critique of this mass does better: δ_t ≤ m_β (1 − p_t).

    Source: not in the paper.
    """
    steps = np.arange(1, rounds + 1)
    return float(share - (share - start) * np.prod(1 - mass / (total + steps * gain)))


def neutral_correlation(
    num_agents: int, weight: float, total: float, gain: float, rounds: int
) -> float:
    """Return ρ after T rounds in which all hear all and themselves, without advantage.

    1 − Π_{t=1…T} (1 − w² N / (S + t C)²): all agents then hold the same belief, a martingale whose
    variance given the round before is w² N p (1 − p) / (S + t C)². It is the same for all answers.

    Source: not in the paper.
    """
    steps = np.arange(1, rounds + 1)
    return float(1 - np.prod(1 - weight**2 * num_agents / (total + steps * gain) ** 2))


def rounds_possible(start: float, mu: float, total: float, gain: float, mass: float) -> float:
    """Return a number of rounds that an advantage of at least μ > 0 cannot outlast.

    δ ≤ m_β (1 − p), so that E[p_t] ≤ 1 − μ / m_β is needed in rounds t = 0 … T − 1, while E[p_t]
    is at least the logarithm of Lemma 4.5, which has no limit; hence
    T ≤ ((S + C) exp(C (1 − μ / m_β − p_0) / μ) − S) / C. It is 0 where round 0 has too much belief
    already.

    Raises:
        ValueError: μ or C is not above 0.

    Source: not in the paper.
    """
    if not (mu > 0 and gain > 0):
        raise ValueError(f"expected μ and C above 0, found {mu:g} and {gain:g}")
    room = 1 - mu / mass - start
    if room < 0:
        return 0.0
    with np.errstate(over="ignore"):
        return float(((total + gain) * np.exp(gain * room / mu) - total) / gain)
