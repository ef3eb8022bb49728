"""Muon for matrices beside AdamW for all other parameters, as one optimizer of torch."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import optim
from torch.nn import Parameter
from torch.optim import Optimizer

from debate_train.trainers.combined_optimizer import CombinedOptimizer

# Words in the names of embeddings and output heads, whose rows are tokens or positions.
_TABLE_WORDS = ("embed", "wte", "wpe", "lm_head")


class MuonAndAdamW(CombinedOptimizer):
    """Steps matrices by Muon, and embeddings, output heads and vectors by AdamW.

    It counts the steps of each parameter, as AdamW does.

    Args:
        parameters: by their names in the model.
        muon: settings of torch's Muon.
        adamw: settings of torch's AdamW.
    """

    def __init__(
        self, parameters: Mapping[str, Parameter], muon: dict[str, Any], adamw: dict[str, Any]
    ) -> None:
        matrices = []
        others = []
        for name, parameter in parameters.items():
            is_table = any(word in name for word in _TABLE_WORDS)
            if parameter.ndim == 2 and not is_table:
                matrices.append(parameter)
            else:
                others.append(parameter)
        parts: list[Optimizer] = []
        if matrices:
            parts.append(optim.Muon(matrices, **muon))
        if others:
            parts.append(optim.AdamW(others, **adamw))
        super().__init__(parts)

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Make a step of both optimizers."""
        num_steps: dict[Parameter, float] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    num_steps[parameter] = float(self.state[parameter].get("step", 0)) + 1
        loss = super().step(closure)
        # torch's Muon counts no steps; checkpoints need one number for all parameters.
        for parameter, count in num_steps.items():
            self.state[parameter]["step"] = torch.tensor(count)
        return loss
