"""ZeRO-3 from the first moment: no rank but rank 0 ever holds the whole model."""

import json
from pathlib import Path

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


def test_ranks_that_follow_hold_only_shards_when_a_model_is_shared_out(tmp_path, processes):
    large = ScratchModel(
        hidden_size=1024, layers=8, heads=8, kv_heads=8, head_dim=128, ffn_size=1024
    )
    save_policy(tmp_path, large.load(0))
    leader, follower = (json.loads(output) for output in processes(2, [START, tmp_path]))
    size = leader["size"]
    assert follower["size"] == size > 2e8
    assert follower["load"] < 0.05 * size
    assert 0.45 * size < follower["shard"] < 0.65 * size  # its half, and a parameter at a time
    assert leader["load"] + leader["shard"] < 1.65 * size  # all of it, and a half


def test_mixture_of_experts_trains_in_shards_as_in_one_process(tmp_path, processes):
    tokenizer = ScratchModel().load_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    # Its router writes into tensors in place.
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
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
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path)
    leader, _ = processes(2, [TRAINING, tmp_path, "stage 3"])
    cases = json.loads(leader.splitlines()[-1])
    assert [bool(case["lora"]) for case in cases] == [False, True, True]
    for case in cases:
        assert max(case["rounding"].values()) <= FACTOR, case
        assert case["moved"] > 1e-3, case


@pytest.mark.parametrize("lora", [None, Lora(rank=2, alpha=4)], ids=["full", "lora"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_model_without_values_is_the_same_but_for_memory(tmp_path, lora, dtype):
    save_policy(tmp_path, ScratchModel().load(0))
    source = PretrainedModel(name=str(tmp_path), dtype=dtype, lora=lora)
    whole = with_adapter(source.load(3), 3).model
    empty = with_adapter(source.load(3, with_values=False), 3).model
    parameters = dict(empty.named_parameters())
    assert list(parameters) == [name for name, _ in whole.named_parameters()]
    for name, parameter in whole.named_parameters():
        assert parameters[name].shape == parameter.shape
        assert parameters[name].requires_grad == parameter.requires_grad
        assert parameters[name].device == torch.device("meta")
    assert set(dict(whole.named_buffers())) == set(dict(empty.named_buffers()))
