"""Muon for the matrices of a model beside AdamW for its other parameters, as one optimizer."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import AdamW, Muon, Optimizer

_TABLES = ("embed", "wte", "wpe", "lm_head")
"""What stands in the names of embeddings and output heads, whose rows are tokens or places."""


class MuonAndAdamW(Optimizer):
    """Steps matrices by Muon, and embeddings, output heads and vectors by AdamW.

    Both have their groups and states here. It counts the steps of each parameter, as AdamW does.

    Args:
        parameters: by their names in the model.
        muon: settings of torch's Muon.
        adamw: settings of torch's AdamW.
    """

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        muon: Mapping[str, Any],
        adamw: Mapping[str, Any],
    ) -> None:
        matrices = [p for name, p in parameters.items() if _is_matrix(name, p)]
        others = [p for name, p in parameters.items() if not _is_matrix(name, p)]
        self._parts: list[Optimizer] = []
        if matrices:
            self._parts.append(Muon(matrices, **muon))
        if others:
            self._parts.append(AdamW(others, **adamw))
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        for part, group in zip(self._parts, self.param_groups, strict=True):
            part.param_groups, part.state = [group], self.state

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


def _is_matrix(name: str, parameter: Parameter) -> bool:
    return parameter.ndim == 2 and not any(part in name for part in _TABLES)
