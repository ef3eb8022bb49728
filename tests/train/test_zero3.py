"""ZeRO-3 from the first moment: no rank but rank 0 ever holds the whole model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from arithmetic import FACTOR
from debate_train.checkpoints.policy_files import save_policy
from debate_train.models import PretrainedModel, ScratchModel
from debate_train.models.loaded_model import Lora, with_adapter

pytestmark = pytest.mark.slow

START = Path(__file__).with_name("sharded_start.py")
TRAINING = Path(__file__).with_name("deepspeed_processes.py")


def test_ranks_that_follow_hold_shards_only_when_a_model_is_shared_out(
    tmp_path: Path, processes: Callable[..., list[str]]
) -> None:
    large = ScratchModel(
        hidden_size=1024, layers=8, heads=8, kv_heads=8, head_dim=128, ffn_size=1024
    )
    save_policy(tmp_path, large.load(0))
    leader, follower = (json.loads(out) for out in processes(2, [START, tmp_path]))
    size = leader["size"]
    assert follower["size"] == size > 2e8
    assert follower["load"] < 0.05 * size
    assert 0.45 * size < follower["shard"] < 0.65 * size  # its half, and a parameter at a time
    assert leader["load"] + leader["shard"] < 1.65 * size  # all of it, and a half


def mixture_of_experts(folder: Path, words: int) -> None:
    """One whose router writes into tensors in place."""
    config = Qwen3MoeConfig(
        vocab_size=words,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=16,
        moe_intermediate_size=8,
        num_experts=4,
        num_experts_per_tok=2,
        tie_word_embeddings=False,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(folder)


def test_mixture_of_experts_trains_in_shards_as_in_one_process(
    tmp_path: Path, processes: Callable[..., list[str]]
) -> None:
    tokenizer = ScratchModel().load_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    mixture_of_experts(tmp_path, len(tokenizer))
    leader, _ = processes(2, [TRAINING, tmp_path, "stage 3"])
    found: list[dict[str, Any]] = json.loads(leader.splitlines()[-1])
    assert [bool(case["lora"]) for case in found] == [False, True, True]
    for case in found:
        assert max(case["rounding"].values()) <= FACTOR, case
        assert case["moved"] > 1e-3, case


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
