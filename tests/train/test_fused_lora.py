"""LoRA layers that add their adapter in place have the values and gradients of peft's."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from debate_train.models.loaded_model import LoadedModel, Lora, with_adapter

pytestmark = pytest.mark.numeric
RANK = 4


def adapted(names: tuple[str, ...] = (), *, bias: bool = False, scale: float = 0.02) -> Any:
    """Return a bfloat16 model whose adapters are not zero."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 50}
    config = LlamaConfig(num_attention_heads=4, attention_bias=bias, **sizes)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    lora = Lora(rank=RANK, alpha=3 * RANK, adapters=names)
    model = with_adapter(LoadedModel(model, None, lora=lora), seed=0).model  # type: ignore[arg-type]
    for name, parameter in model.named_parameters():
        if "lora_B" in name or name.endswith("bias"):
            nn.init.normal_(parameter, std=scale)
    return model


def as_peft(model: nn.Module) -> nn.Module:
    """Return a copy with peft's own layers."""
    plain = copy.deepcopy(model)
    for layer in plain.modules():
        if type(layer).__name__ == "_Fused":
            layer.__class__ = type(layer).__mro__[1]
    return plain


def measured(model: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
    """Return logits of two sequences and the gradients of a function of them."""
    tokens = torch.arange(24).view(2, 12)
    logits = model(input_ids=tokens).logits.float()
    logits.logsumexp(-1).sum().backward()
    named = model.named_parameters()
    return logits.detach(), {name: p.grad for name, p in named if p.grad is not None}


def error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_are_near_to_float32_as_those_of_peft_are(bias: bool) -> None:
    model = adapted(bias=bias)
    plain, exact = as_peft(model), as_peft(model).float()
    assert sum(type(layer).__name__ == "_Fused" for layer in model.modules()) == 14
    (logits, grads), (of_peft, peft_grads), (right, right_grads) = map(
        measured, (model, plain, exact)
    )
    # Adapters are rounded to 16 bits, too; here they are as large as the model.
    assert error(logits, right) < 1.5 * error(of_peft, right) < 0.02
    assert grads.keys() == right_grads.keys() and len(grads) == 28
    assert {grad.dtype for grad in grads.values()} == {torch.float32}
    for part in ("lora_A", "lora_B"):
        found, by_peft, expected = (
            torch.cat([grad.flatten() for name, grad in sorted(own.items()) if part in name])
            for own in (grads, peft_grads, right_grads)
        )
        assert error(found, expected) < 1.5 * error(by_peft, expected) < 0.02
    with model.disable_adapter(), torch.no_grad():  # Adapters are no small part of it.
        assert error(model(input_ids=torch.arange(24).view(2, 12)).logits.float(), right) > 0.1


def test_the_adapter_that_is_set_speaks() -> None:
    model = adapted(("actor", "critic"))
    said = {}
    for name in ("actor", "critic", "actor"):
        model.set_adapter(name)
        found = measured(model)[0]
        assert error(found, measured(as_peft(model))[0]) < 0.03
        assert torch.equal(said.setdefault(name, found), found)
    assert error(said["critic"], said["actor"]) > 0.1


def test_float32_models_keep_the_arithmetic_of_peft() -> None:
    model = adapted().float()
    assert torch.equal(measured(model)[0], measured(as_peft(model))[0])
