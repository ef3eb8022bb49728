"""LoRA checkpoints as model.name: merged with what they were trained on, or refused."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from debate_train.checkpoints.policy_files import save_policy
from debate_train.errors import ModelError
from debate_train.models import PretrainedModel
from debate_train.models.loaded_model import LoadedModel, Lora
from debate_train.models.model_files import bases_of
from debate_train.models.scratch import word_tokenizer
from debate_train.recipe.context import context_window

TOKENS = torch.tensor([[5, 9, 13, 40, 7]])


def logits(loaded: LoadedModel) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = loaded.model.eval()(input_ids=TOKENS).logits
    return found


def model_at(folder: Path, **settings: Any) -> PretrainedModel:
    return PretrainedModel(name=str(folder), dtype="float32", **settings)


def trained(base: Path, folder: Path, seed: int) -> LoadedModel:
    """Write an adapter of a base whose product is not 0, as a checkpoint holds it."""
    config = model_at(base, lora=Lora(rank=2, alpha=8))
    loaded = config.load(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    save_policy(folder, loaded)
    return loaded


@pytest.fixture
def base(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=124,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=77,
        bos_token_id=None,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "base")
    word_tokenizer().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def test_checkpoint_of_an_adapter_is_a_model_with_the_policy_it_holds(
    base: Path, tmp_path: Path
) -> None:
    first = trained(base, tmp_path / "first", seed=1)
    found = model_at(tmp_path / "first").load(0)
    # W + s B A in float32, once summed and once apart: a few roundings of logits of about 1.
    torch.testing.assert_close(logits(found), logits(first), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(logits(found), logits(model_at(base).load(0)), atol=1e-2)
    assert not any("lora" in name for name, _ in found.model.named_parameters())
    assert all(parameter.requires_grad for parameter in found.model.parameters())
    assert found.again is not None
    again = found.again().state_dict()
    assert all(torch.equal(t, again[n]) for n, t in found.model.state_dict().items())
    assert context_window(model_at(tmp_path / "first")).tokens == 77


def test_adapter_trained_on_a_merged_one_adds_to_it(base: Path, tmp_path: Path) -> None:
    trained(base, tmp_path / "first", seed=1)
    second = trained(tmp_path / "first", tmp_path / "second", seed=2)
    names = (str(tmp_path / "second"), str(tmp_path / "first"), str(base))
    assert bases_of(str(tmp_path / "second")) == names
    found = model_at(tmp_path / "second").load(0)
    torch.testing.assert_close(logits(found), logits(second), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "change", "num_unchanged", "level"),
    [
        ("float32", 2.0**-10, 0, logging.INFO),
        # A weight of 1 has neighbors 2^-7 above and 2^-8 below it in bfloat16.
        ("bfloat16", 2.0**-10, 256, logging.WARNING),
        ("bfloat16", 2.0**-7, 0, logging.INFO),
    ],
)
def test_merge_counts_the_weights_that_rounding_leaves_unchanged(
    dtype: str,
    change: float,
    num_unchanged: int,
    level: int,
    base: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    key = "model.layers.0.self_attn.q_proj.weight"
    tensors = load_file(base / "model.safetensors")
    save_file(tensors | {key: torch.ones(16, 16)}, base / "model.safetensors", {"format": "pt"})
    adapter = tmp_path / "adapter"
    save_policy(adapter, model_at(base, lora=Lora(rank=2, alpha=2)).load(0))
    # Only the query's product is not 0: A and B of rank 2, so B A adds twice a half of the change.
    stored = load_file(adapter / "adapter_model.safetensors")
    for name, tensor in stored.items():
        is_query = "q_proj" in name
        tensor.fill_(0 if not is_query else 1 if "lora_A" in name else change / 2)
    save_file(stored, adapter / "adapter_model.safetensors")
    with caplog.at_level(logging.INFO, "debate_train.models"):
        merged = PretrainedModel(name=str(adapter), dtype=dtype).load(0)  # type: ignore[arg-type]
    query = merged.model.get_parameter(key)
    assert torch.equal(query, torch.full_like(query, 1.0 if num_unchanged else 1.0 + change))
    (record,) = [record for record in caplog.records if "merged in" in record.message]
    share = 100 if num_unchanged else 0
    assert f"merged in {dtype}: {num_unchanged} of 256 weights ({share}.0 %)" in record.message
    assert record.levelno == level
    assert ("model.dtype=float32 keeps it" in record.message) == (level == logging.WARNING)


def settings(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return change


def weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / "adapter_model.safetensors")
        change(tensors)
        save_file(tensors, folder / "adapter_model.safetensors")

    return apply


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (settings(base_model_name_or_path=None), "names the base None, which is not"),
        (settings(base_model_name_or_path="./gone"), r"names the base './gone', which is not"),
        (settings(peft_type="IA3"), "settings that are not merged here: peft_type"),
        (settings(target_modules="(a+)+$"), "not merged here: target_modules"),
        (settings(modules_to_save=["lm_head"]), "not merged here: modules_to_save"),
        (settings(r=3), "is not one of its base"),
        (settings(r="many"), "no adapter could be loaded"),
        (weights(lambda t: t.pop(next(iter(t)))), "is not one of its base: "),
        (
            weights(lambda t: t.update(extra=torch.zeros(1))),
            "missing, unexpected or of another shape: extra",
        ),
        (lambda f: (f / "adapter_model.safetensors").write_bytes(b"x"), "no adapter could be"),
        (lambda f: (f / "adapter_model.safetensors").unlink(), "holds no adapter_model"),
        (lambda f: (f / "adapter_config.json").write_text("[]"), "holds a list; expected the"),
        (lambda f: settings(base_model_name_or_path=str(f))(f), "lead back to"),
    ],
)
def test_adapter_is_refused_when_it_cannot_be_merged(
    damage: Callable[[Path], Any], message: str, base: Path, tmp_path: Path
) -> None:
    trained(base, tmp_path / "first", seed=1)
    damage(tmp_path / "first")
    with pytest.raises(ModelError, match=message):
        model_at(tmp_path / "first").load(0)


def test_folder_with_a_model_and_an_adapter_is_refused(base: Path) -> None:
    (base / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="beside a model of its own"):
        model_at(base).load(0)
