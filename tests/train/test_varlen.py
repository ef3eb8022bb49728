"""What PyTorch's varlen attention is called with; its CUDA kernel is not run.

The kernel's place is taken by a plain one that attends as PyTorch documents it: run n of the
queries to run n of the keys, causally and aligned at the last key.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from debate_train.batches.forward import packed_attention, varlen_attention
from debate_train.batches.packs import Layout, PrefixForest, make_layout

pytestmark = pytest.mark.numeric


def attend(q: Tensor, k: Tensor, v: Tensor, starts: Any, window: int, scale: float) -> Tensor:
    (query_starts, key_starts), found = starts, []
    assert q.shape[1] == k.shape[1] == v.shape[1]
    for n in range(len(query_starts) - 1):
        own = slice(int(query_starts[n]), int(query_starts[n + 1]))
        seen = slice(int(key_starts[n]), int(key_starts[n + 1]))
        scores = torch.einsum("qhd,khd->hqk", q[own], k[seen]) * scale
        size, length = seen.stop - seen.start, own.stop - own.start
        sees = torch.ones(length, size, dtype=torch.bool).tril(size - length)
        if window >= 0:
            sees = sees.triu(size - length - window)
        weights = scores.masked_fill(~sees, float("-inf")).softmax(-1)
        found.append(torch.einsum("hqk,khd->qhd", weights, v[seen]))
    return torch.cat(found)


def kernel(
    *given: Any,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> Tensor:
    query, key, value, query_starts, key_starts, longest_run, longest_path = given
    assert window_size[1] == 0
    if enable_gqa:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    assert longest_run == int(query_starts.diff().max())
    assert longest_path == int(key_starts.diff().max())
    assert query_starts.dtype == key_starts.dtype == torch.int32
    scale = query.shape[2] ** -0.5 if scale is None else scale
    return attend(query, key, value, (query_starts, key_starts), window_size[0], scale)


def forest(shared: int) -> Layout:
    """Four sequences; neighbours share this many tokens, the last pair twice as many."""
    grown = PrefixForest()
    for length, common in ((30, 0), (25, shared), (41, shared), (38, 2 * shared)):
        grown.add(length, common)
    return make_layout(grown)


def inputs(layout: Layout) -> list[Tensor]:
    rng = np.random.default_rng(0)
    size = layout.starts[-1]
    return [torch.from_numpy(rng.normal(size=(1, heads, size, 8))) for heads in (4, 2, 2)]


@pytest.mark.parametrize("shared", [0, 10])
@pytest.mark.parametrize("scale", [None, 0.5])
def test_varlen_attention_is_that_of_the_cpu(
    shared: int, scale: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    layout = forest(shared)
    assert (max(layout.parents) >= 0) == (shared > 0)
    query, key, value = inputs(layout)
    found = varlen_attention(query, key, value, layout, scale, None)
    module: Any = None
    expected, _ = packed_attention(
        module, query, key, value, None, pack_layout=layout, scaling=scale
    )
    assert found.shape == expected.shape == (1, layout.starts[-1], 4, 8)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


def test_varlen_attention_slides_when_the_model_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    layout = forest(10)
    query, key, value = inputs(layout)
    found = varlen_attention(query, key, value, layout, None, 7)
    module: Any = None
    expected, _ = packed_attention(
        module, query, key, value, None, pack_layout=layout, sliding_window=7
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
    assert not torch.allclose(found, varlen_attention(query, key, value, layout, None, 8))
