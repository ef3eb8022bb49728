"""Muon for the matrices of a model, AdamW for its other parameters."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field
from torch.optim import AdamW, Optimizer
from torch.optim import Muon as MatrixMuon

from debate_train.trainers.optimizers import AdamBase, Kept

if TYPE_CHECKING:
    from torch.nn import Parameter

_TABLES = ("embed", "wte", "wpe", "lm_head")
"""What stands in the names of embeddings and output heads, whose rows are tokens or places."""


class Muon(AdamBase):
    """Muon (Jordan et al. 2024) for matrices; AdamW for embeddings, output heads and vectors.

    Muon replaces the momentum of a matrix by the nearest matrix with orthonormal rows or columns.
    Its steps are scaled by 0.2 · √(the longer side), as large as AdamW's (Liu et al. 2025), so that
    one learning rate serves both.
    """

    type: Literal["muon"] = "muon"
    momentum: float = Field(0.95, ge=0, lt=1)
    """Decay of the mean of a matrix's gradients."""
    nesterov: bool = True
    """Look ahead along the momentum."""

    def make(self, parameters: "Mapping[str, Parameter]", learning_rate: float) -> Optimizer:
        """Return the optimizer of these parameters."""
        matrices = {n: p for n, p in parameters.items() if _is_matrix(n, p)}
        others = {n: p for n, p in parameters.items() if n not in matrices}
        parts: list[Optimizer] = []
        if matrices:
            muon = MatrixMuon(
                list(matrices.values()),
                lr=learning_rate,
                weight_decay=self.weight_decay,
                momentum=self.momentum,
                nesterov=self.nesterov,
                adjust_lr_fn="match_rms_adamw",
            )
            parts.append(muon)
        if others:
            parts.append(AdamW(list(others.values()), **self._settings(learning_rate)))
        return SideBySide(parts)

    @property
    def needs_whole(self) -> bool:
        """It computes with rows and columns."""
        return True

    def kept(self) -> Kept:
        """Return what it keeps of a parameter: of a matrix the first of these, else the others."""
        return Kept((), ("momentum_buffer", "exp_avg", "exp_avg_sq"), bytes_each=4.0)


class SideBySide(Optimizer):
    """Optimizers of torch that each have some of the parameters, as one.

    Their groups and states are its own. It counts the steps of each parameter, as AdamW does.
    """

    def __init__(self, parts: list[Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        at = 0
        for part in parts:
            size = len(part.param_groups)
            part.param_groups, at = self.param_groups[at : at + size], at + size
            part.state = self.state
        self._parts = parts

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Let each make its step."""
        loss = None if closure is None else closure()
        stepped = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        counts = [float(self.state[p].get("step", 0)) + 1 for p in stepped]
        for part in self._parts:
            part.step()
        for parameter, count in zip(stepped, counts, strict=True):
            self.state[parameter]["step"] = torch.tensor(count)
        return loss


def _is_matrix(name: str, parameter: "Parameter") -> bool:
    return parameter.ndim == 2 and not any(part in name for part in _TABLES)
