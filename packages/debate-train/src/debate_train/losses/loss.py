"""What a loss offers to trainers, and the preference loss."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from pydantic import Field

from debate_protocol.plugins import Config
from debate_train.batches.row_types import weigh

if TYPE_CHECKING:
    from torch import Tensor

    from debate_train.batches.row_types import Batch


Aggregation = Literal["token_sum", "token_mean_batch", "token_mean_group", "sequence_mean"]
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


def reference_error(policy: ReferencePolicy | None) -> str | None:
    """Return what is wrong with a reference that is neither a name nor a directory."""
    if not isinstance(policy, Path) or policy.is_dir():
        return None
    return (
        f"loss: found the reference {str(policy)!r}, which is no directory; expected phase_start, "
        "base, or a directory with weights, such as a checkpoint"
    )


def gradient_shares(batch: "Batch", loss: "Loss") -> dict[str, float]:
    """Return each agent's and each stream's share of the gradient.

    A share is that of Σ w·|A|, w what the token counts and A its advantage: the size of the slopes
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
    found = _shares(dict(sorted(agents.items()))) | _shares(streams)
    return {f"optim/gradient_share/{name}": share for name, share in found.items()}


def _shares(sizes: dict[str, float]) -> dict[str, float]:
    """Return each size over their sum; nothing where there is no gradient."""
    total = sum(sizes.values())
    return {name: size / total for name, size in sizes.items()} if total > 0 else {}


class Loss(Protocol):
    """What an update lowers: a pydantic model with a field `type`.

    `TokenLoss` and `RatioLoss` of `debate_train.losses` bring all but `type`, `aggregation` and the
    loss of each action.
    """

    @property
    def type(self) -> str:
        """The name by which recipes choose the loss."""
        ...

    @property
    def aggregation(self) -> "Aggregation | Literal['pair_mean']":
        """Over what the terms of the sum are averaged."""
        ...

    @property
    def supervised(self) -> bool:
        """Learns from given text: log-probabilities at temperature 1, not the sampled one."""
        ...

    @property
    def learns_from(self) -> "Material":
        """What it is made for."""
        ...

    @property
    def takes_off_policy(self) -> bool:
        """Whether samples of older weights may be used: something bounds what they do."""
        ...

    @property
    def ratio_against(self) -> OldPolicy:
        """Whose log-probabilities the old ones are."""
        ...

    @property
    def reference_policy(self) -> ReferencePolicy | None:
        """The policy whose log-probabilities the loss reads, None for none."""
        ...

    def __call__(self, x: LossInputs) -> "Tensor":
        """Return this pack's share of the step's loss, a scalar."""
        ...

    def diagnostics(self, x: LossInputs) -> "dict[str, Tensor]":
        """Return what this loss is watched by, of each action and by name."""
        ...


class Dpo(Config):
    """Preference of one row over another: -log σ(β·(Δ chosen - Δ rejected)), Δ = Σ (p - ref).

    A pair is the rows of equal `pair`; positive advantages mark the chosen one, negative the
    rejected one, and their size does not matter. Log-probabilities are taken at temperature 1.

    Source: Rafailov et al. 2023, eq. 7; `nll_weight` adds the mean -log p of the chosen tokens,
    Pang et al. 2024, eq. 1 and 2. ACC-Debate prints the ratio of probabilities without log and β;
    this is the standard loss that it cites.
    """

    renamed: ClassVar[Mapping[str, str]] = {"normalise": "aggregation"}
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
    def takes_off_policy(self) -> bool:
        """Whoever sampled a pair, its preference holds."""
        return True

    @property
    def ratio_against(self) -> OldPolicy:
        """Whose log-probabilities the old ones are; the loss reads none."""
        return "sampler"

    @property
    def reference_policy(self) -> ReferencePolicy:
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
        shares = {name: values_P * pairs.weights_P for name, values_P in found.items()}
        return {f"optim/preference_{name}": share for name, share in shares.items()}

    def pairs(self, x: LossInputs) -> "Pairs":
        """Return the pairs of a pack.

        There are as many places as actions: those that no pair has are zeros of weight 0. How many
        pairs there are is not asked for, since a GPU would be waited for. Every action of a pair
        has the pair's weight.
        """
        import torch

        assert x.reference_logps_A is not None
        paired_A = x.pairs_A >= 0
        zero = x.logps_A.new_zeros(())
        logps_A, reference_A, credits_A, weights_A = (
            torch.where(paired_A, values.to(x.logps_A.dtype), zero)
            for values in (x.logps_A, x.reference_logps_A, x.advantages_A, x.weights_A)
        )

        def summed(values_A: "Tensor", into_A: "Tensor") -> "Tensor":
            return torch.zeros_like(values_A).index_add(0, into_A, values_A)

        pair_A, row_A = _places(x.pairs_A), _places(x.rows_A)
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


class Pairs(NamedTuple):
    """What a pack says of its pairs, all of shape (P,).

    `margins_P` is β·(Δ chosen - Δ rejected), `rewards_P` β·Δ of the chosen reply, `chosen_logps_P`
    the mean log p of its tokens, and `weights_P` what the pair counts.
    """

    margins_P: "Tensor"
    rewards_P: "Tensor"
    chosen_logps_P: "Tensor"
    weights_P: "Tensor"


def _places(numbers_A: "Tensor") -> "Tensor":
    """Return a place below A for each number, equal ones the same: where it stands when sorted."""
    import torch

    return torch.searchsorted(numbers_A.sort().values, numbers_A)
