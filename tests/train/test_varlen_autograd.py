"""PyTorch's own varlen wrapper and autograd on the CPU: only its two kernels are replaced."""

from inspect import signature
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen

from debate_train.batches.forward import packed_attention, varlen_attention
from debate_train.batches.packs import PrefixForest, make_layout

pytestmark = pytest.mark.numeric
varlen_op: Any = varlen._varlen_attn
backward_op: Any = varlen._varlen_attn_backward


def named_arguments(operator: Any, given: Any, named: Any) -> dict[str, Any]:
    """Return an operator's arguments by the names that PyTorch has for them."""
    bound = signature(operator._init_fn).bind(*given, **named)
    bound.apply_defaults()
    return bound.arguments


def runs(q: Tensor, k: Tensor, starts: tuple[Tensor, Tensor], window: Any, scale: Any) -> Any:
    """Yield each run's queries, keys, and the masked scores of its heads."""
    for tensor in (q, k):
        assert tensor.is_contiguous() and tensor.shape[2] % 8 == 0
    assert all(s.dtype == torch.int32 and s.is_contiguous() for s in starts)
    groups, scale = q.shape[1] // k.shape[1], q.shape[2] ** -0.5 if scale is None else scale
    for a, b, c, d in zip(starts[0], starts[0][1:], starts[1], starts[1][1:], strict=False):
        own, seen = slice(int(a), int(b)), slice(int(c), int(d))
        scores = torch.einsum("qhd,khd->hqk", q[own], k[seen].repeat_interleave(groups, 1)) * scale
        length, size = scores.shape[1:]
        sees = torch.ones(length, size, dtype=torch.bool).tril(size - length)
        if window[0] >= 0:
            sees = sees.triu(size - length - window[0])
        yield own, seen, groups, scale, scores.masked_fill(~sees, float("-inf"))


@varlen_op.register_kernel("cpu")
def _forward(*given: Any, **named: Any) -> tuple[Tensor, Tensor, Tensor]:
    x = named_arguments(varlen_op, given, named)
    q, k, v, window_size = x["query"], x["key"], x["value"], x["window_size"]
    starts, scale = (x["cu_seq_q"], x["cu_seq_k"]), x["scale"]
    assert [x["max_q"], x["max_k"]] == [int(s.diff().max()) for s in starts]
    assert v.is_contiguous() and x["enable_gqa"] == (q.shape[1] != k.shape[1])
    assert x["is_causal"] == (list(window_size) == [-1, 0]) and window_size[1] == 0
    out, lse = torch.empty_like(q), q.new_empty(q.shape[1], q.shape[0])
    for own, seen, groups, _, scores in runs(q, k, starts, window_size, scale):
        lse[:, own] = scores.logsumexp(-1)
        values = v[seen].repeat_interleave(groups, 1)
        out[own] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
    return out, lse, torch.zeros(2, dtype=torch.uint64)


@backward_op.register_kernel("cpu")
def _backward(*given: Any, **named: Any) -> tuple[Tensor, Tensor, Tensor]:
    """d scores = P (d P - sum(d out · out)); Dao 2023, section 3.1.2."""
    x = named_arguments(backward_op, given, named)
    q, k, v, grad, out, lse = (
        x[name] for name in ("query", "key", "value", "grad_out", "out", "lse")
    )
    starts, scale, window_size = (x["cu_seq_q"], x["cu_seq_k"]), x["scale"], x["window_size"]
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for own, seen, groups, by, scores in runs(q, k, starts, window_size, scale):
        chances = (scores - lse[:, own, None]).exp()
        keys, values = (y[seen].repeat_interleave(groups, 1) for y in (k, v))
        slopes = torch.einsum("qhd,khd->hqk", grad[own], values)
        slopes = by * chances * (slopes - (grad[own] * out[own]).sum(-1).T[:, :, None])
        dq[own] = torch.einsum("hqk,khd->qhd", slopes, keys)
        for into, weights, of in ((dk, slopes, q), (dv, chances, grad)):
            whole = torch.einsum("hqk,qhd->khd", weights, of[own])
            into[seen] = whole.unflatten(1, (-1, groups)).sum(2)
    return dq, dk, dv


@pytest.mark.parametrize(("shared", "kv_heads"), [(0, 4), (10, 4), (10, 2)])
@pytest.mark.parametrize(("scale", "window"), [(None, None), (0.5, None), (None, 7)])
def test_gradients_of_a_forest_are_those_of_plain_attention(
    shared: int, kv_heads: int, scale: float | None, window: int | None
) -> None:
    grown = PrefixForest()
    for length, common in ((30, 0), (25, shared), (41, shared), (38, 2 * shared)):
        grown.add(length, common)
    layout, rng = make_layout(grown), np.random.default_rng(0)
    size = layout.starts[-1]
    draws = [torch.from_numpy(rng.normal(size=(1, n, size, 8))) for n in (4, kv_heads, kv_heads)]
    weights = torch.from_numpy(rng.normal(size=(1, size, 4, 8)))
    found = []
    for is_varlen in (True, False):
        given = [tensor.clone().requires_grad_() for tensor in draws]
        if is_varlen:
            q, k, v = given
            output = varlen_attention(q, k, v, layout, scale, window)
        else:
            module: Any = None
            output, _ = packed_attention(
                module, *given, None, pack_layout=layout, scaling=scale, sliding_window=window
            )
        (output * weights).sum().backward()
        found.append([output.detach(), *(tensor.grad for tensor in given)])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)
