"""A simulation of SDRL's belief model with private critique, and the paper's statements on it.

Arrays of pseudo-counts have shape (K, D, N): answers, debates, agents; answer 0 is right.
"""

import typing
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from debate_protocol.types import Protocol, TopologyName
from debate_protocol.types import neighbours as seen_by

__all__ = [
    "BeliefModel", "FindsRight", "FixedShare", "Lift", "Simulated", "effective_voters",
    "lemma_4_5", "lemma_4_7", "lemma_e1", "neighbours",
    "simulate", "symmetric", "theorem_4_4",
]  # fmt: skip

Floats = npt.NDArray[np.float64]
Answers = npt.NDArray[np.int64]
ROUNDING = 1e-12
"""Largest difference by float64 rounding, for debates without any other difference."""


class Critique(typing.Protocol):
    """A private critique of constant mass m_β (SDRL, eq. 17)."""

    @property
    def mass(self) -> float:
        """The constant ‖β_{i,t}‖₁ = m_β."""
        ...

    def draw(
        self, means: Floats, answers: Answers, hears: Floats, rng: np.random.Generator
    ) -> Floats:
        """Draw β_{i,t}, (K, D, N), from the answers of the round.

        Args:
            means: Dirichlet means θ̄_{i,t}, (K, D, N).
            answers: y_{i,t}, (D, N).
            hears: Row i marks the neighbours N(i) with 1, (N, N).
            rng: Source of randomness.
        """
        ...

    def expected_right(self, means: Floats, hears: Floats) -> Floats:
        """Compute E[β⁽¹⁾_{i,t} | F_t], (D, N); F_t does not contain the answers of round t."""
        ...


@dataclass(frozen=True, slots=True)
class FixedShare:
    """Gives the right answer the same share in each round and splits the rest evenly.

    The advantage δ = m_β (share − p) shrinks while the belief p rises.
    """

    mass: float
    share: float

    def draw(
        self, means: Floats, answers: Answers, hears: Floats, rng: np.random.Generator
    ) -> Floats:
        """Share β alike among all agents."""
        shares = np.full(len(means), (1 - self.share) / (len(means) - 1))
        shares[0] = self.share
        return np.broadcast_to(self.mass * shares[:, None, None], means.shape)

    def expected_right(self, means: Floats, hears: Floats) -> Floats:
        """Compute m_β times the share."""
        return np.full(means.shape[1:], self.mass * self.share)


@dataclass(frozen=True, slots=True)
class Lift:
    """Gives the right answer the agent's own belief and `lift` more, within 0 and 1.

    The advantage is constant, δ = m_β · lift, as long as p + lift stays within 0 and 1. A lift of
    0 is the neutral critique δ = 0.
    """

    mass: float
    lift: float

    def draw(
        self, means: Floats, answers: Answers, hears: Floats, rng: np.random.Generator
    ) -> Floats:
        """Compute β; wrong answers share the rest as in the agent's belief."""
        right = self.expected_right(means, hears)
        critique: Floats = means * ((self.mass - right) / (1 - means[0]))
        critique[0] = right
        return critique

    def expected_right(self, means: Floats, hears: Floats) -> Floats:
        """Compute m_β (p + lift)."""
        right: Floats = self.mass * np.clip(means[0] + self.lift, 0, 1)
        return right


@dataclass(frozen=True, slots=True)
class FindsRight:
    """Puts all mass on a single answer of the round.

    If the agent or a neighbour has given the right answer, the critique takes it with probability
    `chance`; else it takes the answer of the agent.
    """

    mass: float
    chance: float

    def draw(
        self, means: Floats, answers: Answers, hears: Floats, rng: np.random.Generator
    ) -> Floats:
        """Draw β from the answers of the round."""
        with_own = np.maximum(hears, np.eye(len(hears)))
        hears_right = (answers == 0).astype(float) @ with_own.T > 0
        takes_right = hears_right & (rng.random(hears_right.shape) < self.chance)
        chosen = np.where(takes_right, 0, answers)
        critique = np.zeros(means.shape)
        for k in range(len(means)):
            critique[k] = self.mass * (chosen == k)
        return critique

    def expected_right(self, means: Floats, hears: Floats) -> Floats:
        """Compute m_β (c (1 − Π (1 − p_j)) + (1 − c) p_i), j over N(i) and i."""
        with_own = np.maximum(hears, np.eye(len(hears)))
        # A product over the neighbours is a sum of logarithms.
        all_wrong = np.exp(np.log1p(-means[0]) @ with_own.T)
        right: Floats = self.mass * (self.chance * (1 - all_wrong) + (1 - self.chance) * means[0])
        return right


