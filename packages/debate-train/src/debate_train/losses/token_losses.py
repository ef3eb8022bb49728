"""Losses over the sampled tokens of a pack, as pure tensor functions.

Shapes: A actions, the sampled tokens of one pack. A loss returns its pack's share of the step's
loss: the weights hold denominators over the whole optimizer step, so the shares of all
micro-batches and ranks add up to it.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from debate_protocol.plugins import Config
from debate_train.losses.loss import (
    Aggregation,
    LossInputs,
    Material,
    OldPolicy,
    ReferencePolicy,
)

if TYPE_CHECKING:
    from torch import Tensor


class Kl(Config):
    """Penalty for leaving a reference policy, estimated by k3 = exp(r) - r - 1, r = ref - p.

    Source: Schulman, "Approximating KL divergence" (2020); over every sampled token.
    """

    weight: float = Field(0.0, ge=0)
    """Weight β of the penalty; 0 leaves it out."""
    reference: ReferencePolicy = "phase_start"
    """The policy that is not to be left: `phase_start`, `base`, or a directory with weights."""

    def __call__(self, logps_A: "Tensor", reference_logps_A: "Tensor") -> "Tensor":
        """Return k3 of each action, shape (A,), without the weight."""
        difference = reference_logps_A - logps_A
        return difference.exp() - difference - 1


class TokenLoss(Config):
    """A loss that is a weighted sum over actions, with a KL penalty on each."""

    renamed: ClassVar[Mapping[str, str]] = {"normalise": "aggregation"}
    supervised: ClassVar[bool] = False
    """Learns from given text: log-probabilities at temperature 1 instead of the sampled one."""
    learns_from: ClassVar[Material] = "samples"

    kl: Kl = Kl()
    """Penalty for leaving a reference policy."""

    @property
    def takes_off_policy(self) -> bool:
        """Whether samples of older weights may be used: false for losses without any bound."""
        return True

    @property
    def ratio_against(self) -> OldPolicy:
        """Whose log-probabilities the old ones are."""
        return "sampler"

    @property
    def reference_policy(self) -> ReferencePolicy | None:
        """The policy whose log-probabilities the loss reads, None for none."""
        return self.kl.reference if self.kl.weight > 0 else None

    def __call__(self, x: LossInputs) -> "Tensor":
        """Return this pack's share of the step's loss, a scalar."""
        losses_A = self.per_action(x)
        if x.reference_logps_A is not None:
            losses_A = losses_A + self.kl.weight * self.kl(x.logps_A, x.reference_logps_A)
        return (losses_A * x.weights_A).sum()

    @abstractmethod
    def per_action(self, x: LossInputs) -> "Tensor":
        """Return the loss of each action, shape (A,), before weights and penalty."""

    def diagnostics(self, x: LossInputs) -> "dict[str, Tensor]":
        """Return what this loss is watched by, of each action and by name."""
        if x.reference_logps_A is None:
            return {}
        kl_A = self.kl(x.logps_A, x.reference_logps_A)
        return {
            "optim/kl_reference": kl_A,
            "optim/loss_policy": self.per_action(x) * x.weights_A,
            "optim/loss_kl": self.kl.weight * kl_A * x.weights_A,
        }


class RatioLoss(TokenLoss):
    """A loss of the ratio exp(p - old) to the old policy.

    Where old is the trainer's own policy and not the sampler q, min(exp(old - q), cap) corrects
    for what the two computed differently, and for staleness.

    Source: Yao et al., "Your efficient RL framework secretly brings you off-policy RL training"
    (2025), truncated importance sampling; the ratio of its eq. for PPO is kept apart, as here.
    """

    renamed: ClassVar[Mapping[str, str]] = {
        **TokenLoss.renamed,
        "mismatch_cap": "importance_cap",
        "allow_stale": "allow_off_policy",
    }

    old_policy: OldPolicy = "auto"
    """What ratios are against: the `sampler`, the `trainer` as the batch began, or (`auto`) the
    trainer where a batch makes several updates, else the sampler."""
    importance_cap: float | None = Field(2.0, gt=0)
    """Largest correction for sampler against trainer; null makes none."""

    @property
    def ratio_against(self) -> OldPolicy:
        """Whose log-probabilities the old ones are."""
        return self.old_policy

    def per_action(self, x: LossInputs) -> "Tensor":
        """Return the loss of each action, shape (A,), before weights and penalty."""
        losses_A = self.per_ratio((x.logps_A - x.old_logps_A).exp(), x.advantages_A)
        if self.importance_cap is None:
            return losses_A
        return losses_A * _mismatch(x).clamp(max=self.importance_cap)

    def diagnostics(self, x: LossInputs) -> "dict[str, Tensor]":
        """Return what this loss is watched by, of each action and by name."""
        found = super().diagnostics(x)
        if self.importance_cap is not None:
            found["optim/mismatch_capped_fraction"] = _mismatch(x) > self.importance_cap
        return found

    @abstractmethod
    def per_ratio(self, ratio_A: "Tensor", advantages_A: "Tensor") -> "Tensor":
        """Return the loss of each action, shape (A,), from ratios and advantages."""


def _mismatch(x: LossInputs) -> "Tensor":
    """Return old over sampler of each action, shape (A,): 1 where they are the same."""
    return (x.old_logps_A - x.sampler_logps_A).exp()


class ImportanceSampling(RatioLoss):
    """Policy gradient by the unclipped ratio to the sampler: -exp(p - q)·A.

    Source: the implementation note of the Tinker debate recipe, "RL objective used".
    """

    type: Literal["importance_sampling"] = "importance_sampling"
    aggregation: Aggregation = "token_sum"
    """How the terms of tokens become one number: their sum, their mean over the update or over
    each group, or the mean over sequences of their means."""
    allow_off_policy: bool = False
    """Take samples of older weights, too, whose ratios nothing bounds."""

    @property
    def takes_off_policy(self) -> bool:
        """Nothing bounds the ratios."""
        return self.allow_off_policy

    def per_ratio(self, ratio_A: "Tensor", advantages_A: "Tensor") -> "Tensor":
        """Return the loss of each action, shape (A,)."""
        return -ratio_A * advantages_A


class Reinforce(TokenLoss):
    """Policy gradient without ratios: -A·log p.

    Source: Williams 1992; right only where the samples are the policy's own.
    """

    renamed: ClassVar[Mapping[str, str]] = {"allow_stale": "allow_off_policy"}

    type: Literal["reinforce"] = "reinforce"
    aggregation: Aggregation = "token_mean_batch"
    """How the terms of tokens become one number: their sum, their mean over the update or over
    each group, or the mean over sequences of their means."""
    allow_off_policy: bool = False
    """Take samples of older weights, too, though the gradient is then another's."""

    @property
    def takes_off_policy(self) -> bool:
        """Nothing corrects for other weights."""
        return self.allow_off_policy

    def per_action(self, x: LossInputs) -> "Tensor":
        """Return the loss of each action, shape (A,)."""
        return -x.logps_A * x.advantages_A


