"""LoRA layers on a model of 16 bits that add their adapter to the layer's output in place."""

from typing import Any

import torch
from peft.tuners.lora.layer import Linear
from torch import Tensor, nn

__all__ = ["fuse"]

_HALF = (torch.bfloat16, torch.float16)


class _LowRankUpdate(torch.autograd.Function):
    """x Wᵀ + b + s (x Aᵀ) Bᵀ (Hu et al. 2021, eq. 3), for a frozen W.

    peft copies x and the sum to float32, the adapter's type; the matrix products are then a small
    part of the time. Here A and B are rounded to x's type, as autocast does, and nothing of the
    size of x or of the output is made but the output and the gradient of x.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, layer: nn.Linear, a: Tensor, b: Tensor, scale: float
    ) -> Tensor:
        """Return [..., out] for x [..., in], a [rank, in] and b [out, rank]."""
        rows = x.reshape(-1, x.shape[-1])
        a, b = a.to(x.dtype), (b * scale).to(x.dtype)
        low = rows @ a.T
        result = nn.functional.linear(rows, layer.weight, layer.bias).addmm_(low, b.T)
        ctx.save_for_backward(rows, layer.weight, a, b, low)
        ctx.scale = scale
        return result.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, a and b, the last two in float32."""
        rows, weight, a, b, low = ctx.saved_tensors
        of_x, _, of_a, of_b, _ = ctx.needs_input_grad
        (grad,) = grads
        out = grad.reshape(-1, grad.shape[-1])
        back = out @ b
        x = (out @ weight).addmm_(back, a).view(*grad.shape[:-1], -1) if of_x else None
        grad_a = (back.T @ rows).float() if of_a else None
        grad_b = (out.T @ low).float().mul_(ctx.scale) if of_b else None
        return x, None, grad_a, grad_b, None


class _Fused(Linear):  # type: ignore[misc]
    """peft's layer, which it remains wherever more is asked of it than one plain adapter."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return the layer's output with its adapter."""
        names = [name for name in self.active_adapters if name in self.lora_A]
        base = self.base_layer
        weight = base.weight
        if (
            len(names) != 1
            or (self.disable_adapters or self.merged or args or kwargs)
            or (x.dtype not in _HALF or weight.dtype != x.dtype or weight.requires_grad)
            or hasattr(weight, "ds_id")  # ZeRO-3 gathers it when the layer itself is called.
        ):
            result: Tensor = super().forward(x, *args, **kwargs)
            return result
        a, b = (part[names[0]].weight for part in (self.lora_A, self.lora_B))
        scale = self.scaling[names[0]]
        sum_: Tensor = _LowRankUpdate.apply(x, base, a, b, scale)  # type: ignore[no-untyped-call]
        return sum_


def fuse(model: nn.Module) -> None:
    """Make peft's LoRA layers of `model` fused where they are plain: no dropout, no variant."""
    for layer in model.modules():
        if type(layer) is Linear and type(layer.base_layer) is nn.Linear and not layer.lora_variant:
            layer.__class__ = _Fused
