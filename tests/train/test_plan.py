"""`--plan`: the arithmetic of memory and traffic, against numbers by hand and a real pass."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from debate_train.checkpointing.policy_files import save_policy
from debate_train.checks.plan import Shape, memory, moved, shape_of
from debate_train.cli import main
from debate_train.losses import ImportanceSampling
from debate_train.models import Lora, PretrainedModel, ScratchModel
from debate_train.trainers.objective import KnownLogps, StepStats, accumulate
from debate_train.trainers.recomputing import recompute_layers
from debate_train.trainers.torch_trainer import TorchTrainer

# 1000 weights of 2 bytes in 1 layer: 6·10 + 3·8 + 3·4 + 4·20 = 176 numbers a token and layer.
SMALL = Shape(1000, 1000, 2, layers=1, hidden=10, queries=8, keys=4, ffn=20)


def test_shape_counts_bytes_a_token_when_asked() -> None:
    assert SMALL.activation_bytes() == 2 * (176 + 3 * 10)
    two = dataclasses.replace(SMALL, layers=2)
    assert two.activation_bytes(recompute=True) == 2 * (2 * 10 + 176 + 3 * 10)
    assert SMALL.cache_bytes_per_token == 2 * 1 * 4 * 2  # keys and values of 4 features


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "optimizer", "reference"),
    [
        (0, 2000, 2000, 8000, 2000),  # moments 8 a weight
        (1, 2000, 2000, 3000, 2000),  # (4 + 8) · 1000 / 4
        (2, 2000, 500, 3000, 2000),
        (3, 500, 500, 3000, 500),
    ],
)
def test_memory_is_that_of_zero_when_on_four_ranks(
    stage: int, weights: int, gradients: int, optimizer: int, reference: int
) -> None:
    found = memory(SMALL, stage, 4, 0, reference=True)
    assert (found.weights, found.gradients, found.optimizer, found.reference) == (
        weights,
        gradients,
        optimizer,
        reference,
    )


@pytest.mark.parametrize(
    ("stage", "gradients", "gathers"),
    [
        (0, 3000, 0),  # all-reduce: 2 · 2000 · 3/4
        (1, 1500, 1500),  # reduce-scatter once, then gather the updated weights
        (2, 7500, 1500),  # reduced after each of 5 packs
        (3, 7500, 22500),  # 5 packs · (forward, backward, reference) · 2000 · 3/4
    ],
)
def test_moved_is_that_of_zero_when_on_four_ranks(stage: int, gradients: int, gathers: int) -> None:
    found = moved(SMALL, stage, 4, 5, reference=True)
    assert (found.gradients, found.gathers, found.to_engine) == (gradients, gathers, 2000)


def test_shape_of_a_model_counts_its_parameters_when_not_loaded(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"hidden_size": 16, "layers": 2, "heads": 2, "kv_heads": 1}
    scratch = ScratchModel(**sizes, head_dim=8, ffn_size=24)
    loaded = scratch.load(0)
    save_policy(tmp_path, loaded)
    count = sum(p.numel() for p in loaded.model.parameters())
    found = shape_of(PretrainedModel(name=str(tmp_path), dtype="bfloat16", lora=Lora(rank=2)))
    # A layer: q 16+16, k and v 16+8, o 16+16, gate and up 16+24, down 24+16: 232 in all.
    assert found.trained == 2 * 2 * 232
    assert found.parameters == count + found.trained
    assert (found.weight_bytes, found.queries, found.keys, found.ffn) == (2, 16, 8, 24)
    assert shape_of(scratch).parameters == count


@pytest.mark.parametrize("recompute", [False, True])
def test_activations_are_about_those_kept_when_a_pack_is_computed(
    random_batch: Any, recompute: bool
) -> None:
    model = ScratchModel(hidden_size=64, layers=4, heads=4, kv_heads=2, head_dim=16, ffn_size=192)
    loaded = model.load(0)
    if recompute:
        recompute_layers(loaded.model.train())
    loss = ImportanceSampling()
    ((packs,),) = TorchTrainer(packing="rows").plan(random_batch(lengths=(200, 200)), loss)
    kept: dict[int, int] = {}
    weights = {p.untyped_storage().data_ptr() for p in loaded.model.parameters()}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        accumulate(loaded.model, packs, loss, [KnownLogps()], lambda share: None, StepStats())
    shape = shape_of(model)
    planned = shape.activation_bytes(recompute)
    if recompute:  # The layer at work is not among what a forward pass keeps.
        one = shape.activation_bytes() - dataclasses.replace(shape, layers=3).activation_bytes()
        planned -= one
    planned *= packs[0].tokens_BT.numel()
    logits = packs[0].targets_A.numel() * loaded.model.config.vocab_size
    planned += 4 * logits  # Of a chunk, which all of them fit.
    assert 0.7 * planned < sum(kept.values()) < 1.3 * planned


def test_plan_prints_each_stage_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quickstart", "--plan", "--gpus", "4", "--gpu-memory", "24"]) == 0
    printed = capsys.readouterr().out
    assert "phase self_play: 4 trainer ranks" in printed
    assert printed.count("  3  ") == 3
