"""The policy and the trainer's state in files: exact, sharded, and of the right parameters."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from debate_train.batches.row_types import Batch
from debate_train.checkpoints.policy_files import (
    StoredTensors,
    load_policy,
    save_policy,
    write_tensors,
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

MakeModel = Callable[..., LoadedModel]
MakeBatch = Callable[..., Batch]


def same(loaded: LoadedModel, other: LoadedModel) -> bool:
    own = other.model.state_dict()
    return all(torch.equal(tensor, own[name]) for name, tensor in loaded.model.state_dict().items())


def test_policy_comes_back_as_it_was(tiny: MakeModel, tmp_path: Path) -> None:
    loaded, other = tiny(), tiny(seed=1)
    save_policy(tmp_path, loaded)
    load_policy(tmp_path, other)
    assert same(loaded, other)
    files = {path.name for path in tmp_path.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= files
    assert not any(path.suffix in (".bin", ".pt", ".pkl") for path in tmp_path.iterdir())


def test_policy_is_read_by_transformers_when_split_over_files(
    tiny: MakeModel, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded, other = tiny(), tiny(seed=1)
    save_policy(tmp_path, loaded, file_size="4KB")
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 1
    load_policy(tmp_path, other)
    assert same(loaded, other)
    read = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert same(loaded, LoadedModel(read, loaded.tokenizer))
    assert AutoTokenizer.from_pretrained(tmp_path).get_vocab() == loaded.tokenizer.get_vocab()


def test_adapter_is_read_by_peft(tiny: MakeModel, random_batch: MakeBatch, tmp_path: Path) -> None:
    from peft import PeftModel

    loaded = tiny(lora_rank=2)
    trainer = TorchTrainer(learning_rate=0.1).open(loaded, PpoClip(), 5)
    trainer.step(random_batch())
    trainer.save(tmp_path)
    read = PeftModel.from_pretrained(tiny().model, tmp_path)
    tokens = torch.tensor([[7, 30, 31]])
    with torch.no_grad():
        expected = loaded.model(input_ids=tokens).logits
        assert torch.equal(read(input_ids=tokens).logits, expected)
        assert not torch.equal(tiny().model(input_ids=tokens).logits, expected)


def test_policy_of_experts_comes_back_though_files_name_each_expert(tmp_path: Path) -> None:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

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
    loaded, other = (LoadedModel(Qwen3MoeForCausalLM(config), tokenizer) for _ in range(2))
    save_policy(tmp_path, loaded)
    stored = StoredTensors(tmp_path.glob("model*.safetensors")).names()
    assert not set(stored) <= set(loaded.model.state_dict())  # the case is the one meant
    assert not same(loaded, other)
    load_policy(tmp_path, other)
    assert same(loaded, other)


def test_weights_of_another_model_end_in_one_message(tiny: MakeModel, tmp_path: Path) -> None:
    save_policy(tmp_path, tiny())
    for other in (
        ScratchModel(hidden_size=8, layers=1, heads=1, kv_heads=1, head_dim=8).load(0),
        ScratchModel(hidden_size=16, layers=2, heads=2, kv_heads=1, head_dim=8, ffn_size=16).load(
            0
        ),
        tiny(lora_rank=2),
    ):
        with pytest.raises(ModelError, match="weights of another model"):
            load_policy(tmp_path, other)


def test_adapter_of_another_rank_ends_in_one_message(tiny: MakeModel, tmp_path: Path) -> None:
    save_policy(tmp_path, tiny(lora_rank=2))
    for other in (tiny(lora_rank=3), tiny()):
        with pytest.raises(ModelError, match="weights of another model"):
            load_policy(tmp_path, other)


def test_tensors_are_split_over_files_of_bounded_size(tmp_path: Path) -> None:
    # 4 tensors of 40 bytes, a file is closed from 80 on: 2 and 2.
    tensors = {f"t{k}": torch.full((10,), float(k)) for k in range(4)}
    write_tensors(tmp_path, "part", tensors.items(), file_bytes=80)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "part-00000.safetensors",
        "part-00001.safetensors",
    ]
    stored = StoredTensors.of(tmp_path, "part")
    assert all(torch.equal(stored.read(name), t) for name, t in tensors.items())
    assert StoredTensors.of(tmp_path, "other").names() == []


def test_state_comes_back_exactly_in_its_own_types(tmp_path: Path) -> None:
    master = torch.tensor([1 + 2**-20, 3.0])  # is 1 in bfloat16
    moments = {"exp_avg": torch.randn(2), "exp_avg_sq": torch.rand(2).bfloat16()}
    counts = Counts(schedule_steps=7, optimizer_steps={"w": 5}, skipped_in_a_row=2)
    write_trainer_state(tmp_path, iter([("w", ParameterState(moments, master))]), counts)
    stored = StoredTrainerState(tmp_path, {"w": (2,), "never": (3,)}, AdamW().state_layout())
    assert stored.counts == counts
    found = stored.of("w")
    assert found is not None and found.master is not None
    assert torch.equal(found.master, master)
    for name, moment in moments.items():
        assert torch.equal(found.moments[name], moment)
        assert found.moments[name].dtype == moment.dtype
    assert stored.of("never") is None


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"w": (3,)}, r"exp_avg of w with shape \(2,\)"),
        ({"other": (2,)}, "state of w, which is not trained"),
    ],
)
def test_state_of_other_parameters_is_refused(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    moments = {name: torch.zeros(2) for name in ("exp_avg", "exp_avg_sq")}
    counts = Counts(schedule_steps=1, optimizer_steps={"w": 1})
    write_trainer_state(tmp_path, [("w", ParameterState(moments))], counts)
    with pytest.raises(ModelError, match=message):
        StoredTrainerState(tmp_path, shapes, AdamW().state_layout()).of("w")


def test_state_with_a_lost_part_is_refused(
    tiny: MakeModel, random_batch: MakeBatch, tmp_path: Path
) -> None:
    trainer = TorchTrainer().open(tiny(), PpoClip(), 5)
    trainer.step(random_batch())
    trainer.save(tmp_path)
    file = tmp_path / "optimizer-00000.safetensors"
    tensors = load_file(file)
    lost = next(name for name in tensors if name.startswith("exp_avg_sq/"))
    del tensors[lost]
    save_file(tensors, file)
    with pytest.raises(ModelError, match="found no exp_avg_sq of"):
        trainer.load(tmp_path)


def test_bfloat16_trainer_goes_on_exactly(
    tiny: MakeModel, random_batch: MakeBatch, tmp_path: Path
) -> None:
    def opened() -> tuple[LoadedModel, object]:
        loaded = tiny()
        loaded.model.to(torch.bfloat16)
        return loaded, TorchTrainer(learning_rate=1e-2).open(loaded, PpoClip(), 6)

    whole, trainer = opened()
    for seed in range(4):
        trainer.step(random_batch(seed))  # type: ignore[attr-defined]
        if seed == 1:
            trainer.save(tmp_path)  # type: ignore[attr-defined]
    other, trainer = opened()
    trainer.load(tmp_path)  # type: ignore[attr-defined]
    for seed in (2, 3):
        trainer.step(random_batch(seed))  # type: ignore[attr-defined]
    parameters = trainable(other.model)
    assert all(torch.equal(p, parameters[n]) for n, p in trainable(whole.model).items())


def test_counts_are_plain_json(tiny: MakeModel, random_batch: MakeBatch, tmp_path: Path) -> None:
    loaded = tiny()
    trainer = TorchTrainer().open(loaded, PpoClip(), 5)
    for seed in range(3):
        trainer.step(random_batch(seed))
    trainer.save(tmp_path)
    counts = json.loads((tmp_path / "trainer.json").read_text())
    assert counts["schedule_steps"] == 3
    assert counts["optimizer_steps"] == dict.fromkeys(trainable(loaded.model), 3)
