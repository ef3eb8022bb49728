"""The pass over a trunk: what the packs of a group begin with goes forward once for all of them.

Rows of a group may begin alike and not fit into one pack together. Their common beginning, the
trunk, then goes forward first. The packs behind it run one after the other; they read its keys,
values and hidden states, and add to the gradients of these. One backward pass takes the gradients
through the trunk. So memory holds the activations of the trunk and of one pack, and no pack
computes the trunk again. Its first run may drop its activations and compute them once more for its
gradient.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from debate_train.batches.packs import Trunk

if TYPE_CHECKING:
    from transformers import PreTrainedModel


HIDDEN = "hidden"
"""Key of a run's last hidden states, beside its layers."""
States = tuple[Tensor, ...]
"""Keys and values of a layer, (1, heads, tokens, features of a head); or hidden states, (T, D)."""


class _Run:
    """States of a run of the trunk: as computed, and as the tokens behind it read them."""

    def __init__(self) -> None:
        self.outputs: dict[object, States] = {}
        """Part of the run's graph; empty where its activations are dropped."""
        self.copies: dict[object, States] = {}
        """Outside of the graph: they gather the gradients of all tokens that read them."""


class TrunkPass:
    """Forward and backward pass over a trunk of S tokens; needs `attention_of` around both.

    Args:
        model: transformers' model, or peft's around one.
        trunk: on the model's device.
    """

    def __init__(self, model: nn.Module, trunk: Trunk) -> None:
        self._model = model
        self._trunk = trunk
        self._runs = [_Run() for _ in trunk.runs]
        self._learns = torch.is_grad_enabled()
        # The run that computes now; the number of runs while a pack does.
        self._active = 0
        for index, (run, _) in enumerate(zip(trunk.runs, self._runs, strict=True)):
            with torch.set_grad_enabled(self._learns and run.keeps_activations):
                self._forward(index)

    @property
    def hidden_SD(self) -> Tensor:
        """The trunk's last hidden states."""
        return torch.cat([run.copies[HIDDEN][0] for run in self._runs])

    def extend(self, layer: nn.Module, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Put the trunk's keys and values of a layer before those of what computes now."""
        if self._active < len(self._runs):
            self._record(layer, key, value)
        before = [run.copies[layer] for run in self._runs[: self._active]]
        keys = [run_key for run_key, _ in before]
        values = [run_value for _, run_value in before]
        return torch.cat((*keys, key), 2), torch.cat((*values, value), 2)

    def backward(self, backward: Callable[[Tensor], object]) -> None:
        """Take the gradients that the packs have left through the trunk, the last run first."""
        for index in reversed(range(len(self._runs))):
            run = self._runs[index]
            if not run.outputs:
                self._forward(index)
            products = []
            for name, copies in run.copies.items():
                for output, copy in zip(run.outputs[name], copies, strict=True):
                    if copy.grad is not None:
                        # d/dx Σ x·g is g: any trainer's `backward` takes a scalar.
                        products.append((output * copy.grad).sum())
            # Layers that are computed again in a backward pass belong to the run, too.
            self._active = index
            if products:
                backward(torch.stack(products).sum())
            run.outputs.clear()
            # Nothing reads this run any more; callers may hold the pass a little longer.
            run.copies.clear()

    def _forward(self, index: int) -> None:
        run = self._trunk.runs[index]
        self._active = index
        hidden_1TD = (
            language_model(self._model)
            .base_model(
                input_ids=run.tokens_1T,
                position_ids=run.positions_1T,
                pack_layout=run.layout,
                pack_trunk=self,
                use_cache=False,
            )
            .last_hidden_state
        )
        self._record(HIDDEN, hidden_1TD[0])
        self._active = len(self._runs)

    def _record(self, name: object, *outputs: Tensor) -> None:
        run = self._runs[self._active]
        if torch.is_grad_enabled():
            run.outputs[name] = outputs
        if name not in run.copies:
            run.copies[name] = tuple(
                output.detach().requires_grad_(self._learns) for output in outputs
            )


def language_model(model: nn.Module) -> "PreTrainedModel":
    """Look up transformers' model below peft's wrapper; the adapters stay in its layers."""
    language_model: PreTrainedModel = model
    if hasattr(model, "get_base_model"):
        language_model = language_model.get_base_model()
    return language_model
