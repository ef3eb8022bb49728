"""Losses of the sampled tokens of a pack: equations as functions, and settings beside them.

Shapes: A actions, the sampled tokens of one pack; P pairs. A loss computes its pack's share of the
step's loss: weights hold denominators over the whole optimizer step, so the shares of all
micro-batches and ranks add up to the step's loss.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from debate_protocol.plugins import Config, Variants
from debate_train.batches.row_types import Aggregation, Batch, Floats, weigh

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
"""Replies sampled by a policy, replies to imitate, or pairs with a preferred reply."""
ReferencePolicy = Literal["phase_start", "base"] | Path
"""The policy at the phase's start, the model as the recipe names it, or one in a directory."""
OldPolicy = Literal["auto", "sampler", "trainer"]
"""`auto` is the sampler, and the trainer at batch start where a batch makes several updates."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Inputs of a loss, all of shape (A,); `advantages_A` is 0 where there is no credit.

    `old_logps_A` is the denominator of ratios, `sampler_logps_A` the engine's log-probability.
    `rows_A` numbers the row of an action, `pairs_A` the preference pair (-1: no pair).
    """

    logps_A: "Tensor"
    old_logps_A: "Tensor"
    sampler_logps_A: "Tensor"
    advantages_A: "Tensor"
    weights_A: "Tensor"
    rows_A: "Tensor"
    pairs_A: "Tensor"
    reference_logps_A: "Tensor | None" = None


def policy_gradient_loss(x: LossInputs) -> "Tensor":
    """Compute -A·log p of each action, shape (A,).

    Source: Williams 1992 (REINFORCE); with A the weight of a turn, supervised learning.
    """
    return -x.logps_A * x.advantages_A


def importance_sampling_loss(x: LossInputs, importance_cap: float | None) -> "Tensor":
    """Compute -exp(p - old)·A of each action, shape (A,).

    Args:
        x: log-probabilities and advantages of a pack.
        importance_cap: see `mismatch_correction`.

    Source: the implementation note of the Tinker debate recipe, "RL objective used".
    """
    ratio_A = (x.logps_A - x.old_logps_A).exp()
    losses_A = -ratio_A * x.advantages_A
    if importance_cap is not None:
        losses_A = losses_A * mismatch_correction(x, importance_cap)
    return losses_A


def clipped_loss(
    x: LossInputs,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
    importance_cap: float | None,
) -> "Tensor":
    """Compute -min(ρ·A, clip(ρ, 1-low, 1+high)·A) of each action, shape (A,); ρ = exp(p - old).

    Args:
        x: log-probabilities and advantages of a pack.
        clip_low, clip_high: the ratio's range is [1 - clip_low, 1 + clip_high].
        dual_clip: c; where A < 0 the loss is at most -c·A. `None`: no bound.
        importance_cap: see `mismatch_correction`; `None`: no correction.

    Source: Schulman et al. 2017 (PPO), eq. 7; a higher upper bound: Yu et al. 2025 (DAPO), eq. 8;
    c: Ye et al. 2020, "Mastering Complex Control in MOBA Games with Deep Reinforcement Learning",
    eq. 8.
    """
    ratio_A = (x.logps_A - x.old_logps_A).exp()
    if dual_clip is not None:
        # Where A < 0 the minimum below leaves ρ·A without a bound, and a single ratio that has
        # grown large would dominate the batch.
        ratio_A = ratio_A.where(x.advantages_A >= 0, ratio_A.clamp(max=dual_clip))
    clipped_ratio_A = ratio_A.clamp(1 - clip_low, 1 + clip_high)
    losses_A = -(ratio_A * x.advantages_A).minimum(clipped_ratio_A * x.advantages_A)

    # Outside the ratio, so that clipping sees only the policy's own change.
    if importance_cap is not None:
        losses_A = losses_A * mismatch_correction(x, importance_cap)
    return losses_A


