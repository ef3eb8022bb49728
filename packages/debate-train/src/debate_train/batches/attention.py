"""Attention over packs: each run of tokens sees its ancestors and, causally, itself.

A node sees itself causally and its ancestors whole. So the pairs that attend to each other are
one causal square a node and, as a node's descendants follow it in the pack, one full rectangle
a node that has some. Each block runs through torch's flash attention; outputs are united by
their log-sum-exp. No mask and no copy of keys is made.

Source: uniting blocks by log-sum-exp, Milakov & Gimelshein 2018 and Dao et al. 2022; the backward
pass of a block takes the united output and log-sum-exp, as in ring attention (Liu et al. 2023).
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import signature
from math import sqrt
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from debate_train.batches.packs import Layout, Pack
from debate_train.batches.row_types import let_speak
from debate_train.interrupts import RecipeError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from debate_train.batches.packs import Layout


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


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: "Layout",
    scale: float | None,
    window: int | None,
) -> Tensor:
    """Return the attention output of a pack, shape (1, T, heads, features of a head).

    Args:
        query: shape (1, heads, T, features); `key` and `value` may have fewer heads.
        key: of the pack's tokens; each run of queries is given those of its path.
        value: likewise.
        layout: which tokens of the pack see which.
        scale: of the scores; None is 1 / √features.
        window: most tokens that one sees, itself included; None is all.
    """
    from torch.nn.attention.varlen import varlen_attn

    keys, values = key[0].transpose(0, 1), value[0].transpose(0, 1)
    if max(layout.parents) >= 0:  # Else every run is its own path.
        keys, values = keys[layout.keys_K], values[layout.keys_K]
    queries, keys, values, settings = settings_of(
        varlen_attn, query[0].transpose(0, 1), keys, values, scale, window
    )
    output: Any = varlen_attn(
        queries.contiguous(),
        keys.contiguous(),
        values.contiguous(),
        layout.query_starts_N,
        layout.key_starts_N,
        layout.longest_run,
        layout.longest_path,
        **settings,
    )
    found: Tensor = output[None]
    return found


def settings_of(
    varlen_attn: Callable[..., object],
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float | None,
    window: int | None,
) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    """Return tensors and settings as this release of PyTorch takes them.

    Releases before 2.13 lack one or the other of `scale`, `window_size` and `enable_gqa`.

    Args:
        varlen_attn: PyTorch's function.
        queries: shape (T, heads, features).
        keys: shape (K, heads, features), perhaps of fewer heads.
        values: likewise.
        scale: as in `varlen_attention`.
        window: likewise.

    Raises:
        RecipeError: This release knows no window.
    """
    known = signature(varlen_attn).parameters
    settings: dict[str, Any] = {}
    groups = queries.shape[1] // keys.shape[1]
    if groups > 1 and "enable_gqa" in known:
        settings["enable_gqa"] = True
    elif groups > 1:
        keys, values = (tensor.repeat_interleave(groups, 1) for tensor in (keys, values))
    if "window_size" in known:  # (-1, 0) is causal, aligned at the last key.
        settings["window_size"] = (-1 if window is None else window - 1, 0)
    elif window is None:
        settings["is_causal"] = True
    else:
        raise RecipeError(
            f"trainer.packing: torch {torch.__version__} cannot attend within the model's sliding "
            "window on packed rows; expected a newer torch, or packing: none"
        )
    if scale is not None and "scale" in known:
        settings["scale"] = scale
    elif scale is not None:
        queries = queries * (scale * sqrt(queries.shape[2]))
    return queries, keys, values, settings


NAME = "debate_packed"
"""The name under which transformers finds `packed_attention`."""

_NOT_COMPUTED = ("softcap", "s_aux", "position_bias", "dropout")


class PackedAttentionError(Exception):
    """The model's attention is not what packs compute."""


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Return the attention output of a pack, shape (1, T, heads, features of a head).

    Called by transformers in every attention layer; `settings` holds the pack's layout, which the
    trainer gave to the model's forward.
    """
    layout: Layout = settings["pack_layout"]
    for name in _NOT_COMPUTED:
        found = settings.get(name)
        if isinstance(found, Tensor) or found:
            raise PackedAttentionError(f"attends with {name}, which packs do not compute")
    scale, window = settings.get("scaling"), settings.get("sliding_window")
    if key.device.type == "cuda" and key.dtype in (torch.bfloat16, torch.float16):
        return varlen_attention(query, key, value, layout, scale, window), None
    slides = window is not None and layout.longest_path > window
    if key.device.type == "cpu" and value.shape == key.shape and not slides:
        return block_attention(query, key, value, layout, scale), None
    shared = query.shape[1] != key.shape[1]
    outputs = []
    for node in range(len(layout.parents)):
        path = layout.path(node)
        own = path[-1]
        keys = torch.cat([key[:, :, run] for run in path], 2)
        values = torch.cat([value[:, :, run] for run in path], 2)
        outputs.append(
            functional.scaled_dot_product_attention(
                query[:, :, own],
                keys,
                values,
                attn_mask=_mask(own.stop - own.start, keys, window),
                is_causal=len(path) == 1 and not _slides(keys, window),
                scale=scale,
                enable_gqa=shared,
            )
        )
    return torch.cat(outputs, 2).transpose(1, 2).contiguous(), None


def _slides(keys: Tensor, window: int | None) -> bool:
    return window is not None and keys.shape[2] > window


def _mask(queries: int, keys: Tensor, window: int | None) -> Tensor | None:
    """Return which keys each query sees, aligned at the last key; None where is_causal does."""
    size = keys.shape[2]
    if queries == size and not _slides(keys, window):
        return None
    sees = torch.ones(queries, size, dtype=torch.bool, device=keys.device)
    sees = sees.tril(size - queries)
    return sees if window is None else sees.triu(size - queries - window + 1)


def forward_inputs(pack: Pack) -> dict[str, object]:
    """Return what the model's forward is called with."""
    inputs: dict[str, object] = {"input_ids": pack.tokens_BT, "use_cache": False}
    if pack.layout is None:
        return inputs
    return inputs | {"position_ids": pack.positions_BT, "pack_layout": pack.layout}


def attention_of(model: nn.Module, pack: Pack) -> AbstractContextManager[None]:
    """Return the context in which a pack's forward and backward passes run, by its adapter."""
    let_speak(model, pack.adapter)
    return nullcontext() if pack.layout is None else attending_packs(model)


@contextmanager
def attending_packs(model: nn.Module) -> Iterator[None]:
    """Let the model attend as packs say, backward passes that recompute layers included."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_attention)
    config: PreTrainedConfig = model.config
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
