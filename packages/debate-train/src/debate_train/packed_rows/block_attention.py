"""Attention over a pack on a CPU, in dense blocks.

A node sees itself causally and its ancestors whole. So the pairs that attend to each other are
one causal square a node and, as a node's descendants follow it in the pack, one full rectangle
a node that has some. Each block runs through torch's flash attention; outputs are united by
their log-sum-exp. No mask and no copy of keys is made.

Source: uniting blocks by log-sum-exp, Milakov & Gimelshein 2018 and Dao et al. 2022; the backward
pass of a block takes the united output and log-sum-exp, as in ring attention (Liu et al. 2023).
"""

from typing import Any

import torch
from torch import Tensor

from debate_train.packed_rows.pack_layout import Layout

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def block_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float | None
) -> Tensor:
    """Return the attention output of a pack, shape (1, T, heads, features of a head).

    Args:
        query: shape (1, heads, T, features of a head).
        key: as the query, with as many heads or fewer (grouped queries).
        value: as the key.
        layout: of the pack.
        scale: of the products before the softmax; None is 1 / √features.
    """
    output: Tensor = _BlockAttention.apply(query, key, value, layout, scale)  # type: ignore[no-untyped-call]
    return output


class _BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float | None
    ) -> Tensor:
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        output = torch.empty_like(query, dtype=wide)
        total = output.new_empty(query.shape[:3])
        for squares in layout.squares:
            parts = [squares.gather(x) for x in (query, key, value)]
            found, sums = _flash(*parts, 0.0, True, scale=scale)
            squares.put(found, output)
            squares.put(sums, total)
        for start, end, until in layout.rectangles:
            below, above = slice(end, until), slice(start, end)
            found, sums = _flash(
                query[:, :, below], key[:, :, above], value[:, :, above], 0.0, False, scale=scale
            )
            united = torch.logaddexp(total[:, :, below], sums)
            output[:, :, below] *= (total[:, :, below] - united).exp_()[..., None]
            output[:, :, below] += found * (sums - united).exp_()[..., None]
            total[:, :, below] = united
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, total)
        ctx.layout, ctx.scale = layout, scale
        return output.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, total = ctx.saved_tensors
        grads = [torch.zeros_like(x) for x in (query, key, value)]
        slope = grad_output.contiguous().transpose(1, 2)
        for squares in ctx.layout.squares:
            found = _flash_backward(
                squares.gather(slope, 0.0),
                *(squares.gather(x) for x in (query, key, value)),
                squares.gather(output),
                squares.gather(total, float("inf")),
                0.0,
                True,
                scale=ctx.scale,
            )
            for grad, own in zip(grads, found, strict=True):
                squares.put(own, grad)
        for start, end, until in ctx.layout.rectangles:
            below, above = slice(end, until), slice(start, end)
            found = _flash_backward(
                slope[:, :, below],
                query[:, :, below],
                key[:, :, above],
                value[:, :, above],
                output[:, :, below],
                total[:, :, below],
                0.0,
                False,
                scale=ctx.scale,
            )
            for grad, own, where in zip(grads, found, (below, above, above), strict=True):
                grad[:, :, where] += own
        return (*grads, None, None)