def without_gradient(
    x: LossInputs, clip_low: float, clip_high: float, dual_clip: float | None
) -> "Tensor":
    """Find the actions without a gradient in `clipped_loss`, booleans of shape (A,)."""
    ratio_A = (x.logps_A - x.old_logps_A).exp()
    # The minimum takes the clipped side only where the ratio has already moved as far as the
    # advantage wants: a ratio of 3 with a negative advantage still has its whole gradient.
    is_clipped_A = (ratio_A > 1 + clip_high) & (x.advantages_A > 0)
    is_clipped_A |= (ratio_A < 1 - clip_low) & (x.advantages_A < 0)
    if dual_clip is not None:
        is_clipped_A |= (ratio_A > dual_clip) & (x.advantages_A < 0)
    return is_clipped_A


def sampler_mismatch(x: LossInputs) -> "Tensor":
    """Compute exp(old - sampler) of each action: 1 where the two policies are the same."""
    return (x.old_logps_A - x.sampler_logps_A).exp()


def mismatch_correction(x: LossInputs, importance_cap: float) -> "Tensor":
    """Compute min(exp(old - sampler), cap) of each action, shape (A,).

    Where old is the trainer's own policy, the factor corrects for kernels in which the engine
    differs, and for staleness.

    Source: Yao et al., "Your efficient RL framework secretly brings you off-policy RL training"
    (2025), truncated importance sampling; as in the paper's equation for PPO, the ratio stays
    apart.
    """
    return sampler_mismatch(x).clamp(max=importance_cap)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Preference pairs of a pack, all of shape (P,).

    `margins_P` is β·(Δ chosen - Δ rejected), `rewards_P` β·Δ of the chosen reply, `chosen_logps_P`
    the mean log p of chosen tokens, and `weights_P` the weight of a pair.
    """

    margins_P: "Tensor"
    rewards_P: "Tensor"
    chosen_logps_P: "Tensor"
    weights_P: "Tensor"


def preference_pairs(x: LossInputs, beta: float) -> Pairs:
    """Sum the actions of each pair; every action of a pair has the pair's weight.

    P equals A, and unused places are zeros of weight 0: to count the pairs, the host would have to
    wait for the GPU.
    """
    import torch

    assert x.reference_logps_A is not None
    is_paired_A = x.pairs_A >= 0
    zero = x.logps_A.new_zeros(())

    def paired(values_A: "Tensor") -> "Tensor":
        return torch.where(is_paired_A, values_A.to(x.logps_A.dtype), zero)

    def dense_indices(numbers_A: "Tensor") -> "Tensor":
        # Equal numbers get the position of the first of them in sorted order, which is below A.
        return torch.searchsorted(numbers_A.sort().values, numbers_A)

    def sum_by(index_A: "Tensor", values_A: "Tensor") -> "Tensor":
        return torch.zeros_like(values_A).index_add(0, index_A, values_A)

    logps_A = paired(x.logps_A)
    pair_A = dense_indices(x.pairs_A)
    row_A = dense_indices(x.rows_A)

    # A row is chosen or rejected as a whole, by the sign of its advantages' sum.
    row_credits_A = sum_by(row_A, paired(x.advantages_A))
    is_chosen_A = (row_credits_A[row_A] > 0).to(logps_A.dtype)
    rewards_A = beta * (logps_A - paired(x.reference_logps_A))

    num_actions_P = sum_by(pair_A, torch.ones_like(is_chosen_A))
    num_chosen_P = sum_by(pair_A, is_chosen_A)
    return Pairs(
        margins_P=sum_by(pair_A, rewards_A * (2 * is_chosen_A - 1)),
        rewards_P=sum_by(pair_A, rewards_A * is_chosen_A),
        chosen_logps_P=sum_by(pair_A, logps_A * is_chosen_A) / num_chosen_P.clamp(min=1),
        weights_P=sum_by(pair_A, paired(x.weights_A)) / num_actions_P.clamp(min=1),
    )


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
        """Policy in the denominator of the ratio."""
        return "sampler"

    @property
    def reference_policy(self) -> ReferencePolicy | None:
        """The policy whose log-probabilities the loss reads, `None` for none."""
        return None

    @abstractmethod
    def __call__(self, x: LossInputs) -> "Tensor":
        """Compute the pack's share of the step's loss, a scalar."""

    def diagnostics(self, x: LossInputs) -> "dict[str, Tensor]":
        """Compute per-action metrics of the loss, keyed by metric name."""
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
        """Compute k3 of each action, shape (A,), without the weight."""
        # k3 is at least 0 for every sample; k1 = -r has the same mean, but either sign.
        log_ratio_A = reference_logps_A - logps_A
        return log_ratio_A.exp() - log_ratio_A - 1


class TokenLoss(Loss):
    """A loss that is a weighted sum over actions, with a KL penalty on each."""

    aggregation: Aggregation = "token_mean_batch"
    kl: Kl = Kl()
    """Penalty for leaving a reference policy."""

    @property
    def reference_policy(self) -> ReferencePolicy | None:
        """The policy of the penalty."""
        return self.kl.reference if self.kl.weight > 0 else None

    def __call__(self, x: LossInputs) -> "Tensor":
        """Compute the pack's share of the step's loss, a scalar."""
        losses_A = self.per_action(x)
        if x.reference_logps_A is not None:
            losses_A = losses_A + self.kl.weight * self.kl(x.logps_A, x.reference_logps_A)
        return (losses_A * x.weights_A).sum()

    @abstractmethod
    def per_action(self, x: LossInputs) -> "Tensor":
        """Compute the loss of each action, shape (A,), before weights and penalty."""

    def diagnostics(self, x: LossInputs) -> "dict[str, Tensor]":
        """Compute the penalty of each action and both shares of the loss."""
        if x.reference_logps_A is None:
            return {}
        kl_A = self.kl(x.logps_A, x.reference_logps_A)
        return {
            "optim/kl_reference": kl_A,
            "optim/loss_policy": self.per_action(x) * x.weights_A,
            "optim/loss_kl": self.kl.weight * kl_A * x.weights_A,
        }


class _RatioSettings(TokenLoss):
    """Keys of losses of the ratio exp(p - old) to the old policy."""

    old_policy: OldPolicy = "auto"
    """`sampler`, `trainer` as the batch began, or `auto`: trainer where a batch makes several."""
    importance_cap: float | None = Field(2.0, gt=0)
    """Largest correction for sampler against trainer; null makes none."""

    @property
    def ratio_against(self) -> OldPolicy:
        """Policy in the denominator of the ratio."""
        return self.old_policy

    def diagnostics(self, x: LossInputs) -> "dict[str, Tensor]":
        """Compute `TokenLoss`'s metrics, and which corrections were capped."""
        metrics = super().diagnostics(x)
        if self.importance_cap is not None:
            metrics["optim/mismatch_capped_fraction"] = sampler_mismatch(x) > self.importance_cap
        return metrics


