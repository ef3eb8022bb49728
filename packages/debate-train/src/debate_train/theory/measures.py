"""Means over simulated debates beside what is expected of them, in standard errors."""

import numpy as np

from debate_train.theory.beliefs import BeliefModel, Simulated
from debate_train.theory.critiques import Answers, Floats
from debate_train.theory.expressions import lemma_4_5

ROUNDING = 1e-12
"""A difference that rounding in float64 explains, where debates do not differ at all."""


def standard_errors(residuals: Floats) -> Floats:
    """Return how many standard errors the mean over debates, axis 1, is away from 0."""
    debates = residuals.shape[1]
    means = residuals.mean(1)
    error = residuals.std(1, ddof=1) / np.sqrt(debates)
    return np.where(np.abs(means) < ROUNDING, 0.0, means / np.maximum(error, ROUNDING))


def worst_unconditional(residuals: Floats) -> float:
    """Return the largest number of standard errors of any round and agent, over all debates.

    Residuals, (T, D, N), are p_t minus its predicted mean.
    """
    return float(np.abs(standard_errors(residuals)).max())


def worst_of_mean_agent(residuals: Floats) -> float:
    """Return the largest number of standard errors of any round, of the mean over agents."""
    return float(np.abs(standard_errors(residuals.mean(2))).max())


def worst_given_beliefs(model: BeliefModel, simulated: Simulated, residuals: Floats) -> float:
    """Return the same given F_{t−1}: each residual times p̄_N − p of the round before.

    The product has mean 0 for every prediction that is right given the beliefs, not only on
    average over them.
    """
    before = simulated.beliefs[:-1]
    return worst_unconditional(residuals * (before @ model.hears.T - model.degree * before))


def slack_of_lemma_4_5(model: BeliefModel, simulated: Simulated) -> float:
    """Return by how many standard errors E[p_T] exceeds the sum of eq. 12, of the worst agent.

    μ is the smallest mean advantage of a round, of which the proof needs no more. Below −4 the
    bound is broken.
    """
    beliefs = simulated.beliefs
    rounds = len(beliefs) - 1
    mu = simulated.advantages.mean(1).min(0)
    total, gain = model.total(0), model.gain
    bounds = np.array(
        [
            lemma_4_5(beliefs[0, 0, i], mu[i], total[i], gain[i], rounds)[0]
            for i in range(beliefs.shape[2])
        ]
    )
    return float(standard_errors((beliefs[-1] - bounds)[None]).min())


def correlation(answers: Answers, k: int = 0) -> float:
    """Return the correlation of giving answer k in one round, (D, N), as a mean over pairs.

    Agents who are all alike have the same in every pair, and ρ of Lemma 4.7 is the largest of all
    answers. The largest of several estimates for one value would be too high. 0 for an answer that
    nobody or everybody gives.
    """
    given = (answers == k).astype(float)
    share = given.mean()
    if not 0 < share < 1:
        return 0.0
    covariance = np.cov(given.T)
    agents = len(covariance)
    pairs = (covariance.sum() - np.trace(covariance)) / (agents * (agents - 1))
    return float(pairs / (share * (1 - share)))


def plurality(answers: Answers, num_answers: int) -> tuple[Floats, Floats]:
    """Return per debate whether the plurality is right, (D,), twice.

    First with ties in expectation; then with every tie an error, which Lemma 4.7 covers, too.
    """
    counts = np.stack([(answers == k).sum(-1) for k in range(num_answers)])
    winners = counts == counts.max(0)
    shared = winners[0] / winners.sum(0)
    return shared, (shared == 1).astype(float)
