"""Reference policies: what the KL penalty keeps the trained policy near."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from debate_train.logps import token_logps
from debate_train.packs import Pack


class Reference(Protocol):
    """A policy that is not trained."""

    def logps(self, model: nn.Module, pack: Pack) -> Tensor:
        """Return its log-probabilities of the pack's actions, shape (A,).

        Args:
            model: the trained one, as the trainer calls it; left as it was.
            pack: on the model's device.
        """
        ...


@dataclass(frozen=True, slots=True)
class KeptReference:
    """The trained parameters as they once were, held beside the model."""

    tensors: Mapping[str, Tensor]

    @torch.no_grad()
    def logps(self, model: nn.Module, pack: Pack) -> Tensor:
        """Return the kept policy's log-probabilities of the pack's actions, shape (A,)."""
        with swapped(model, self.tensors):
            return token_logps(model, pack)[0]


@contextmanager
def swapped(model: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Let the model hold these parameter values for a while."""
    parameters = {n: p for n, p in model.named_parameters() if n in tensors}
    own = {name: parameter.data for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            parameter.data = tensors[name]
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = own[name]