@dataclass(frozen=True, slots=True)
class BeliefModel:
    """N agents with pseudo-counts of K answers to a question; answer 0 is right."""

    start: Floats
    """α_{i,0}, (N, K), all above 0."""
    hears: Floats
    """Row i marks the neighbours N(i) with 1, (N, N); an agent may be its own neighbour."""
    weight: Floats
    """w_i ≥ 0, (N,): the pseudo-count of a neighbour's answer."""
    critique: Critique

    @property
    def degree(self) -> Floats:
        """|N(i)|, (N,)."""
        degree: Floats = self.hears.sum(1)
        return degree

    @property
    def gain(self) -> Floats:
        """C_i = m_β + w_i |N(i)|, (N,): the growth of ‖α_i‖₁ in a round (Theorem 4.4)."""
        return self.critique.mass + self.weight * self.degree

    def total(self, round_: int) -> Floats:
        """Compute ‖α_{i,t}‖₁ = S_{i,0} + t C_i, (N,) (eq. 33)."""
        total: Floats = self.start.sum(1) + round_ * self.gain
        return total


@dataclass(frozen=True, slots=True)
class Simulated:
    """D debates of T rounds after the first answers."""

    beliefs: Floats
    """p_{i,t}, (T + 1, D, N) (eq. 9)."""
    answers: Answers
    """y_{i,t}, (T + 1, D, N)."""
    advantages: Floats
    """δ_{i,t}, (T, D, N): the advantage of round t moves the belief of round t + 1 (eq. 10)."""


def neighbours(topology: TopologyName, num_agents: int, *, with_own: bool = False) -> Floats:
    """Build the matrix of neighbours, (N, N), in a topology of debates.

    Args:
        topology: Under `central` all hear agent 0, and agent 0 hears all; `sparse` has degree 2.
        num_agents: N.
        with_own: Whether an agent's own last answer counts as a neighbour's.
    """
    degree = 2 if topology == "sparse" else None
    protocol = Protocol(num_agents=num_agents, topology=topology, degree=degree)
    hears = np.zeros((num_agents, num_agents))
    for agent in range(num_agents):
        hears[agent, list(seen_by(protocol, agent))] = 1
        if with_own:
            hears[agent, agent] = 1
    return hears


def symmetric(
    prior: Sequence[float], hears: Floats, weight: float, critique: Critique
) -> BeliefModel:
    """Build the model of agents with the same prior counts, (K,), weight and critique."""
    num_agents = len(hears)
    return BeliefModel(
        start=np.tile(np.asarray(prior, float), (num_agents, 1)),
        hears=hears,
        weight=np.full(num_agents, weight),
        critique=critique,
    )


def simulate(
    model: BeliefModel,
    rounds: int,
    debates: int,
    rng: np.random.Generator,
    *,
    through_theta: bool = False,
) -> Simulated:
    """Play independent debates (eq. 8).

    Args:
        model: Agents.
        rounds: T, the updates after the first answers.
        debates: D.
        rng: Draws answers and critiques.
        through_theta: Draw θ ~ Dirichlet(α) first, as definition 4.2 does. An agent gives one
            answer for each θ, so the answer's distribution is the Dirichlet mean either way
            (eq. 13); drawing from the mean is faster.
    """
    num_agents, num_answers = model.start.shape
    alpha = np.repeat(model.start.T[:, None, :], debates, axis=1)
    beliefs = np.empty((rounds + 1, debates, num_agents))
    answers = np.empty((rounds + 1, debates, num_agents), dtype=np.int64)
    advantages = np.empty((rounds, debates, num_agents))
    for round_ in range(rounds + 1):
        means = alpha / alpha.sum(0)
        beliefs[round_] = means[0]

        # A Dirichlet draw is a normalized gamma draw. An answer is drawn by its share of the
        # sum, so nothing has to be normalized.
        shares = rng.standard_gamma(alpha) if through_theta else alpha
        bounds = np.cumsum(shares, axis=0)
        position = rng.random(bounds.shape[1:]) * bounds[-1]
        answers[round_] = (position >= bounds[:-1]).sum(0)
        if round_ == rounds:
            break

        expected = model.critique.expected_right(means, model.hears)
        advantages[round_] = expected - model.critique.mass * means[0]
        alpha += model.critique.draw(means, answers[round_], model.hears, rng)
        for k in range(num_answers):
            num_neighbours = (answers[round_] == k).astype(float) @ model.hears.T
            alpha[k] += model.weight * num_neighbours
    return Simulated(beliefs, answers, advantages)


def lemma_e1(model: BeliefModel, simulated: Simulated) -> Floats:
    """Predict E[p_{i,t} | F_{t−1}] for t = 1 … T, (T, D, N) (eq. 19).

    p + δ / Z + w |N| / Z · (p̄_N − p), all of round t − 1, with Z = ‖α_{i,t−1}‖₁ + C_i.
    """
    before = simulated.beliefs[:-1]
    heard = before @ model.hears.T - model.degree * before
    z = _totals(model, len(before))
    return before + (simulated.advantages + model.weight * heard) / z


