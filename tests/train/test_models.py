"""Models from a directory or from scratch, and those that training would compute wrongly."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import (
    FalconH1Config,
    FalconH1ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
)

from arithmetic import in_float64
from debate_train.batches.forward import token_logps
from debate_train.batches.packs import Pack
from debate_train.errors import ModelError
from debate_train.models import PretrainedModel, ScratchModel
from debate_train.models.loaded_model import LoadedModel, Lora, trained_parameters, with_adapter
from debate_train.models.scratch import word_tokenizer

pytestmark = pytest.mark.numeric

PackOf = Callable[..., Pack]
SHAPE: dict[str, Any] = {
    "vocab_size": 124,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def saved(folder: Path, model: Any) -> PretrainedModel:
    model.save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return PretrainedModel(name=str(folder), dtype="float32")


def scored(loaded: LoadedModel, pack_of: PackOf) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities as training takes them, and from the model's own logits."""
    tokens = torch.tensor([[5, 9, 13, 40, 7]])
    pack = pack_of(tokens, [[False, True, True, True, True]])
    loaded.model.double().eval()
    with torch.no_grad(), in_float64():
        found, _ = token_logps(loaded.model, pack)
        own = loaded.model(input_ids=tokens).logits[0, :-1].log_softmax(-1)
    return found, own.gather(1, tokens[0, 1:, None])[:, 0]


@pytest.mark.parametrize(
    "model",
    [
        LlamaForCausalLM(LlamaConfig(**SHAPE)),
        GPT2LMHeadModel(
            GPT2Config(
                vocab_size=124, n_embd=16, n_layer=1, n_head=2, bos_token_id=2, eos_token_id=2
            )
        ),
    ],
    ids=["llama", "gpt2"],
)
def test_model_of_a_directory_is_scored_as_its_own_logits_say(
    tmp_path: Path, model: Any, pack_of: PackOf
) -> None:
    found, expected = scored(saved(tmp_path, model).load(0), pack_of)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


def test_dropout_of_a_model_is_switched_off(tmp_path: Path, pack_of: PackOf) -> None:
    config = GPT2Config(vocab_size=124, n_embd=16, n_layer=1, n_head=2, eos_token_id=2)
    assert config.resid_pdrop == config.attn_pdrop == config.embd_pdrop == 0.1
    loaded = saved(tmp_path, GPT2LMHeadModel(config)).load(0)
    pack = pack_of(torch.tensor([[5, 9, 13, 40, 7]]), [[False, True, True, True, True]])
    rates = [part.p for part in loaded.model.modules() if isinstance(part, torch.nn.Dropout)]
    assert rates and set(rates) == {0.0}
    logps = [token_logps(loaded.model.train(training), pack)[0] for training in (True, False)]
    torch.testing.assert_close(*logps, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (GraniteForCausalLM(GraniteConfig(**SHAPE, logits_scaling=8.0)), "logits_scaling"),
        (
            FalconH1ForCausalLM(
                FalconH1Config(
                    **SHAPE, head_dim=8, mamba_d_ssm=16, mamba_n_heads=2, lm_head_multiplier=0.5
                )
            ),
            "lm_head_multiplier",
        ),
        (PhiForCausalLM(PhiConfig(**SHAPE)), "a bias"),
    ],
    ids=["scaled", "multiplied", "biased"],
)
def test_model_whose_logits_are_more_than_a_linear_head_is_refused(
    tmp_path: Path, model: Any, named: str
) -> None:
    with pytest.raises(ModelError, match=f"pass through {named}"):
        saved(tmp_path, model).load(0)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "holds no config.json"),
        ("tokenizer.json", "holds no tokenizer.json"),
        ("model.safetensors", "no model could be loaded"),
    ],
)
def test_directory_that_lacks_a_file_ends_in_one_message(
    tmp_path: Path, missing: str, message: str
) -> None:
    config = saved(tmp_path, LlamaForCausalLM(LlamaConfig(**SHAPE)))
    (tmp_path / missing).unlink()
    with pytest.raises(ModelError, match=message) as caught:
        config.load(0)
    assert str(tmp_path) in str(caught.value)


def test_name_that_is_nowhere_ends_in_one_message() -> None:
    with pytest.raises(ModelError, match=r"model\.name: no tokenizer could be loaded"):
        PretrainedModel(name="nobody/no-such-model").load(0)


def test_code_of_a_checkpoint_is_never_run() -> None:
    with pytest.raises(ValidationError):
        PretrainedModel.model_validate({"name": "a/b", "trust_remote_code": True})


@pytest.mark.parametrize(
    ("of_cpu", "has_gpu", "dtype"),
    [
        ({"avx2": True}, False, "float32"),
        ({"avx2": True, "avx512_bf16": True}, False, "bfloat16"),
        ({"amx_bf16": True}, False, "bfloat16"),
        ({}, True, "bfloat16"),
    ],
)
def test_automatic_type_is_what_the_hardware_multiplies(
    of_cpu: dict[str, bool], has_gpu: bool, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: of_cpu)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert PretrainedModel(name="m", dtype="auto").dtype == dtype


def test_scratch_model_and_adapter_follow_from_the_seed_alone(tiny: Any) -> None:
    config = ScratchModel(hidden_size=16, layers=1, heads=2, kv_heads=1, head_dim=8, ffn_size=16)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, second, other = config.load(3), config.load(3), config.load(4)
    adapters = [tiny(seed=seed, lora_rank=2) for seed in (3, 3, 4)]
    assert torch.equal(torch.rand(3), expected)  # nobody else's random numbers were taken
    for same, differs in (
        ((first, second), (first, other)),
        (adapters[:2], (adapters[0], adapters[2])),
    ):
        names = [n for n, p in same[0].model.named_parameters() if p.requires_grad and p.dim() > 1]
        a, b = (dict(one.model.named_parameters()) for one in same)
        assert all(torch.equal(a[name], b[name]) for name in names)
        a, c = (dict(one.model.named_parameters()) for one in differs)
        assert any(not torch.equal(a[name], c[name]) for name in names)
    assert with_adapter(first, 0) is first


def test_loaded_model_has_its_adapters(tmp_path: Path) -> None:
    kept = ScratchModel(hidden_size=8, layers=1, heads=1, kv_heads=1, head_dim=8, ffn_size=8)
    made = kept.load(0)
    made.model.save_pretrained(tmp_path)
    made.tokenizer.save_pretrained(tmp_path)
    asked = PretrainedModel(name=str(tmp_path), dtype="float32", lora=Lora(rank=2))
    trained = trained_parameters(asked.load(0))
    assert trained and all("lora_" in name and p.requires_grad for name, p in trained.items())
    assert with_adapter(again := asked.load(0), 1) is again
