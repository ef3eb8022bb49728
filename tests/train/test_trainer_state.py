"""The policy and the trainer's state in files: exact, sharded, and of the right parameters."""

import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

from debate_train.checkpoints.policy_files import (
    StoredTensors,
    load_policy,
    save_policy,
)
from debate_train.checkpoints.trainer_state import (
    Counts,
    ParameterState,
    StoredTrainerState,
    write_trainer_state,
)
from debate_train.errors import ModelError
from debate_train.losses import PpoClip
from debate_train.models import ScratchModel
from debate_train.models.loaded_model import LoadedModel
from debate_train.trainers import TorchTrainer
from debate_train.trainers.optimizers import AdamW
from debate_train.trainers.torch_session import trainable

pytestmark = pytest.mark.numeric


def assert_same(model, other):
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])


# The policy


@pytest.mark.parametrize(("file_size", "num_files"), [("5GB", 1), ("4KB", 2)])
def test_policy_comes_back_as_it_was_and_is_read_by_transformers(
    tiny, tmp_path, file_size, num_files
):
    loaded = tiny()
    other = tiny(seed=1)
    save_policy(tmp_path, loaded, file_size=file_size)
    assert len(list(tmp_path.glob("model*.safetensors"))) >= num_files
    assert not {path.suffix for path in tmp_path.iterdir()} & {".bin", ".pt", ".pkl"}
    load_policy(tmp_path, other)
    assert_same(loaded.model, other.model)
    assert_same(loaded.model, AutoModelForCausalLM.from_pretrained(tmp_path))
    assert AutoTokenizer.from_pretrained(tmp_path).get_vocab() == loaded.tokenizer.get_vocab()


def test_adapter_is_read_by_peft(tiny, random_batch, tmp_path):
    loaded = tiny(lora_rank=2)
    trainer = TorchTrainer(learning_rate=0.1).open(loaded, PpoClip(), 5)
    trainer.step(random_batch())
    trainer.save(tmp_path)
    by_peft = PeftModel.from_pretrained(tiny().model, tmp_path)
    tokens = torch.tensor([[7, 30, 31]])
    with torch.no_grad():
        expected = loaded.model(input_ids=tokens).logits
        assert torch.equal(by_peft(input_ids=tokens).logits, expected)
        assert not torch.equal(tiny().model(input_ids=tokens).logits, expected)


def test_policy_of_experts_comes_back_though_files_name_each_expert(tmp_path):
    config = Qwen3MoeConfig(
        vocab_size=160,
        hidden_size=16,
        intermediate_size=16,
        moe_intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
    )
    tokenizer = ScratchModel().load_tokenizer()
    loaded = LoadedModel(Qwen3MoeForCausalLM(config), tokenizer)
    other = LoadedModel(Qwen3MoeForCausalLM(config), tokenizer)
    save_policy(tmp_path, loaded)
    names = StoredTensors(tmp_path.glob("model*.safetensors")).names()
    assert not set(names) <= set(loaded.model.state_dict())
    load_policy(tmp_path, other)
    assert_same(loaded.model, other.model)


SMALL = {"hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "ffn_size": 16}


@pytest.mark.parametrize(
    ("rank", "other_rank", "other_shape"),
    [(0, 0, {"hidden_size": 8}), (0, 0, {"layers": 2}), (0, 2, None), (2, 3, None), (2, 0, None)],
)
def test_weights_of_another_model_end_in_one_message(tiny, tmp_path, rank, other_rank, other_shape):
    save_policy(tmp_path, tiny(lora_rank=rank))
    if other_shape is None:
        other = tiny(lora_rank=other_rank)
    else:
        other = ScratchModel(**SMALL | other_shape).load(0)
    with pytest.raises(ModelError, match="weights of another model"):
        load_policy(tmp_path, other)


# The trainer's state


def test_state_comes_back_exactly_in_its_own_types(tmp_path):
    master = torch.tensor([1 + 2**-20, 3.0])  # is 1 in bfloat16
    moments = {"exp_avg": torch.randn(2), "exp_avg_sq": torch.rand(2).bfloat16()}
    counts = Counts(schedule_steps=7, optimizer_steps={"w": 5}, skipped_in_a_row=2)
    write_trainer_state(tmp_path, iter([("w", ParameterState(moments, master))]), counts)
    stored = StoredTrainerState(tmp_path, {"w": (2,), "never": (3,)}, AdamW().state_layout())
    state = stored.of("w")
    assert stored.counts == counts
    assert torch.equal(state.master, master)
    for name, moment in moments.items():
        assert torch.equal(state.moments[name], moment)
        assert state.moments[name].dtype == moment.dtype
    assert stored.of("never") is None


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"w": (3,)}, r"exp_avg of w with shape \(2,\)"),
        ({"other": (2,)}, "state of w, which is not trained"),
    ],
)
def test_state_of_other_parameters_is_refused(tmp_path, shapes, message):
    moments = {name: torch.zeros(2) for name in ("exp_avg", "exp_avg_sq")}
    counts = Counts(schedule_steps=1, optimizer_steps={"w": 1})
    write_trainer_state(tmp_path, [("w", ParameterState(moments))], counts)
    with pytest.raises(ModelError, match=message):
        StoredTrainerState(tmp_path, shapes, AdamW().state_layout()).of("w")


def test_state_is_counted_in_json_and_refused_when_a_tensor_is_lost(tiny, random_batch, tmp_path):
    loaded = tiny()
    trainer = TorchTrainer().open(loaded, PpoClip(), 5)
    for seed in range(2):
        trainer.step(random_batch(seed))
    trainer.save(tmp_path)
    counts = json.loads((tmp_path / "trainer.json").read_text())
    assert counts["schedule_steps"] == 2
    assert counts["optimizer_steps"] == dict.fromkeys(trainable(loaded.model), 2)
    path = tmp_path / "optimizer-00000.safetensors"
    tensors = load_file(path)
    del tensors[next(name for name in tensors if name.startswith("exp_avg_sq/"))]
    save_file(tensors, path)
    with pytest.raises(ModelError, match="found no exp_avg_sq of"):
        trainer.load(tmp_path)
