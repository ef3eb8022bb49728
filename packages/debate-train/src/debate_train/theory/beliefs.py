"""The Dirichlet-compound-multinomial belief model with private critique, simulated.

Source: SDRL (paper), arXiv 2601.22297v1, definitions 4.1 to 4.3 and appendix E.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from debate_protocol.types import Protocol
from debate_protocol.visibility import TopologyName
from debate_protocol.visibility import neighbours as seen_by
from debate_train.theory.critiques import Answers, Context, Critique, Floats


@dataclass(frozen=True, slots=True)
class BeliefModel:
    """N agents who hold pseudo-counts of K answers to one question; answer 0 is the right one.

    Raises:
        ValueError: Shapes do not go together, or a count or weight is out of range.
    """

    start: Floats
    """α_{i,0}, (N, K), all above 0."""
    hears: Floats
    """Row i marks the neighbours N(i) with 1, (N, N); an agent may be its own neighbour."""
    weight: Floats
    """w_i ≥ 0, (N,): what one neighbour's answer adds."""
    critique: Critique

    def __post_init__(self) -> None:
        agents = len(self.start)
        if self.start.ndim != 2 or self.start.shape[1] < 2 or not (self.start > 0).all():
            raise ValueError(
                f"start: expected counts above 0 of shape (N, K ≥ 2), found {self.start.shape}"
            )
        if self.hears.shape != (agents, agents) or not np.isin(self.hears, (0, 1)).all():
            raise ValueError(
                f"hears: expected 0 and 1 of shape ({agents}, {agents}), found {self.hears.shape}"
            )
        if self.weight.shape != (agents,) or not (self.weight >= 0).all():
            raise ValueError(f"weight: expected {agents} numbers of at least 0")
        if not self.critique.mass >= 0:
            raise ValueError(f"critique.mass: expected at least 0, found {self.critique.mass:g}")

    @property
    def degree(self) -> Floats:
        """|N(i)|, (N,)."""
        found: Floats = self.hears.sum(1)
        return found

    @property
    def gain(self) -> Floats:
        """C_i = m_β + w_i |N(i)|, (N,): what a round adds to ‖α_i‖₁ (Theorem 4.4)."""
        return self.critique.mass + self.weight * self.degree

    def total(self, round_: int) -> Floats:
        """Return ‖α_{i,t}‖₁ = S_{i,0} + t C_i, (N,) (eq. 33)."""
        found: Floats = self.start.sum(1) + round_ * self.gain
        return found


@dataclass(frozen=True, slots=True)
class Simulated:
    """D debates of T rounds after the first answers."""

    beliefs: Floats
    """p_{i,t}, (T + 1, D, N) (eq. 9)."""
    answers: Answers
    """y_{i,t}, (T + 1, D, N)."""
    advantages: Floats
    """δ_{i,t}, (T, D, N): of round t, which moves the belief of round t + 1 (eq. 10)."""


def neighbours(topology: TopologyName, num_agents: int, *, with_own: bool = False) -> Floats:
    """Return the matrix of who hears whom, (N, N), in the topologies of debates.

    Args:
        topology: Of debates; under `central` all hear agent 0, who hears all; `sparse` has
            degree 2.
        num_agents: N.
        with_own: Whether an agent's own last answer counts as a neighbour's.
    """
    rules = Protocol(
        num_agents=num_agents, topology=topology, degree=2 if topology == "sparse" else None
    )
    found = np.zeros((num_agents, num_agents))
    for agent in range(num_agents):
        found[agent, list(seen_by(rules, agent))] = 1
    return np.maximum(found, np.eye(num_agents)) if with_own else found


def symmetric(
    prior: Sequence[float], hears: Floats, weight: float, critique: Critique
) -> BeliefModel:
    """Return the model of agents with the same prior counts, (K,), weight and critique."""
    agents = len(hears)
    return BeliefModel(
        np.tile(np.asarray(prior, float), (agents, 1)), hears, np.full(agents, weight), critique
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
            answer for each θ, so that its answer has the Dirichlet mean as its distribution either
            way (eq. 13); drawing from the mean is faster.
    """
    agents, answers = model.start.shape
    alpha = np.repeat(model.start.T[:, None, :], debates, axis=1)
    beliefs = np.empty((rounds + 1, debates, agents))
    said = np.empty((rounds + 1, debates, agents), dtype=np.int64)
    advantages = np.empty((rounds, debates, agents))
    for round_ in range(rounds + 1):
        means = alpha / alpha.sum(0)
        beliefs[round_] = means[0]
        said[round_] = _drawn(rng.standard_gamma(alpha) if through_theta else alpha, rng)
        if round_ == rounds:
            break
        expected = model.critique.expected_right(means, model.hears)
        advantages[round_] = expected - model.critique.mass * means[0]
        context = Context(means, said[round_], model.hears)
        alpha += model.critique.draw(context, rng)
        for k in range(answers):
            heard = (said[round_] == k).astype(float) @ model.hears.T
            alpha[k] += model.weight * heard
    return Simulated(beliefs, said, advantages)


def _drawn(shares: Floats, rng: np.random.Generator) -> Answers:
    """Return one answer for each agent, (D, N), in proportion to shares, (K, D, N)."""
    bounds = np.cumsum(shares, axis=0)
    at = rng.random(bounds.shape[1:]) * bounds[-1]
    found: Answers = (at >= bounds[:-1]).sum(0)
    return found
