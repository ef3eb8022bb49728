"""Losses: what an update lowers, as pure functions over the sampled tokens of a pack.

Shapes: A actions, the sampled tokens of one pack. A loss returns its pack's share of the step's
loss: the weights hold denominators over the whole optimizer step, so the shares of all
micro-batches and ranks add up to it.
"""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from debate_protocol.plugins import Config, Variants
from debate_train.batches.row_types import Aggregation, Batch, weigh

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "LOSSES",
    "Aggregation",
    "Dapo",
    "Dpo",
    "Grpo",
    "ImportanceSampling",
    "Kl",
    "Loss",
    "LossConfig",
    "LossInputs",
    "PpoClip",
    "RatioLoss",
    "Reinforce",
    "Sft",
    "TokenLoss",
]

Material = Literal["samples", "demonstrations", "pairs"]
"""Replies that a policy sampled, replies to imitate, or pairs of which one is preferred."""
ReferencePolicy = Literal["phase_start", "base"] | Path
"""The policy at the phase's start, the model as the recipe names it, or one in a directory."""
OldPolicy = Literal["auto", "sampler", "trainer"]
"""`auto` is the sampler, and the trainer at batch start where a batch makes several updates."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What a loss reads, all of shape (A,); `advantages_A` is 0 where there is no credit.

    `old_logps_A` is what ratios are against, `sampler_logps_A` what the engine sampled with.
    `rows_A` numbers the row that an action stands in, `pairs_A` its preference pair (-1: none).
    """

    logps_A: "Tensor"
    old_logps_A: "Tensor"
    sampler_logps_A: "Tensor"
    advantages_A: "Tensor"
    weights_A: "Tensor"
    rows_A: "Tensor"
    pairs_A: "Tensor"
    reference_logps_A: "Tensor | None" = None


class Loss(Config):
    """The base class of losses: what an update lowers, chosen by the field `type`.

    `TokenLoss` and `RatioLoss` bring all but `type` and the loss of each action.
    """

    supervised: ClassVar[bool] = False
    """Learns from given text: log-probabilities at temperature 1 instead of the sampled one."""
    learns_from: ClassVar[Material] = "samples"

    type: str = ""
    """The name by which recipes choose the loss."""
    aggregation: "Aggregation | Literal['pair_mean']" = "token_mean_batch"
    """How token terms add up: a sum, a mean over the update or each group, or of turn means."""

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
        return None

    @abstractmethod
    def __call__(self, x: LossInputs) -> "Tensor":
        """Return this pack's share of the step's loss, a scalar."""

    def diagnostics(self, x: LossInputs) -> "dict[str, Tensor]":
        """Return what this loss is watched by, of each action and by name."""
        return {}


class Kl(Config):
    """Penalty for leaving a reference policy, k3 = exp(r) - r - 1 with r = ref - p.

    On the policy's own samples the mean of k3 is KL(policy || reference). Its gradient, as the loss
    takes it, is that of KL(reference || policy), exactly: the gradient of one sample is
    (1 - exp(r)) grad log p, and the mean of exp(r) grad log p over the policy is the mean of
    grad log p over the reference.

    Source: Schulman, "Approximating KL divergence" (2020); GRPO's eq. 4; over every sampled token.
    """

    weight: float = Field(0.0, ge=0)
    """Weight β of the penalty; 0 leaves it out."""
    reference: ReferencePolicy = "phase_start"
    """The policy that is not to be left: `phase_start`, `base`, or a directory with weights."""

    def __call__(self, logps_A: "Tensor", reference_logps_A: "Tensor") -> "Tensor":
        """Return k3 of each action, shape (A,), without the weight."""
        difference = reference_logps_A - logps_A
        return difference.exp() - difference - 1


class TokenLoss(Loss):
    """A loss that is a weighted sum over actions, with a KL penalty on each."""

    aggregation: Aggregation = "token_mean_batch"
    kl: Kl = Kl()
    """Penalty for leaving a reference policy."""

    @property
    def reference_policy(self) -> ReferencePolicy | None:
        """The policy that the penalty compares with."""
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
        """Return the penalty and its share of the loss."""
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

    old_policy: OldPolicy = "auto"
    """`sampler`, `trainer` as the batch began, or `auto`: trainer where a batch makes several."""
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
        """Return which corrections were cut, too."""
        found = super().diagnostics(x)
        if self.importance_cap is not None:
            found["optim/mismatch_capped_fraction"] = _mismatch(x) > self.importance_cap
        return found

    @abstractmethod
    def per_ratio(self, ratio_A: "Tensor", advantages_A: "Tensor") -> "Tensor":
        """Return the loss of each action, shape (A,), from ratios and advantages."""


def _mismatch(x: LossInputs) -> "Tensor":
    """Old over sampler of each action: 1 where they are the same."""
    return (x.old_logps_A - x.sampler_logps_A).exp()


