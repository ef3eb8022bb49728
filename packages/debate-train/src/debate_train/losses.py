"""Per-token losses over packed rows, as pure tensor functions.

Shapes: B rows, T tokens. `logps_BT` are those of the trained policy at each token's temperature.
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
    """What a loss reads, all of shape (B, T); `advantages_BT` is 0 where there is no credit."""

    logps_BT: "Tensor"
    old_logps_BT: "Tensor"
    advantages_BT: "Tensor"


class Kl(BaseModel):
    """Penalty for leaving a reference policy, estimated by k3 = exp(r) - r - 1, r = ref - p.

    Source: Schulman, "Approximating KL divergence" (2020); over every sampled token.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    weight: float = Field(0.0, ge=0)
    reference: Reference = "phase_start"
    """The policy as it was when the phase began."""

    def __call__(self, logps_BT: "Tensor", reference_logps_BT: "Tensor") -> "Tensor":
        """Return k3 of each token, shape (B, T), without the weight."""
        difference = reference_logps_BT - logps_BT
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
        """Return the loss of each token, shape (B, T)."""
        return -(x.logps_BT - x.old_logps_BT).exp() * x.advantages_BT


class PpoClip(_Loss):
    """Clipped ratio: -min(ρ·A, clip(ρ, 1-ε, 1+ε_high)·A).

    Source: Schulman et al. 2017, eq. 7; the higher upper bound is DAPO's (Yu et al. 2025, eq. 8).
    """

    type: Literal["ppo_clip"] = "ppo_clip"
    normalise: Normalise = "token_mean_batch"
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.28, gt=0)

    def __call__(self, x: LossInputs) -> "Tensor":
        """Return the loss of each token, shape (B, T)."""
        ratio_BT = (x.logps_BT - x.old_logps_BT).exp()
        clipped_BT = ratio_BT.clamp(1 - self.clip_low, 1 + self.clip_high)
        return -(ratio_BT * x.advantages_BT).minimum(clipped_BT * x.advantages_BT)


class Sft(_Loss):
    """Supervised: -A·log p, at temperature 1; A is the weight of the turn, 0 leaves it out."""

    type: Literal["sft"] = "sft"
    normalise: Normalise = "token_mean_batch"

    def __call__(self, x: LossInputs) -> "Tensor":
        """Return the loss of each token, shape (B, T)."""
        return -x.logps_BT * x.advantages_BT


Loss = Annotated[ImportanceSampling | PpoClip | Sft, Field(discriminator="type")]


def token_weights(
    mask_BT: "Tensor", segments_BT: "Tensor", normalise: Normalise, sampled_tokens: int, turns: int
) -> "Tensor":
    """Return what each token's loss is multiplied by before summing, shape (B, T).

    `sampled_tokens` and `turns` count the whole optimizer step, over all ranks and micro-batches,
    zero advantages included: the sum over micro-batches is then the step's loss.
    """
    if normalise == "token_sum":
        return mask_BT
    if normalise == "token_mean_batch":
        return mask_BT / max(sampled_tokens, 1)
    most = int(segments_BT.max()) if segments_BT.numel() else 0
    counts = mask_BT.new_zeros(len(segments_BT), most + 1)
    counts.scatter_add_(1, segments_BT, mask_BT)
    return mask_BT / (counts.gather(1, segments_BT).clamp(min=1) * max(turns, 1))
