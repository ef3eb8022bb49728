"""What a loss offers to trainers; losses of other packages keep it, too."""

from typing import TYPE_CHECKING, Literal, Protocol

from debate_train.losses.loss_inputs import (
    Aggregation,
    LossInputs,
    Material,
    OldPolicy,
    ReferencePolicy,
)

if TYPE_CHECKING:
    from torch import Tensor


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