class RatioLoss(_RatioSettings):
    """A base class for losses of the ratio exp(p - old), with `mismatch_correction`."""

    def per_action(self, x: LossInputs) -> "Tensor":
        """Compute the loss of each action, shape (A,), before weights and penalty."""
        ratio_A = (x.logps_A - x.old_logps_A).exp()
        losses_A = self.per_ratio(ratio_A, x.advantages_A)
        if self.importance_cap is not None:
            losses_A = losses_A * mismatch_correction(x, self.importance_cap)
        return losses_A

    @abstractmethod
    def per_ratio(self, ratio_A: "Tensor", advantages_A: "Tensor") -> "Tensor":
        """Compute the loss of each action, shape (A,), from ratios and advantages."""


class ImportanceSampling(_RatioSettings):
    """Policy gradient by the unclipped ratio to the sampler: -exp(p - q)·A.

    Source: see `importance_sampling_loss`.
    """

    type: Literal["importance_sampling"] = "importance_sampling"
    aggregation: Aggregation = "token_sum"
    allow_off_policy: bool = False
    """Take samples of older weights, too, whose ratios nothing bounds."""

    @property
    def takes_off_policy(self) -> bool:
        """Nothing bounds the ratios."""
        return self.allow_off_policy

    def per_action(self, x: LossInputs) -> "Tensor":
        """Compute `importance_sampling_loss`."""
        return importance_sampling_loss(x, self.importance_cap)


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
        """Compute `policy_gradient_loss`."""
        return policy_gradient_loss(x)


