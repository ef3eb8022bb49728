"""Attention over packs: each run of tokens sees its ancestors and, causally, itself."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from debate_train.packed_rows.block_attention import block_attention
from debate_train.packed_rows.pack_layout import Layout
from debate_train.packed_rows.packs import Pack
from debate_train.packed_rows.speaking_adapter import let_speak
from debate_train.packed_rows.varlen import varlen_attention

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

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
