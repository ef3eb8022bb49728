"""The preference loss: one row of a pair over the other."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

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
    beta: float = Field(0.1, gt=0)
    nll_weight: float = Field(0.0, ge=0)
    reference: ReferencePolicy = "phase_start"

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

        margins_P, chosen_logps_P, weights_P = self.pairs(x)
        losses_P = -logsigmoid(margins_P) - self.nll_weight * chosen_logps_P
        return (losses_P * weights_P).sum()

    def diagnostics(self, x: LossInputs) -> "dict[str, Tensor]":
        """Return this pack's share of the mean margin and of how many pairs have a positive one."""
        margins_P, _, weights_P = self.pairs(x)
        return {
            "optim/preference_margin": margins_P * weights_P,
            "optim/preference_accuracy": (margins_P > 0) * weights_P,
        }

    def pairs(self, x: LossInputs) -> "tuple[Tensor, Tensor, Tensor]":
        """Return margins β·(Δ chosen - Δ rejected), mean log p of the chosen, and pair weights.

        All of shape (P,); P is the number of actions, as many as there can be pairs: places that
        no pair has are zeros of weight 0. How many pairs there are is not asked for, since a GPU
        would be waited for. Every action of a pair has the pair's weight.
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
        signed_A = (logps_A - reference_A) * (2 * chosen_A - 1)
        parts = (signed_A, logps_A * chosen_A, chosen_A, weights_A, torch.ones_like(chosen_A))
        margins_P, chosen_P, lengths_P, weights_P, actions_P = (
            summed(values_A, pair_A) for values_A in parts
        )
        means = chosen_P / lengths_P.clamp(min=1), weights_P / actions_P.clamp(min=1)
        return self.beta * margins_P, *means


def _places(numbers_A: "Tensor") -> "Tensor":
    """Return a place below A for each number, equal ones the same: where it stands when sorted."""
    import torch

    return torch.searchsorted(numbers_A.sort().values, numbers_A)
