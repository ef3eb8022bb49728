"""Per-token losses over the actions of a pack, as pure tensor functions.

Shape: A actions (sampled tokens). `logps_A` are the trained policy's at each token's temperature.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from torch import Tensor

Normalise = Literal["token_sum", "token_mean_batch", "sequence_mean"]
Reference = Literal["phase_start"]


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What a loss reads, all of shape (A,); `advantages_A` is 0 where there is no credit."""

    logps_A: "Tensor"
    old_logps_A: "Tensor"
    advantages_A: "Tensor"


class Kl(BaseModel):
    """Penalty for leaving a reference policy, estimated by k3 = exp(r) - r - 1, r = ref - p.

    Source: Schulman, "Approximating KL divergence" (2020); over every sampled token.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    weight: float = Field(0.0, ge=0)
    reference: Reference = "phase_start"
    """The policy as it was when the phase began."""

    def __call__(self, logps_A: "Tensor", reference_logps_A: "Tensor") -> "Tensor":
        """Return k3 of each token, shape (A,), without the weight."""
        difference = reference_logps_A - logps_A
        return difference.exp() - difference - 1


class _Loss(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    kl: Kl = Kl()


class ImportanceSampling(_Loss):
    """Policy gradient by the unclipped ratio to the sampler: -exp(p - q)·A.

    Source: the implementation note of the Tinker debate recipe, "RL objective used".
    """

    type: Literal["importance_sampling"] = "importance_sampling"
    normalise: Normalise = "token_sum"

    def __call__(self, x: LossInputs) -> "Tensor":
        """Return the loss of each token, shape (A,)."""
        return -(x.logps_A - x.old_logps_A).exp() * x.advantages_A


class PpoClip(_Loss):
    """Clipped ratio: -min(ρ·A, clip(ρ, 1-ε, 1+ε_high)·A).

    Source: Schulman et al. 2017, eq. 7; the higher upper bound is DAPO's (Yu et al. 2025, eq. 8).
    """

    type: Literal["ppo_clip"] = "ppo_clip"
    normalise: Normalise = "token_mean_batch"
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.28, gt=0)

    def __call__(self, x: LossInputs) -> "Tensor":
        """Return the loss of each token, shape (A,)."""
        ratio_A = (x.logps_A - x.old_logps_A).exp()
        clipped_A = ratio_A.clamp(1 - self.clip_low, 1 + self.clip_high)
        return -(ratio_A * x.advantages_A).minimum(clipped_A * x.advantages_A)


class Sft(_Loss):
    """Supervised: -A·log p, at temperature 1; A is the weight of the turn, 0 leaves it out."""

    type: Literal["sft"] = "sft"
    normalise: Normalise = "token_mean_batch"

    def __call__(self, x: LossInputs) -> "Tensor":
        """Return the loss of each token, shape (A,)."""
        return -x.logps_A * x.advantages_A


Loss = Annotated[ImportanceSampling | PpoClip | Sft, Field(discriminator="type")]
