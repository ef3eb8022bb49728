"""Private critiques β of the belief model: what each adds, and what it adds on average.

Arrays of pseudo-counts have shape (K, D, N): answers, debates, agents; answer 0 is the right one.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Answers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Context:
    """A round as its agents see it."""

    means: Floats
    """Dirichlet means θ̄_{i,t}, (K, D, N)."""
    answers: Answers
    """y_{i,t}, (D, N)."""
    hears: Floats
    """Row i marks the neighbours N(i) with 1, (N, N)."""


class Critique(Protocol):
    """A private critique of constant mass m_β (SDRL, eq. 17)."""

    @property
    def mass(self) -> float:
        """The constant ‖β_{i,t}‖₁ = m_β."""
        ...

    def draw(self, context: Context, rng: np.random.Generator) -> Floats:
        """Return β_{i,t}, (K, D, N), which may depend on the answers of the round."""
        ...

    def expected_right(self, means: Floats, hears: Floats) -> Floats:
        """Return E[β⁽¹⁾_{i,t} | F_t], (D, N): the answers of round t are not known in F_t."""
        ...


@dataclass(frozen=True, slots=True)
class FixedShare:
    """Gives the right answer the same share in each round and splits the rest evenly.

    Its advantage δ = m_β (share − p) shrinks while the belief p rises.
    """

    mass: float
    share: float

    def __post_init__(self) -> None:
        _check_share("share", self.share)

    def draw(self, context: Context, rng: np.random.Generator) -> Floats:
        """Return the same β for all agents."""
        shares = np.full(len(context.means), (1 - self.share) / (len(context.means) - 1))
        shares[0] = self.share
        return np.broadcast_to(self.mass * shares[:, None, None], context.means.shape)

    def expected_right(self, means: Floats, hears: Floats) -> Floats:
        """Return m_β times the share."""
        return np.full(means.shape[1:], self.mass * self.share)


@dataclass(frozen=True, slots=True)
class Lift:
    """Gives the right answer the agent's own belief and `lift` more, within 0 and 1.

    Its advantage is constant, δ = m_β · lift, as long as p + lift stays within 0 and 1. A lift of
    0 is the neutral critique δ = 0.
    """

    mass: float
    lift: float

    def draw(self, context: Context, rng: np.random.Generator) -> Floats:
        """Return β; wrong answers share the rest as in the agent's belief."""
        right = self.expected_right(context.means, context.hears)
        found: Floats = context.means * ((self.mass - right) / (1 - context.means[0]))
        found[0] = right
        return found

    def expected_right(self, means: Floats, hears: Floats) -> Floats:
        """Return m_β (p + lift)."""
        right: Floats = self.mass * np.clip(means[0] + self.lift, 0, 1)
        return right


@dataclass(frozen=True, slots=True)
class FindsRight:
    """Puts all its mass on one answer, by what was said in the round.

    With probability `chance` that is the right answer if the agent or a neighbour has given it;
    else it is the agent's own answer.
    """

    mass: float
    chance: float

    def __post_init__(self) -> None:
        _check_share("chance", self.chance)

    def draw(self, context: Context, rng: np.random.Generator) -> Floats:
        """Return β from the answers of the round."""
        with_own = np.maximum(context.hears, np.eye(len(context.hears)))
        said = (context.answers == 0).astype(float) @ with_own.T > 0
        finds = said & (rng.random(said.shape) < self.chance)
        chosen = np.where(finds, 0, context.answers)
        return self.mass * np.stack([chosen == k for k in range(len(context.means))]).astype(float)

    def expected_right(self, means: Floats, hears: Floats) -> Floats:
        """Return m_β (c (1 − Π (1 − p_j)) + (1 − c) p_i), j over N(i) and i."""
        with_own = np.maximum(hears, np.eye(len(hears)))
        nobody = np.exp(np.log1p(-means[0]) @ with_own.T)
        right: Floats = self.mass * (self.chance * (1 - nobody) + (1 - self.chance) * means[0])
        return right


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name}: found {value:g}, expected 0 to 1")
