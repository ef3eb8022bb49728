"""Keys and values while a batch is sampled: no copy of them for a new token, none for a head."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

ROOM = 128
"""For how many more tokens a layer reserves memory when it has run out."""

NAME = "debate_shared_keys"
"""The name under which transformers finds `shared_key_attention`."""

_ELSEWHERE = ("position_bias", "cache", "softcap", "s_aux", "output_attentions")


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one layer, in memory with room behind them.

    `keys` and `values` are views of what is filled, each (batch, key heads, tokens, features of a
    head), as those of transformers' `DynamicLayer`, which copies all of them for each new token.
    """

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Reserve nothing yet."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = self._key_memory = key_states[:, :, :0]
        self.values = self._value_memory = value_states[:, :, :0]
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append new tokens; return the keys and values of all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        before, after = self.keys.shape[2], self.keys.shape[2] + key_states.shape[2]
        if after > self._key_memory.shape[2]:
            self._key_memory = _roomier(self.keys, key_states, after + ROOM)
            self._value_memory = _roomier(self.values, value_states, after + ROOM)
        self._key_memory[:, :, before:after] = key_states
        self._value_memory[:, :, before:after] = value_states
        self._show(after)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows."""
        tokens = self.keys.shape[2]
        self._key_memory = self._key_memory[indices]
        self._value_memory = self._value_memory[indices]
        self._show(tokens)

    def _show(self, tokens: int) -> None:
        self.keys = self._key_memory[:, :, :tokens]
        self.values = self._value_memory[:, :, :tokens]


def _roomier(filled: Tensor, like: Tensor, size: int) -> Tensor:
    memory = torch.empty(
        (*like.shape[:2], size, like.shape[3]), dtype=like.dtype, device=like.device
    )
    memory[:, :, : filled.shape[2]] = filled
    return memory


def growing_cache(config: "PreTrainedConfig") -> DynamicCache:
    """Return an empty cache for a model; layers that keep a window of tokens are as they were."""
    cache = DynamicCache(config=config)
    cache.layers = [
        GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache


def shared_key_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **settings: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return the attention output, shape (batch, tokens, heads, features of a head).

    Query heads that share a key head stand where queries of several tokens would: one new token
    sees all keys, so that each of those queries has the same mask. transformers' own `sdpa`, which
    computes all other cases, repeats keys and values for each of them on a CPU.
    """
    batch, heads, queries, features = query.shape
    groups = heads // key.shape[1]
    others = any(settings.get(name) is not None for name in _ELSEWHERE)
    if queries != 1 or groups == 1 or query.device.type != "cpu" or module.training or others:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        found: tuple[Tensor, Tensor | None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **settings
        )
        return found
    if attention_mask is not None:
        attention_mask = attention_mask.expand(batch, 1, groups, -1)
    output = functional.scaled_dot_product_attention(
        query.reshape(batch, -1, groups, features),
        key,
        value,
        attn_mask=attention_mask,
        scale=settings.get("scaling"),
    )
    return output.reshape(batch, 1, heads, -1), None


@contextmanager
def sharing_keys(model: "PreTrainedModel") -> Iterator[None]:
    """Let a model attend so, if it attends by `sdpa`."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    if model.config._attn_implementation != "sdpa":
        yield
        return
    AttentionInterface.register(NAME, shared_key_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = "sdpa"
