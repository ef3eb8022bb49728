"""A model of fake CUDA tensors that acts as its reference, and trains against it."""

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from fake_device import DEVICE, Calls, Live, fake_module, fake_tensors, pack_of, rows_of
from peft import get_peft_model
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only
from transformers import Qwen3Config, Qwen3ForCausalLM

from debate_train.batches.packs import empty
from debate_train.losses import Kl, PpoClip
from debate_train.models import Lora
from debate_train.models.loaded_model import lora_config
from debate_train.trainers import TorchTrainer
from debate_train.trainers.references import KeptReference, open_reference
from debate_train.trainers.torch_session import TorchTrainerSession, Update, UpdateLoop, trainable


def small_model(rank: int) -> Any:
    """Return a bfloat16 model without values; peft makes its adapter, where it has one, float32."""
    config = Qwen3Config(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        model: Any = Qwen3ForCausalLM(config).to(torch.bfloat16)
        if rank:
            model = get_peft_model(model, lora_config(Lora(rank=rank, alpha=rank)))
    return model


def described(model: torch.nn.Module) -> dict[str, tuple[Any, ...]]:
    """Return what must not change about each parameter."""
    return {
        name: (id(p), p.untyped_storage()._cdata, p.device, p.dtype, p.requires_grad)
        for name, p in model.named_parameters()
    }


def reference_case(policy: Any, rank: int) -> dict[str, int]:
    """Open a reference, let two updates learn against it, and count copies and memory."""
    mode = FakeTensorMode()
    model = fake_module(small_model(rank), mode).train()
    idle = empty(rows_of([20], 9)[0], "prefix").build()
    packs = [fake_tensors(pack, mode) for pack in (pack_of([20, 24], 9), idle)]
    before = described(model)
    with mode, Live() as live, Calls() as calls:
        tree_map_only(Tensor, live._add, [*model.parameters(), *model.buffers()])
        held = live.live
        reference = open_reference(policy, model)
        if policy == "base" and isinstance(reference, KeptReference):
            # As files and fresh models have them: in CPU memory, in a type of their own.
            values = {n: torch.empty(p.shape) for n, p in trainable(model).items()}
            session: Any = SimpleNamespace(_reference=reference)
            TorchTrainerSession._write_reference(session, values.__getitem__)
        with reference.acting():  # Adapters that are switched off are not trained meanwhile.
            acting = {name: about[:-1] for name, about in described(model).items()}
            assert acting == {name: about[:-1] for name, about in before.items()}
        extra = live.peak - held
    parameters = list(trainable(model).values())
    optimizer = TorchTrainer().make_optimizer(trainable(model))

    def update() -> Update:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return Update(0.0, False)

    loss = PpoClip(kl=Kl(weight=0.1, reference=policy))
    learning = UpdateLoop(model, loss, reference, 2, lambda share: share.backward(), update)
    with mode, calls:
        stats, made = learning.learn([packs])
    assert described(model) == before and len(made) == 2
    assert stats.sums["optim/kl_reference"].device == DEVICE
    kept = getattr(reference, "_other_values", {})
    for name, value in kept.items():
        assert (value.device.type, value.dtype) == ("cpu", trainable(model)[name].dtype), name
    return {
        "trained": len(parameters),
        "kept": len(kept),
        "extra": extra,
        "copies": calls.to_host,
        "forward": calls.varlen,
        "backward": calls.varlen_backward,
    }


def reference_cases() -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the counts of each kind of reference."""
    for policy, rank in itertools.product(("phase_start", "base"), (0, 2)):
        yield f"reference {policy} rank {rank}", reference_case(policy, rank)