class _ClipSettings(_RatioSettings):
    """Keys of `clipped_loss`."""

    clip_low: float = Field(0.2, gt=0, lt=1)
    """Ratios below 1 - this are cut where the advantage is negative."""
    clip_high: float = Field(0.28, gt=0)
    """Ratios above 1 + this are cut where the advantage is positive."""
    dual_clip: float | None = Field(None, gt=1)
    """Ratios above this are cut where the advantage is negative, too; null cuts none."""

    def per_action(self, x: LossInputs) -> "Tensor":
        """Compute `clipped_loss`."""
        return clipped_loss(
            x, self.clip_low, self.clip_high, self.dual_clip, importance_cap=self.importance_cap
        )

    def diagnostics(self, x: LossInputs) -> "dict[str, Tensor]":
        """Compute metrics of the ratio, and which actions have no gradient because of a clip."""
        is_clipped_A = without_gradient(x, self.clip_low, self.clip_high, self.dual_clip)
        return super().diagnostics(x) | {"optim/clip_fraction": is_clipped_A}


class PpoClip(_ClipSettings):
    """The clipped ratio of PPO.

    Source: Schulman et al. 2017, eq. 7; the higher upper bound is DAPO's.
    """

    type: Literal["ppo_clip"] = "ppo_clip"


class Dapo(_ClipSettings):
    """The clipped ratio with a higher upper bound and a mean over tokens.

    Source: Yu et al. 2025, eq. 8. Its mean is over the tokens of a prompt's group
    (`token_mean_group`); the default is that of its published code, over the whole batch. Dynamic
    sampling and overlong punishment are no part of the loss.
    """

    type: Literal["dapo"] = "dapo"


class Grpo(_ClipSettings):
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
        """Compute `policy_gradient_loss`, in which A is the weight of the turn."""
        return policy_gradient_loss(x)


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
        """The policy of Δ."""
        return self.reference

    def __call__(self, x: LossInputs) -> "Tensor":
        """Compute the pack's share of the step's loss, a scalar: a mean over all pairs."""
        from torch.nn.functional import logsigmoid

        pairs = preference_pairs(x, self.beta)
        # logsigmoid, not log of sigmoid: a margin far below 0 would give the log of 0.
        preference_losses_P = -logsigmoid(pairs.margins_P)
        chosen_losses_P = -self.nll_weight * pairs.chosen_logps_P
        losses_P = preference_losses_P + chosen_losses_P
        return (losses_P * pairs.weights_P).sum()

    def diagnostics(self, x: LossInputs) -> "dict[str, Tensor]":
        """Compute the pack's shares of means over pairs, keyed by metric name."""
        pairs = preference_pairs(x, self.beta)
        values = {
            "margin": pairs.margins_P,
            "accuracy": pairs.margins_P > 0,
            "reward_chosen": pairs.rewards_P,
            # margin = chosen - rejected
            "reward_rejected": pairs.rewards_P - pairs.margins_P,
            "chosen_logp": pairs.chosen_logps_P,
        }
        return {
            f"optim/preference_{name}": values_P * pairs.weights_P
            for name, values_P in values.items()
        }


LOSSES: Variants[Loss] = Variants(
    "debate_train.losses", Loss, ImportanceSampling, Reinforce, PpoClip, Dapo, Grpo, Dpo, Sft
)
"""All losses, those of other installed packages included."""

LossConfig = Annotated[Loss, LOSSES]
"""Any loss; recipes choose by `type`."""


