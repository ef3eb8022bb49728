"""ZeRO-3 from the first moment: no rank but rank 0 ever holds the whole model."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from debate_train.checkpointing.policy_files import save_policy
from debate_train.models import Lora, PretrainedModel, ScratchModel
from debate_train.policy import with_adapter

SCRIPT = Path(__file__).with_name("sharded_start.py")


def test_ranks_that_follow_hold_shards_only_when_a_model_is_shared_out(
    tmp_path: Path, processes: Callable[..., list[str]]
) -> None:
    large = ScratchModel(
        hidden_size=1024, layers=8, heads=8, kv_heads=8, head_dim=128, ffn_size=1024
    )
    save_policy(tmp_path, large.load(0))
    leader, follower = (json.loads(out) for out in processes(2, [SCRIPT, tmp_path]))
    size = leader["size"]
    assert follower["size"] == size > 2e8
    assert follower["load"] < 0.05 * size
    assert 0.45 * size < follower["shard"] < 0.65 * size  # its half, and a parameter at a time
    assert leader["load"] + leader["shard"] < 1.65 * size  # all of it, and a half


@pytest.mark.parametrize("lora", [None, Lora(rank=2, alpha=4)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_model_without_values_is_the_same_but_for_memory(
    tmp_path: Path, lora: Lora | None, dtype: str
) -> None:
    save_policy(tmp_path, ScratchModel().load(0))
    source = PretrainedModel.model_validate({"name": str(tmp_path), "dtype": dtype, "lora": lora})
    whole, empty = (
        with_adapter(source.load(3, with_values=wanted), 3).model for wanted in (True, False)
    )
    described = [
        [(name, p.shape, p.requires_grad) for name, p in model.named_parameters()]
        for model in (whole, empty)
    ]
    assert described[0] == described[1]
    assert {n for n, _ in whole.named_buffers()} == {n for n, _ in empty.named_buffers()}
    assert all(p.device == torch.device("meta") for p in empty.parameters())