class _Clipped(RatioLoss):
    """Clipped ratio: -min(ρ·A, clip(ρ, 1-low, 1+high)·A), where A < 0 at most -c·A.

    Source: c is that of Ye et al. 2020, "Mastering Complex Control in MOBA Games with Deep
    Reinforcement Learning", eq. 8.
    """

    clip_low: float = Field(0.2, gt=0, lt=1)
    """Ratios below 1 - this are cut."""
    clip_high: float = Field(0.28, gt=0)
    """Ratios above 1 + this are cut."""
    dual_clip: float | None = Field(None, gt=1)
    """Ratios above this are cut where the advantage is negative, too; null cuts none."""

    def per_ratio(self, ratio_A: "Tensor", advantages_A: "Tensor") -> "Tensor":
        """Return the loss of each action, shape (A,)."""
        if self.dual_clip is not None:
            ratio_A = ratio_A.where(advantages_A >= 0, ratio_A.clamp(max=self.dual_clip))
        clipped_A = ratio_A.clamp(1 - self.clip_low, 1 + self.clip_high)
        return -(ratio_A * advantages_A).minimum(clipped_A * advantages_A)

    def diagnostics(self, x: LossInputs) -> "dict[str, Tensor]":
        """Return what this loss is watched by, of each action and by name."""
        ratio_A = (x.logps_A - x.old_logps_A).exp()
        outside_A = (ratio_A < 1 - self.clip_low) | (ratio_A > 1 + self.clip_high)
        return super().diagnostics(x) | {"optim/clip_fraction": outside_A}


class PpoClip(_Clipped):
    """The clipped ratio of PPO.

    Source: Schulman et al. 2017, eq. 7; the higher upper bound is DAPO's.
    """

    type: Literal["ppo_clip"] = "ppo_clip"
    aggregation: Aggregation = "token_mean_batch"
    """How the terms of tokens become one number: their sum, their mean over the update or over
    each group, or the mean over sequences of their means."""


class Dapo(_Clipped):
    """The clipped ratio with a higher upper bound and a mean over tokens.

    Source: Yu et al. 2025, eq. 8. Its mean is over the tokens of a prompt's group
    (`token_mean_group`); the default is that of its published code, over the whole batch. Dynamic
    sampling and overlong punishment are no part of the loss.
    """

    type: Literal["dapo"] = "dapo"
    aggregation: Aggregation = "token_mean_batch"
    """How the terms of tokens become one number: their sum, their mean over the update or over
    each group, or the mean over sequences of their means."""


class Grpo(_Clipped):
    """The clipped ratio with a KL penalty, a mean over each reply and then over replies.

    Source: Shao et al. 2024, eq. 3 and 4; the group's advantage is `advantage.scale: std`.
    """

    type: Literal["grpo"] = "grpo"
    aggregation: Aggregation = "sequence_mean"
    """How the terms of tokens become one number: their sum, their mean over the update or over
    each group, or the mean over sequences of their means."""
    clip_high: float = Field(0.2, gt=0)
    """Ratios above 1 + this are cut."""
    kl: Kl = Kl(weight=0.04)
    """Penalty for leaving a reference policy."""


class Sft(TokenLoss):
    """Supervised: -A·log p, at temperature 1; A is the weight of the turn, 0 leaves it out."""

    supervised: ClassVar[bool] = True
    learns_from: ClassVar[Material] = "demonstrations"

    type: Literal["sft"] = "sft"
    aggregation: Aggregation = "token_mean_batch"
    """How the terms of tokens become one number: their sum, their mean over the update or over
    each group, or the mean over sequences of their means."""

    def per_action(self, x: LossInputs) -> "Tensor":
        """Return the loss of each action, shape (A,)."""
        return -x.logps_A * x.advantages_A
