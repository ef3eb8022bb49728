"""PyTorch's varlen attention on the CPU: its wrapper and autograd are real, its two kernels not.

Plain kernels take their place that attend as PyTorch documents it: run n of the queries to run n
of the keys, causally and aligned at the last key.
"""

from inspect import signature

import numpy as np
import pytest
import torch
from torch.nn.attention import varlen

from debate_train.batches.forward import packed_attention, varlen_attention
from debate_train.batches.packs import PrefixForest, make_layout

pytestmark = pytest.mark.numeric

FORWARD = varlen._varlen_attn
BACKWARD = varlen._varlen_attn_backward


def named_arguments(operator, positional, named):
    bound = signature(operator._init_fn).bind(*positional, **named)
    bound.apply_defaults()
    return bound.arguments


def check_arguments(x):
    """Check what the CUDA kernel asks for and does not check itself."""
    for tensor in (x["query"], x["key"], x["value"]):
        assert tensor.is_contiguous() and tensor.shape[2] % 8 == 0
    for starts, longest in ((x["cu_seq_q"], x["max_q"]), (x["cu_seq_k"], x["max_k"])):
        assert starts.dtype == torch.int32 and starts.is_contiguous()
        assert longest == int(starts.diff().max())
    assert x["window_size"][1] == 0


def masked_scores(x):
    """Yield of each run: where its queries and keys stand, and the scores of its heads."""
    query = x["query"]
    key = x["key"]
    scale = query.shape[2] ** -0.5 if x["scale"] is None else x["scale"]
    num_groups = query.shape[1] // key.shape[1]
    query_starts = x["cu_seq_q"].tolist()
    key_starts = x["cu_seq_k"].tolist()
    for run in range(len(query_starts) - 1):
        queries = slice(query_starts[run], query_starts[run + 1])
        keys = slice(key_starts[run], key_starts[run + 1])
        repeated_keys = key[keys].repeat_interleave(num_groups, 1)
        scores = torch.einsum("qhd,khd->hqk", query[queries], repeated_keys) * scale
        num_queries, num_keys = scores.shape[1:]
        is_seen = torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)
        window = x["window_size"][0]
        if window >= 0:
            is_seen = is_seen.triu(num_keys - num_queries - window)
        yield queries, keys, num_groups, scale, scores.masked_fill(~is_seen, float("-inf"))


@FORWARD.register_kernel("cpu")
def attend(*positional, **named):
    x = named_arguments(FORWARD, positional, named)
    check_arguments(x)
    query = x["query"]
    value = x["value"]
    assert x["enable_gqa"] == (query.shape[1] != value.shape[1])
    assert x["is_causal"] == (list(x["window_size"]) == [-1, 0])
    output = torch.empty_like(query)
    lse = query.new_empty(query.shape[1], query.shape[0])
    for queries, keys, num_groups, _, scores in masked_scores(x):
        lse[:, queries] = scores.logsumexp(-1)
        values = value[keys].repeat_interleave(num_groups, 1)
        output[queries] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
    return output, lse, torch.zeros(2, dtype=torch.uint64)


@BACKWARD.register_kernel("cpu")
def attend_backward(*positional, **named):
    """Compute d scores = P (d P - sum(d out · out)); Dao 2023, section 3.1.2."""
    x = named_arguments(BACKWARD, positional, named)
    query, key, value, grad = (x[name] for name in ("query", "key", "value", "grad_out"))
    d_query = torch.zeros_like(query)
    d_key = torch.zeros_like(key)
    d_value = torch.zeros_like(value)

    def add_to_keys(total, keys, weights, of_queries, num_groups):
        by_head = torch.einsum("hqk,qhd->khd", weights, of_queries)
        total[keys] = by_head.unflatten(1, (-1, num_groups)).sum(2)

    for queries, keys, num_groups, scale, scores in masked_scores(x):
        probabilities = (scores - x["lse"][:, queries, None]).exp()
        repeated_keys = key[keys].repeat_interleave(num_groups, 1)
        values = value[keys].repeat_interleave(num_groups, 1)
        d_probabilities = torch.einsum("qhd,khd->hqk", grad[queries], values)
        grad_dot_output = (grad[queries] * x["out"][queries]).sum(-1).T[:, :, None]
        d_scores = scale * probabilities * (d_probabilities - grad_dot_output)
        d_query[queries] = torch.einsum("hqk,khd->qhd", d_scores, repeated_keys)
        add_to_keys(d_key, keys, d_scores, query[queries], num_groups)
        add_to_keys(d_value, keys, probabilities, grad[queries], num_groups)
    return d_query, d_key, d_value


def attend_packed(query, key, value, layout, scale, window):
    output, _ = packed_attention(
        None, query, key, value, None, pack_layout=layout, scaling=scale, sliding_window=window
    )
    return output


@pytest.mark.parametrize(("num_shared", "kv_heads"), [(0, 4), (10, 4), (10, 2)])
@pytest.mark.parametrize(("scale", "window"), [(None, None), (0.5, None), (None, 7)])
def test_values_and_gradients_of_a_forest_are_those_of_plain_attention(
    num_shared, kv_heads, scale, window
):
    # Four sequences; neighbors share this many tokens, the last pair twice as many.
    forest = PrefixForest()
    for length, num_common in ((30, 0), (25, num_shared), (41, num_shared), (38, 2 * num_shared)):
        forest.add(length, num_common)
    layout = make_layout(forest)
    assert (max(layout.parents) >= 0) == (num_shared > 0)
    assert_like_plain_attention(layout, kv_heads, scale, window)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("window", [None, 7])
def test_values_and_gradients_behind_a_trunk_are_those_of_plain_attention(kv_heads, window):
    # A trunk of 20 tokens, which two sequences leave at its end, one after 12 and one at once.
    forest = PrefixForest()
    depths = [20, 20, 12, 0]
    forest.grow_trunk(20, depths)
    for depth in depths:
        forest.follow_trunk(depth)
        forest.add(depth + 9, depth)
    layout = make_layout(forest, trunk_tokens=20)
    assert layout.parents == (-1, 0, 1, 1, 0, -1)
    assert_like_plain_attention(layout, kv_heads, scale=None, window=window)


def assert_like_plain_attention(layout, kv_heads, scale, window):
    """Compare values and gradients of queries, keys and values with those of masked attention."""
    rng = np.random.default_rng(0)
    num_keys = layout.starts[-1]
    num_queries = num_keys - layout.trunk_tokens
    shapes = [(4, num_queries), (kv_heads, num_keys), (kv_heads, num_keys)]
    draws = [torch.from_numpy(rng.normal(size=(1, *shape, 8))) for shape in shapes]
    loss_weights = torch.from_numpy(rng.normal(size=(1, num_queries, 4, 8)))
    results = []
    for attention in (varlen_attention, attend_packed):
        inputs = [tensor.clone().requires_grad_() for tensor in draws]
        output = attention(*inputs, layout, scale, window)
        (output * loss_weights).sum().backward()
        results.append([output.detach(), *(tensor.grad for tensor in inputs)])
    for by_varlen, expected in zip(*results, strict=True):
        torch.testing.assert_close(by_varlen, expected, rtol=0, atol=1e-12)
