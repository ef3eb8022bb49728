"""PyTorch's attention over runs of unequal length, on CUDA in half precision."""

from collections.abc import Callable
from inspect import signature
from math import sqrt
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from debate_train.errors import RecipeError

if TYPE_CHECKING:
    from debate_train.packed_rows.pack_layout import Layout


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
