"""Sampling without copies of keys: the same cache, and the same attention, as transformers'."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import Qwen3Config
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from debate_rollout.engines.transformers_sampler import (
    ROOM,
    GrowingLayer,
    growing_cache,
    shared_key_attention,
    sharing_keys,
)

pytestmark = pytest.mark.numeric


def states(rows: int, tokens: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.randn(rows, 2, tokens, 4, generator=generator) for _ in range(2))  # type: ignore[return-value]


def test_growing_layer_holds_what_a_dynamic_one_holds() -> None:
    generator = torch.Generator().manual_seed(0)
    own, other = GrowingLayer(), DynamicLayer()
    kept = [torch.tensor([0, 0, 1, 2]), torch.tensor([3, 1])]
    rows = 3
    for step in range(2 * ROOM + 5):
        new = states(rows, 7 if step == 0 else 1, generator)
        found, expected = own.update(*new), other.update(*new)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert own.get_seq_length() == other.get_seq_length() == 7 + step
        if step in (0, ROOM + 2):
            for layer in (own, other):
                layer.batch_select_indices(kept[0])
            rows, kept = len(kept[0]), kept[1:]
            assert torch.equal(own.keys, other.keys)
            assert torch.equal(own.values, other.values)


def test_growing_layer_copies_old_tokens_only_when_room_runs_out() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = GrowingLayer()
    places = {layer.update(*states(1, 1, generator))[0].data_ptr() for _ in range(2 * ROOM)}
    assert len(places) == 2


def test_cache_keeps_the_layers_that_hold_a_window() -> None:
    config = Qwen3Config(
        num_hidden_layers=2,
        layer_types=["full_attention", "sliding_attention"],
        use_sliding_window=True,
        sliding_window=8,
    )
    kinds = [type(layer).__name__ for layer in growing_cache(config).layers]
    assert kinds == ["GrowingLayer", "DynamicSlidingWindowLayer"]


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("masked", [True, False])
def test_shared_key_attention_is_that_of_repeated_keys(tokens: int, masked: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(3, 6, tokens, 4, generator=generator).double()
    key, value = (part.double() for part in states(3, 9, generator))
    mask = None
    if masked:
        mask = torch.ones(3, 1, tokens, 9, dtype=torch.bool)
        mask[1, ..., :4] = False
    module = torch.nn.Module().eval()
    module.num_key_value_groups = 3  # type: ignore[assignment]
    arguments = (module, query, key, value, mask)
    settings = {"scaling": 0.3, "dropout": 0.0, "is_causal": False}
    found = shared_key_attention(*arguments, **settings)[0]  # type: ignore[arg-type]
    expected = sdpa_attention_forward(*arguments, **settings)[0]  # type: ignore[arg-type]
    assert found.shape == expected.shape == (3, tokens, 6, 4)
    assert torch.allclose(found, expected, rtol=0, atol=1e-14)


def test_a_model_attends_as_before_once_sampling_is_over(
    tiny_model: Callable[..., Any], byte_bpe: Any
) -> None:
    model = tiny_model(byte_bpe)
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(KeyError), sharing_keys(model):
        assert model.config._attn_implementation != "sdpa"
        raise KeyError
    assert model.config._attn_implementation == "sdpa"
    model.config._attn_implementation = "eager"
    with sharing_keys(model):
        assert model.config._attn_implementation == "eager"