def reference_error(policy: ReferencePolicy | None) -> str | None:
    """Describe the fault of a reference that is neither a name nor a directory, if any."""
    if not isinstance(policy, Path) or policy.is_dir():
        return None
    return (
        f"loss: found the reference {str(policy)!r}, which is no directory; expected phase_start, "
        "base, or a directory with weights, such as a checkpoint"
    )


def divide_gradient(batch: Batch, loss: Loss, shares: Mapping[str, float]) -> Batch:
    """Scale the credits of a step such that streams have the shares that the recipe sets.

    Shares are those of `gradient_shares`. The sum over streams stays: what streams with a `share`
    do not take is divided among the others in the proportion of their own sizes. A stream without
    any credit in the step leaves its part to those that have some.

    Args:
        batch: all rows of the step.
        loss: gives the denominators.
        shares: of streams that are set to one (`AdvantageConfig.shares`).
    """
    if not shares:
        return batch
    sizes = _stream_sizes(*weigh(batch, loss.aggregation))
    active_sizes = {name: size for name, size in sizes.items() if size > 0}
    set_shares = {name: share for name, share in shares.items() if name in active_sizes}
    if not set_shares:
        return batch

    other_sizes = {name: s for name, s in active_sizes.items() if name not in set_shares}
    parts = dict(set_shares)
    for name, size in other_sizes.items():
        remainder = max(0.0, 1 - sum(set_shares.values()))
        parts[name] = remainder * size / sum(other_sizes.values())
    total_size = sum(active_sizes.values())
    factors = []
    for name in batch.streams:
        part = parts.get(name, 0.0) / sum(parts.values())
        factors.append(part * total_size / sizes[name] if name in parts else 1.0)
    factors_S = np.array(factors)
    rows = []
    for row in batch.rows:
        if row.credits is not None:
            credits_SA = (factors_S[:, None] * row.credits).astype(row.credits.dtype)
            advantages_A = credits_SA.sum(axis=0).astype(row.advantages.dtype)
            row = replace(row, credits=credits_SA, advantages=advantages_A)
        rows.append(row)
    return replace(batch, rows=tuple(rows))


def _stream_sizes(weighed_batch: Batch, row_weights: Sequence[Floats]) -> dict[str, float]:
    """Sum w·|A| of each stream, over the rows whose summands are known."""
    sizes = dict.fromkeys(weighed_batch.streams, 0.0)
    for row, weights_A in zip(weighed_batch.rows, row_weights, strict=True):
        if row.credits is not None:
            sizes_S = np.abs(row.credits) @ weights_A
            for stream, size in zip(weighed_batch.streams, sizes_S, strict=True):
                sizes[stream] += float(size)
    return sizes


def gradient_shares(batch: Batch, loss: Loss) -> dict[str, float]:
    """Compute each agent's and each stream's share of the gradient, keyed by metric name.

    Shares are taken of Σ w·|A|, w a token's weight and A its advantage: the size of the slopes of
    the loss in log p where ratios are 1. Each stream's |A| is taken before streams are summed.

    Args:
        batch: all rows of the step.
        loss: gives the denominators.
    """
    weighed_batch, row_weights = weigh(batch, loss.aggregation)
    agent_sizes: dict[str, float] = {}
    for row, weights_A in zip(weighed_batch.rows, row_weights, strict=True):
        agent = f"agent_{row.agent}"
        slope_size = float(weights_A @ np.abs(row.advantages))
        agent_sizes[agent] = agent_sizes.get(agent, 0.0) + slope_size
    stream_sizes = _stream_sizes(weighed_batch, row_weights)

    shares: dict[str, float] = {}
    for sizes in (dict(sorted(agent_sizes.items())), stream_sizes):
        total = sum(sizes.values())
        # Without any gradient there is nothing to share.
        if total > 0:
            for name, size in sizes.items():
                shares[f"optim/gradient_share/{name}"] = size / total
    return shares
