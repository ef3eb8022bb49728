"""Activations of `--plan` against what real passes on the CPU keep."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from debate_train.losses import ImportanceSampling
from debate_train.models import PretrainedModel, ScratchModel
from debate_train.recipe.model_shape import shape_of
from debate_train.trainers.torch_session import (
    KnownLogps,
    StepStats,
    accumulate,
    gradient_checkpointing,
)
from debate_train.trainers.trainer import TorchTrainer


class Kept(torch.autograd.graph.saved_tensors_hooks):
    """Counts what is kept for a backward pass, without the weights."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self._found: dict[int, int] = {}
        super().__init__(self._note, lambda tensor: tensor)

    def __enter__(self) -> "Kept":
        super().__enter__()
        return self

    @property
    def bytes(self) -> int:
        return sum(self._found.values())

    def _note(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._weights:
            self._found[storage.data_ptr()] = storage.nbytes()
        return tensor


@pytest.mark.parametrize("recompute", [False, True])
def test_activations_are_about_those_kept_when_a_pack_is_computed(
    random_batch: Any, recompute: bool
) -> None:
    model = ScratchModel(hidden_size=64, layers=4, heads=4, kv_heads=2, head_dim=16, ffn_size=192)
    loaded = model.load(0)
    if recompute:
        gradient_checkpointing(loaded.model.train())
    loss = ImportanceSampling()
    ((packs,),) = TorchTrainer(packing="rows").plan(random_batch(lengths=(200, 200)), loss)
    with Kept(loaded.model) as kept:
        accumulate(loaded.model, packs, loss, [KnownLogps()], lambda share: None, StepStats())
    shape = shape_of(model)
    planned = shape.activation_bytes(recompute)
    planned -= 2 * 4 * (192 + 64)  # Gradients are not among what a forward pass keeps.
    if recompute:  # Nor is the layer at work.
        one = shape.activation_bytes() - dataclasses.replace(shape, layers=3).activation_bytes()
        planned -= one
    planned *= packs[0].tokens_BT.numel()
    logits = packs[0].targets_A.numel() * loaded.model.config.vocab_size
    planned += 4 * logits  # Of a chunk, which all of them fit.
    assert 0.7 * planned < kept.bytes < 1.3 * planned


@pytest.mark.parametrize("experts", [2, 4])
def test_activations_are_about_those_kept_when_tokens_are_routed(
    experts: int, tmp_path: Path
) -> None:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    planned, measured = [], []
    for layers in (2, 4):
        config = Qwen3MoeConfig(
            vocab_size=50, hidden_size=64, num_hidden_layers=layers, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, moe_intermediate_size=48, num_experts=8,
            num_experts_per_tok=experts,
        )  # fmt: skip
        config.save_pretrained(tmp_path)
        shape = shape_of(PretrainedModel(name=str(tmp_path), dtype="float32"))
        planned.append(200 * shape.activation_bytes())
        model = Qwen3MoeForCausalLM(config)
        with Kept(model) as kept:
            model.model(input_ids=torch.arange(200)[None] % 50)
        measured.append(kept.bytes)
    # Of two layers, so that what the ends of a model keep does not count.
    two, real = planned[1] - planned[0], measured[1] - measured[0]
    assert 0.7 * two < real < 1.3 * two
