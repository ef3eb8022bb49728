"""Models and packs of fake CUDA tensors: device, type, shape and memory without a GPU or values.

Passes backward need the guard of `cuda_guard.cpp`, preloaded; see `test_fake_cuda.py`.
"""

import itertools
import json
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

import torch
from fake_device import DEVICE, Calls, Live, fake_module, fake_tensors, pack_of, rows_of
from fake_references import reference_cases
from peft import get_peft_model
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only
from transformers import Qwen3Config, Qwen3ForCausalLM

from debate_train.batches import forward as fused_head
from debate_train.batches.packs import empty
from debate_train.losses import Dapo, Dpo, Grpo, ImportanceSampling, Kl, PpoClip, Reinforce, Sft
from debate_train.models import PretrainedModel
from debate_train.models.fused_lora import fuse
from debate_train.models.loaded_model import Lora, lora_config
from debate_train.recipe.model_shape import shape_of
from debate_train.trainers import TorchTrainer
from debate_train.trainers.torch_session import (
    KnownLogps,
    StepStats,
    accumulate,
    gradient_checkpointing,
    score,
    trainable,
)

LOSSES: dict[str, Any] = {
    "ppo": PpoClip(kl=Kl(weight=0.1)),
    "sft": Sft(),
    "importance": ImportanceSampling(importance_cap=2.0),
    "reinforce": Reinforce(kl=Kl(weight=0.1)),
    "dapo": Dapo(),
    "grpo": Grpo(),
    "dpo": Dpo(nll_weight=0.1),
}


def case(loss: Any, rank: int, recompute: bool, share: Any) -> dict[str, int]:
    """Score and train one pack of a small bfloat16 model, and an empty pack; count calls."""
    config = Qwen3Config(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        model: Any = Qwen3ForCausalLM(config).to(torch.bfloat16)
        if rank:
            model = get_peft_model(model, lora_config(Lora(rank=rank, alpha=2 * rank)))
    mode = FakeTensorMode()
    fake_module(model, mode).train()
    if recompute:
        gradient_checkpointing(model)
    packs = [
        pack_of([20, 24, 18, 22], 9, share, pairs=True),
        empty(rows_of([20], 9)[0], share).build(),
    ]
    packs = [fake_tensors(pack, mode) for pack in packs]
    stats = StepStats()
    with mode, Calls() as calls:
        with torch.no_grad():
            known = [KnownLogps(None, logps) for _, logps in score(model, packs, loss)]
        scored = calls.varlen
        accumulate(model, packs, loss, known, lambda part: part.backward(), stats)
        waits = calls.to_host
        parameters = list(trainable(model).values())
        optimizer = TorchTrainer().make_optimizer(trainable(model))
        for _ in range(2):
            optimizer.step()
        where = {str(state["step"].device) for state in optimizer.state.values()}
        stats.on_cpu()
    slopes = [p.grad for p in parameters if p.grad is not None]
    gradients = {
        (s.device.type, s.dtype == p.dtype) for s, p in zip(slopes, parameters, strict=True)
    }
    assert gradients == {("cuda", True)}, gradients
    assert where == {"cuda:0"}, where
    return {
        "scored": scored,
        "forward": calls.varlen - scored,
        "backward": calls.varlen_backward,
        "waits": waits,
    }


def peak(rank: int, wide: bool, recompute: bool, vocabulary: int = 128) -> dict[str, int]:
    """Return the bytes that a pack takes at the peak of its passes, and those that a plan says.

    Weights and gradients are not among them.
    """
    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=256, intermediate_size=768,
        num_hidden_layers=4 if vocabulary == 128 else 1, num_attention_heads=8,
        num_key_value_heads=4, head_dim=64, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("meta"):
        model: Any = Qwen3ForCausalLM(config).to(torch.bfloat16)
        if rank:
            model = get_peft_model(model, lora_config(Lora(rank=rank, alpha=rank)))
            fuse(model)
    if not wide:
        model.to(torch.bfloat16)
    mode = FakeTensorMode()
    fake_module(model, mode).train()
    if recompute:
        gradient_checkpointing(model)
    pack = fake_tensors(pack_of([2049], 0, "rows"), mode)
    with mode, Live() as live:
        for parameter in trainable(model).values():
            parameter.grad = torch.empty_like(parameter)
        tree_map_only(Tensor, live._add, [*model.parameters(), *model.buffers()])
        before = live.live
        accumulate(model, [pack], Sft(), [KnownLogps()], lambda p: p.backward(), StepStats())
    with TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        lora = Lora(rank=rank, alpha=rank) if rank else None
        shape = shape_of(PretrainedModel(name=folder, dtype="bfloat16", lora=lora), wide)
    tokens = pack.tokens_BT.numel()
    planned = shape.peak_bytes(tokens, recompute)
    return {"peak": live.peak - before, "planned": int(planned)}


def peaks() -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the memory of small models, and of output heads that take several chunks."""
    for rank, wide, recompute in itertools.product((0, 8), (False, True), (False, True)):
        if rank or not wide:
            key = f"memory: rank {rank} wide {wide} recompute {recompute}"
            yield key, peak(rank, wide, recompute)
    head: Any = fused_head
    before = head.GPU_CHUNK_LOGITS, head._call_compiled
    head.GPU_CHUNK_LOGITS = 1 << 22

    # What a compiled kernel allocates: its results alone.
    def allocated(function: Any, logits: Any, *given: Any) -> Any:
        if function is head.chunk_slopes:
            return torch.empty_like(logits)
        return [torch.empty_like(given[1])] * 3

    head._call_compiled = allocated
    for rank in (0, 8):
        yield f"memory: head, rank {rank}", peak(rank, False, False, 1 << 14)
    head.GPU_CHUNK_LOGITS, head._call_compiled = before


def main() -> None:
    """Print the counts of all cases as JSON, and memory of passes and of an optimizer step."""
    found = {}
    settings = itertools.product(("ppo",), (0, 2), (False, True), ("prefix", "rows", "none"))
    others = [(name, 0, False, "prefix") for name in LOSSES if name != "ppo"]
    for name, rank, recompute, share in [*settings, *others]:
        key = f"{name} rank {rank} recompute {recompute} {share}"
        found[key] = case(LOSSES[name], rank, recompute, share)
    found |= dict(peaks())
    found |= dict(reference_cases())
    with FakeTensorMode():
        parameter = nn.Parameter(torch.empty(1 << 20, device=DEVICE))
        parameter.grad = torch.empty_like(parameter)
        optimizer = TorchTrainer().make_optimizer({"weight": parameter})
        with Live() as live:
            optimizer.step()
        found["optimizer"] = {"peak": live.peak, "size": parameter.nbytes}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
