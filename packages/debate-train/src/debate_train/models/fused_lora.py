"""LoRA layers on a model of 16 bits, with the adapter added to the layer's output in place."""

from typing import Any

import torch
from peft.tuners.lora.layer import Linear
from torch import Tensor, nn

__all__ = ["fuse"]

HALF_PRECISION = (torch.bfloat16, torch.float16)


class _LowRankUpdate(torch.autograd.Function):
    """x Wᵀ + b + s (x Aᵀ) Bᵀ (Hu et al. 2021, eq. 3), for a frozen W.

    peft copies x and the sum to float32, the adapter's type; the matrix products are then a small
    part of the time. Here A and B are rounded to x's type, as autocast does, and only the output
    and the gradient of x take memory of their size.

    Shape letters: N rows of x, I inputs, O outputs, R the adapter's rank.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, layer: nn.Linear, a_RI: Tensor, b_OR: Tensor, scale: float
    ) -> Tensor:
        """Compute [..., O] for x [..., I]."""
        x_NI = x.reshape(-1, x.shape[-1])
        a_RI = a_RI.to(x.dtype)
        # Scaled in float32, so that the product is rounded once.
        b_OR = (b_OR * scale).to(x.dtype)
        low_NR = x_NI @ a_RI.T
        output_NO = nn.functional.linear(x_NI, layer.weight, layer.bias)
        output_NO.addmm_(low_NR, b_OR.T)
        ctx.save_for_backward(x_NI, layer.weight, a_RI, b_OR, low_NR)
        ctx.scale = scale
        return output_NO.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of x, a and b, the last two in float32."""
        x_NI, weight_OI, a_RI, b_OR, low_NR = ctx.saved_tensors
        x_needs_grad, _, a_needs_grad, b_needs_grad, _ = ctx.needs_input_grad
        (grad,) = grads
        grad_NO = grad.reshape(-1, grad.shape[-1])
        grad_NR = grad_NO @ b_OR
        grad_x = grad_a = grad_b = None
        if x_needs_grad:
            grad_NI = (grad_NO @ weight_OI).addmm_(grad_NR, a_RI)
            grad_x = grad_NI.view(*grad.shape[:-1], -1)
        if a_needs_grad:
            grad_a = (grad_NR.T @ x_NI).float()
        if b_needs_grad:
            grad_b = (grad_NO.T @ low_NR).float().mul_(ctx.scale)
        return grad_x, None, grad_a, grad_b, None


class _Fused(Linear):  # type: ignore[misc]
    """peft's layer, fused for a single plain adapter and peft's own computation otherwise."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the layer's output with the adapter."""
        names = [name for name in self.active_adapters if name in self.lora_A]
        base = self.base_layer
        weight = base.weight
        is_one_adapter = len(names) == 1 and not (self.disable_adapters or self.merged)
        is_half = x.dtype in HALF_PRECISION and weight.dtype == x.dtype
        # ZeRO-3 gathers a weight with `ds_id` when the layer itself is called.
        is_plain_weight = not weight.requires_grad and not hasattr(weight, "ds_id")
        if args or kwargs or not (is_one_adapter and is_half and is_plain_weight):
            output: Tensor = super().forward(x, *args, **kwargs)
            return output
        name = names[0]
        a_RI = self.lora_A[name].weight
        b_OR = self.lora_B[name].weight
        scale = self.scaling[name]
        fused: Tensor = _LowRankUpdate.apply(x, base, a_RI, b_OR, scale)  # type: ignore[no-untyped-call]
        return fused


def fuse(model: nn.Module) -> None:
    """Make peft's LoRA layers of `model` fused where they are plain: no dropout, no variant."""
    for layer in model.modules():
        if type(layer) is Linear and type(layer.base_layer) is nn.Linear and not layer.lora_variant:
            layer.__class__ = _Fused