def theorem_4_4(model: BeliefModel, simulated: Simulated) -> Floats:
    """Predict E[p_{i,t} | F_{t−1}] under mean-consistency p̄_N = p, (T, D, N) (eq. 11)."""
    before = simulated.beliefs[:-1]
    return before + simulated.advantages / _totals(model, len(before))


def _totals(model: BeliefModel, rounds: int) -> Floats:
    """Compute Z_{i,t−1} for t = 1 … T, (T, 1, N)."""
    return np.stack([model.total(t) for t in range(1, rounds + 1)])[:, None]


def lemma_4_5(start: float, mu: float, total: float, gain: float, rounds: int) -> Floats:
    """Compute both lower bounds of E[p_T], the sum and the logarithm (eq. 12), (2,).

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
    """Compute N_eff = N / (1 + (N − 1) ρ) (Lemma 4.7); infinite at ρ = −1 / (N − 1)."""
    spread = 1 + (num_agents - 1) * rho
    return num_agents / spread if spread > 0 else float("inf")


def lemma_4_7(num_answers: int, num_voters: float, gap: float) -> float:
    """Bound the probability of a wrong plurality by K / (N_eff Δ²) (Lemma 4.7).

    A bound of 1 or more says nothing.

    Args:
        num_answers: K.
        num_voters: N_eff.
        gap: Δ = p_1 − p_2 > 0, from the right answer to the most frequent other answer.
    """
    return num_answers / (num_voters * gap**2)


def standard_errors(residuals: Floats) -> Floats:
    """Divide the mean over debates, axis 1, by its standard error."""
    num_debates = residuals.shape[1]
    means = residuals.mean(1)
    errors = residuals.std(1, ddof=1) / np.sqrt(num_debates)
    return np.where(np.abs(means) < ROUNDING, 0.0, means / np.maximum(errors, ROUNDING))


def worst_unconditional(residuals: Floats) -> float:
    """Find the largest number of standard errors of any round and agent, over all debates.

    Residuals, (T, D, N), are p_t minus the predicted mean.
    """
    return float(np.abs(standard_errors(residuals)).max())


def worst_of_mean_agent(residuals: Floats) -> float:
    """Find the largest number of standard errors of any round, of the mean over agents."""
    return float(np.abs(standard_errors(residuals.mean(2))).max())


def worst_given_beliefs(model: BeliefModel, simulated: Simulated, residuals: Floats) -> float:
    """Find the largest number of standard errors given F_{t−1}.

    Each residual times p̄_N − p of the round before has mean 0 if the prediction is right given the
    beliefs, not only on average over them.
    """
    before = simulated.beliefs[:-1]
    return worst_unconditional(residuals * (before @ model.hears.T - model.degree * before))


def slack_of_lemma_4_5(model: BeliefModel, simulated: Simulated) -> float:
    """Compute the standard errors by which E[p_T] exceeds the sum of eq. 12, for the worst agent.

    The proof needs μ to be at most the mean advantage of each round. Below −4 the bound is broken.
    """
    beliefs = simulated.beliefs
    num_agents = beliefs.shape[2]
    mu = simulated.advantages.mean(1).min(0)
    bounds = np.empty(num_agents)
    for agent in range(num_agents):
        # All debates begin with the same belief, and the sum is the tighter of the two bounds.
        sum_bound, _ = lemma_4_5(
            start=beliefs[0, 0, agent],
            mu=mu[agent],
            total=model.total(0)[agent],
            gain=model.gain[agent],
            rounds=len(beliefs) - 1,
        )
        bounds[agent] = sum_bound
    residuals = beliefs[-1] - bounds
    return float(standard_errors(residuals[None]).min())


def correlation(answers: Answers, k: int = 0) -> float:
    """Compute the correlation of giving answer k in one round, (D, N), as a mean over pairs.

    ρ of Lemma 4.7 is the largest over pairs and answers. Like agents have equal correlations in
    every pair, and the largest of several estimates for one value would be too high. 0 for an
    answer of no agent or of all.
    """
    gives_k = (answers == k).astype(float)
    share = gives_k.mean()
    if not 0 < share < 1:
        return 0.0
    covariance = np.cov(gives_k.T)
    num_agents = len(covariance)
    num_pairs = num_agents * (num_agents - 1)
    # Each pair is in the matrix twice; the diagonal has the variances.
    mean_covariance = (covariance.sum() - np.trace(covariance)) / num_pairs
    return float(mean_covariance / (share * (1 - share)))


def plurality(answers: Answers, num_answers: int) -> tuple[Floats, Floats]:
    """Check the plurality of each debate, (D,), twice.

    First with ties in expectation; then with every tie an error, which Lemma 4.7 covers, too.
    """
    counts = np.stack([(answers == k).sum(-1) for k in range(num_answers)])
    winners = counts == counts.max(0)
    shared = winners[0] / winners.sum(0)
    return shared, (shared == 1).astype(float)