class ImportanceSampling(RatioLoss):
    """Policy gradient by the unclipped ratio to the sampler: -exp(p - q)·A.

    Source: the implementation note of the Tinker debate recipe, "RL objective used".
    """

    type: Literal["importance_sampling"] = "importance_sampling"
    aggregation: Aggregation = "token_sum"
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

    type: Literal["reinforce"] = "reinforce"
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

    Source: c is taken from Ye et al. 2020, "Mastering Complex Control in MOBA Games with Deep
    Reinforcement Learning", eq. 8.
    """

    clip_low: float = Field(0.2, gt=0, lt=1)
    """Ratios below 1 - this are cut where the advantage is negative."""
    clip_high: float = Field(0.28, gt=0)
    """Ratios above 1 + this are cut where the advantage is positive."""
    dual_clip: float | None = Field(None, gt=1)
    """Ratios above this are cut where the advantage is negative, too; null cuts none."""

    def per_ratio(self, ratio_A: "Tensor", advantages_A: "Tensor") -> "Tensor":
        """Return the loss of each action, shape (A,)."""
        if self.dual_clip is not None:
            ratio_A = ratio_A.where(advantages_A >= 0, ratio_A.clamp(max=self.dual_clip))
        clipped_A = ratio_A.clamp(1 - self.clip_low, 1 + self.clip_high)
        return -(ratio_A * advantages_A).minimum(clipped_A * advantages_A)

    def diagnostics(self, x: LossInputs) -> "dict[str, Tensor]":
        """Return which actions have no gradient because of a clip, too."""
        ratio_A = (x.logps_A - x.old_logps_A).exp()
        # The minimum takes the clipped side only where the ratio has already moved as far as the
        # advantage wants: a ratio of 3 with a negative advantage still has its whole gradient.
        is_clipped_A = (ratio_A > 1 + self.clip_high) & (x.advantages_A > 0)
        is_clipped_A |= (ratio_A < 1 - self.clip_low) & (x.advantages_A < 0)
        if self.dual_clip is not None:
            is_clipped_A |= (ratio_A > self.dual_clip) & (x.advantages_A < 0)
        return super().diagnostics(x) | {"optim/clip_fraction": is_clipped_A}


class PpoClip(_Clipped):
    """The clipped ratio of PPO.

    Source: Schulman et al. 2017, eq. 7; the higher upper bound is DAPO's.
    """

    type: Literal["ppo_clip"] = "ppo_clip"


class Dapo(_Clipped):
    """The clipped ratio with a higher upper bound and a mean over tokens.

    Source: Yu et al. 2025, eq. 8. Its mean is over the tokens of a prompt's group
    (`token_mean_group`); the default is that of its published code, over the whole batch. Dynamic
    sampling and overlong punishment are no part of the loss.
    """

    type: Literal["dapo"] = "dapo"


class Grpo(_Clipped):
    """The clipped ratio with a KL penalty, a mean over each reply and then over replies.

    Source: Shao et al. 2024, eq. 3 and 4; the group's advantage is `advantage.scale: std`.
    """

    type: Literal["grpo"] = "grpo"
    aggregation: Aggregation = "sequence_mean"
    clip_high: float = Field(0.2, gt=0)
    kl: Kl = Kl(weight=0.04)


class Sft(TokenLoss):
    """Supervised: -A·log p, at temperature 1; A is the weight of the turn, 0 leaves it out."""

    supervised: ClassVar[bool] = True
    learns_from: ClassVar[Material] = "demonstrations"

    type: Literal["sft"] = "sft"

    def per_action(self, x: LossInputs) -> "Tensor":
        """Return the loss of each action, shape (A,)."""
        return -x.logps_A * x.advantages_A


class Pairs(NamedTuple):
    """What a pack says of its pairs, all of shape (P,).

    `margins_P` is β·(Δ chosen - Δ rejected), `rewards_P` β·Δ of the chosen reply, `chosen_logps_P`
    the mean log p of its tokens, and `weights_P` what the pair counts.
    """

    margins_P: "Tensor"
    rewards_P: "Tensor"
    chosen_logps_P: "Tensor"
    weights_P: "Tensor"


class Dpo(Loss):
    """Preference of one row over another: -log σ(β·(Δ chosen - Δ rejected)), Δ = Σ (p - ref).

    A pair is the rows of equal `pair`; positive advantages mark the chosen one, negative the
    rejected one, and their size does not matter. Log-probabilities are taken at temperature 1.

    Source: Rafailov et al. 2023, eq. 7; `nll_weight` adds the mean -log p of the chosen tokens,
    Pang et al. 2024, eq. 1 and 2. ACC-Debate prints the ratio of probabilities without log and β;
    this is the standard loss that it cites.
    """

    supervised: ClassVar[bool] = True
    learns_from: ClassVar[Material] = "pairs"

    type: Literal["dpo"] = "dpo"
    aggregation: Literal["pair_mean"] = "pair_mean"
    """The mean over pairs."""
    beta: float = Field(0.1, gt=0)
    """β: what leaving the reference costs. The larger it is, the closer the policy stays to it."""
    nll_weight: float = Field(0.0, ge=0)
    """Weight of the mean negative log-likelihood of chosen replies beside it."""
    reference: ReferencePolicy = "phase_start"
    """The policy Δ is measured from: `phase_start`, `base`, or a directory with weights."""

    @property
    def reference_policy(self) -> ReferencePolicy | None:
        """The policy whose log-probabilities the loss reads."""
        return self.reference

    def __call__(self, x: LossInputs) -> "Tensor":
        """Return this pack's share of the step's loss, a scalar: the mean over all its pairs."""
        from torch.nn.functional import logsigmoid

        pairs = self.pairs(x)
        losses_P = -logsigmoid(pairs.margins_P) - self.nll_weight * pairs.chosen_logps_P
        return (losses_P * pairs.weights_P).sum()

    def diagnostics(self, x: LossInputs) -> "dict[str, Tensor]":
        """Return this pack's share of means over pairs, by name.

        Of the margin, of how many have a positive one, of the implicit rewards β·Δ of the chosen
        and of the rejected reply, and of the mean log p of a chosen token.
        """
        pairs = self.pairs(x)
        found = {
            "margin": pairs.margins_P,
            "accuracy": pairs.margins_P > 0,
            "reward_chosen": pairs.rewards_P,
            "reward_rejected": pairs.rewards_P - pairs.margins_P,
            "chosen_logp": pairs.chosen_logps_P,
        }
        return {f"optim/preference_{name}": each * pairs.weights_P for name, each in found.items()}

    def pairs(self, x: LossInputs) -> Pairs:
        """Return the pairs of a pack; every action of a pair has the pair's weight.

        There are as many places as actions: those that no pair has are zeros of weight 0. How many
        pairs there are is not asked for, since a GPU would be waited for.
        """
        import torch

        assert x.reference_logps_A is not None
        paired_A = x.pairs_A >= 0
        zero = x.logps_A.new_zeros(())
        logps_A, reference_A, credits_A, weights_A = (
            torch.where(paired_A, values.to(x.logps_A.dtype), zero)
            for values in (x.logps_A, x.reference_logps_A, x.advantages_A, x.weights_A)
        )

        def places(numbers_A: "Tensor") -> "Tensor":
            # Equal numbers share a place below A: where the first of them stands when sorted.
            return torch.searchsorted(numbers_A.sort().values, numbers_A)

        def summed(values_A: "Tensor", into_A: "Tensor") -> "Tensor":
            return torch.zeros_like(values_A).index_add(0, into_A, values_A)

        pair_A, row_A = places(x.pairs_A), places(x.rows_A)
        chosen_A = (summed(credits_A, row_A)[row_A] > 0).to(logps_A.dtype)
        moved_A = self.beta * (logps_A - reference_A)
        counts_A = (weights_A, torch.ones_like(chosen_A), chosen_A)
        weights_P, actions_P, lengths_P = (summed(values_A, pair_A) for values_A in counts_A)
        return Pairs(
            margins_P=summed(moved_A * (2 * chosen_A - 1), pair_A),
            rewards_P=summed(moved_A * chosen_A, pair_A),
            chosen_logps_P=summed(logps_A * chosen_A, pair_A) / lengths_P.clamp(min=1),
            weights_P=weights_P / actions_P.clamp(min=1),
        )


LOSSES: Variants[Loss] = Variants(
    "debate_train.losses", Loss, ImportanceSampling, Reinforce, PpoClip, Dapo, Grpo, Dpo, Sft
)
"""All losses, those of other installed packages included."""

LossConfig = Annotated[Loss, LOSSES]
"""Any loss; recipes choose by `type`."""


def reference_error(policy: ReferencePolicy | None) -> str | None:
    """Return what is wrong with a reference that is neither a name nor a directory."""
    if not isinstance(policy, Path) or policy.is_dir():
        return None
    return (
        f"loss: found the reference {str(policy)!r}, which is no directory; expected phase_start, "
        "base, or a directory with weights, such as a checkpoint"
    )


def gradient_shares(batch: Batch, loss: Loss) -> dict[str, float]:
    """Return each agent's and each stream's share of the gradient.

    Shares are taken of Σ w·|A|, w what a token counts and A its advantage: the size of the slopes
    of the loss in log p where ratios are 1. |A| is taken of each stream, before streams are summed.

    Args:
        batch: all rows of the step.
        loss: whose denominators count.
    """
    ready, weights = weigh(batch, loss.aggregation)
    agents: dict[str, float] = {}
    streams = dict.fromkeys(batch.streams, 0.0)
    for row, weight in zip(ready.rows, weights, strict=True):
        size = float(weight @ np.abs(row.advantages))
        agents[f"agent_{row.agent}"] = agents.get(f"agent_{row.agent}", 0.0) + size
        if row.credits is not None:
            sizes = np.abs(row.credits) @ weight
            for name, value in zip(batch.streams, sizes, strict=True):
                streams[name] += float(value)
    found: dict[str, float] = {}
    for shared in (dict(sorted(agents.items())), streams):
        if (total := sum(shared.values())) > 0:
            found |= {f"optim/gradient_share/{name}": s / total for name, s in shared.items()}
    return found
