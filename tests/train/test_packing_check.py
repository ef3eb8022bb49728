"""A model for which packed rows are not what rows alone are is refused when a trainer opens."""

import re
from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MiniMaxConfig,
    MiniMaxForCausalLM,
    MptConfig,
    MptForCausalLM,
)

from debate_train.errors import ModelError, RecipeError
from debate_train.losses import PpoClip
from debate_train.models.loaded_model import LoadedModel
from debate_train.trainers import TorchTrainer
from debate_train.trainers.processes import LostProcessError

pytestmark = pytest.mark.numeric

SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "initializer_range": 0.3,
}


def opened(model: Any, packing: Any) -> None:
    TorchTrainer(packing=packing).open(LoadedModel(model, None), PpoClip(), 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "model",
    [
        LlamaForCausalLM(LlamaConfig(**SHAPE)),
        GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2, attn_pdrop=0.0)),
    ],
    ids=["llama", "gpt2"],
)
@pytest.mark.parametrize("packing", ["prefix", "rows", "none"])
def test_model_that_attends_as_packs_say_is_taken(model: Any, packing: str) -> None:
    model.eval()
    opened(model, packing)
    assert not model.training


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (MambaForCausalLM(MambaConfig(**SHAPE, state_size=4)), "mamba"),
        (
            GptOssForCausalLM(
                GptOssConfig(**SHAPE, num_local_experts=4, num_key_value_heads=1, head_dim=8)
            ),
            "s_aux",
        ),
        (LlamaForCausalLM(LlamaConfig(**SHAPE, attention_dropout=0.5)), "dropout"),
        (MptForCausalLM(MptConfig(vocab_size=64, d_model=16, n_layers=1, n_heads=2)), "mpt"),
    ],
    ids=["mamba", "sinks", "dropout", "alibi"],
)
@pytest.mark.parametrize("packing", ["prefix", "rows"])
def test_model_that_does_not_is_refused_with_a_way_out(
    model: Any, found: str, packing: str
) -> None:
    with pytest.raises(RecipeError, match=rf"trainer.packing: found .*{found}.*packing=none"):
        opened(model, packing)


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'torch.nn.attention.varlen'"),
        RuntimeError("FlashAttention only supports Ampere GPUs or newer.\nmore lines"),
        NotImplementedError("Could not run 'torch_attn::_varlen_attn'"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_torch_or_gpu_without_the_kernel_is_refused_with_a_way_out(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("debate_train.batches.forward.block_attention", fails)
    first = re.escape(str(error).splitlines()[0])
    with pytest.raises(RecipeError, match=rf"with torch .*{first}\); .*packing=none"):
        opened(LlamaForCausalLM(LlamaConfig(**SHAPE)), "prefix")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        LostProcessError("rank 0 of 2: found another process gone"),
        RuntimeError("Connection closed by peer"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_failure_that_is_not_the_models_is_not_blamed_on_it(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("debate_train.batches.forward.block_attention", fails)
    with pytest.raises(type(error), match=str(error)):
        opened(LlamaForCausalLM(LlamaConfig(**SHAPE)), "prefix")


class Blind(LlamaForCausalLM):
    """A model that reads positions of its own making, whatever it is given."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        inner = self.model.forward
        self.model.forward = lambda *args, position_ids=None, **settings: inner(*args, **settings)


def test_model_that_scores_packed_rows_otherwise_is_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(RecipeError, match=r"off by .* nats a token; expected packed rows"):
        opened(Blind(LlamaConfig(**SHAPE)), "prefix")


MIXED: dict[str, Any] = {**SHAPE, "num_hidden_layers": 2, "num_key_value_heads": 1}


@pytest.mark.parametrize("packing", ["prefix", "rows"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_model_whose_rows_read_each_other_is_refused(kind: torch.dtype, packing: str) -> None:
    torch.manual_seed(0)
    # A convolution over tokens, before a layer that attends as packs say.
    model = Lfm2ForCausalLM(Lfm2Config(**MIXED, layer_types=["conv", "full_attention"]))
    with pytest.raises(RecipeError, match="lets a row read the one before it"):
        opened(model.to(kind), packing)


def test_model_whose_rows_read_each_other_is_refused_when_its_weights_are_small() -> None:
    # Before any training; what leaks is then less than what rounding may come to.
    torch.manual_seed(0)
    small = {**MIXED, "initializer_range": 0.02, "head_dim": 8, "num_local_experts": 2}
    layers = ["linear_attention", "full_attention"]
    model = MiniMaxForCausalLM(MiniMaxConfig(**small, layer_types=layers))
    with pytest.raises(RecipeError, match="lets a row read the one before it"):
        opened(model, "prefix")


@pytest.mark.parametrize("packing", ["prefix", "none"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_model_is_refused_for_itself_when_its_weights_are_not_finite(
    value: float, packing: str
) -> None:
    model = LlamaForCausalLM(LlamaConfig(**SHAPE))
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[3, 5] = value
    with pytest.raises(ModelError, match="are not finite: its weights hold NaN"):
        opened(model, packing)
