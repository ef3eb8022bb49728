"""The preference loss: one row of a pair over the other."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from pydantic import Field

from debate_protocol.config import Config
from debate_train.losses.loss_inputs import LossInputs, Material, OldPolicy, ReferencePolicy

if TYPE_CHECKING:
    from torch import Tensor


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
