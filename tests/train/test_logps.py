"""Log-probabilities and their gradient against the full softmax; temperatures."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from arithmetic import UNIT
from debate_train.batches import forward as logps
from debate_train.batches.forward import token_logps
from debate_train.batches.packs import Pack
from debate_train.batches.row_types import Batch, Row
from debate_train.losses import Dapo, Grpo, ImportanceSampling, Kl, Loss, PpoClip, Reinforce
from debate_train.models.loaded_model import LoadedModel
from debate_train.trainers.torch_session import trainable

MakeModel = Callable[..., LoadedModel]
PackOf = Callable[..., Pack]
GradientOf = Callable[..., tuple[dict[str, float], dict[str, Tensor]]]
pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.numeric]


def untied(make: MakeModel, lora_rank: int = 0) -> LoadedModel:
    """The tiny model with a head of its own."""
    from debate_train.models.loaded_model import with_adapter

    loaded = dataclasses.replace(make(), lora=make(lora_rank=1).lora if lora_rank else None)
    head = torch.nn.Linear(16, len(loaded.tokenizer), bias=False)
    torch.nn.init.normal_(head.weight, std=0.3)
    loaded.model.set_output_embeddings(head)
    assert loaded.model.lm_head.weight is not loaded.model.get_input_embeddings().weight
    return with_adapter(loaded, 0)


def with_weights(make: MakeModel, kind: str) -> LoadedModel:
    loaded = {
        "tied": lambda: make(),
        "untied": lambda: untied(make),
        "tied lora": lambda: make(lora_rank=2),
        "untied lora": lambda: untied(make, lora_rank=2),
    }[kind]()
    with torch.no_grad():  # LoRA's B starts at 0: move it, so that adapters matter.
        for name, parameter in loaded.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(0))
    return loaded


def full_softmax(model: Any, tokens: Tensor, wanted: Tensor, temperatures: Tensor) -> Any:
    """(logps, entropies) the plain way: all logits of all positions."""
    logits = model(input_ids=tokens).logits[:, :-1].float()
    every = (logits / temperatures[:, 1:, None]).log_softmax(-1)
    found = every.gather(-1, tokens[:, 1:, None])[..., 0]
    return found[wanted[:, 1:]], (-(every.exp() * every).sum(-1))[wanted[:, 1:]]


@pytest.mark.parametrize("kind", ["tied", "untied", "tied lora", "untied lora"])
@pytest.mark.parametrize("chunk", [1 << 22, 400])
def test_token_logps_are_those_of_the_full_softmax(
    tiny: MakeModel, pack_of: PackOf, kind: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logps, "CHUNK_LOGITS", chunk)  # 400 over 124 words: 3 tokens a chunk
    loaded = with_weights(tiny, kind)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(6, 120, (3, 12), generator=generator)
    wanted = torch.rand(3, 12, generator=generator) < 0.6
    wanted[:, 0] = False
    temperatures = 0.5 + torch.rand(3, 12, generator=generator)
    slopes = torch.randn(int(wanted.sum()), generator=generator)

    pack = pack_of(tokens, wanted, temperatures)

    def gradients(find: Callable[..., Any], *of: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        loaded.model.zero_grad()
        found, entropies = find(loaded.model, *of)
        (found * slopes).sum().backward()
        own = trainable(loaded.model)
        return found, entropies, {n: p.grad.clone() for n, p in own.items() if p.grad is not None}

    found, entropies, gradient = gradients(token_logps, pack)
    expected, expected_entropies, expected_gradient = gradients(
        full_softmax, tokens, wanted, temperatures
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(entropies, expected_entropies, rtol=0, atol=1e-13)
    assert set(gradient) == set(expected_gradient) == set(trainable(loaded.model))
    assert all("lora_" in name for name in gradient) == ("lora" in kind)
    assert all(float(g.abs().max()) > 1e-4 for g in gradient.values())
    largest = max(float(g.abs().max()) for g in expected_gradient.values())
    for name, slope in expected_gradient.items():
        torch.testing.assert_close(gradient[name], slope, rtol=0, atol=1e-13 * max(1.0, largest))


def test_token_logps_do_not_see_the_padding(tiny: MakeModel, pack_of: PackOf) -> None:
    loaded = tiny()
    tokens = torch.randint(6, 120, (2, 8), generator=torch.Generator().manual_seed(1)).tolist()
    wanted = [[False] * 3 + [True] * 5] * 2
    alone, _ = token_logps(loaded.model, pack_of(tokens[:1], wanted[:1]))
    longer = [tokens[0], tokens[1] * 2], [wanted[0] + [False] * 8, wanted[1] * 2]
    beside, _ = token_logps(loaded.model, pack_of(*longer))
    torch.testing.assert_close(beside[:5], alone, rtol=0, atol=1e-13)


PROMPT = (9, 40, 77)
TEMPERATURE = 0.6


def enumerated(loaded: LoadedModel, trained_at: float) -> Batch:
    """One row for each token x of the vocabulary after a prompt, worth its chance at TEMPERATURE.

    The sum over rows is the expectation of a constant advantage of 1.
    """
    size = len(loaded.tokenizer)
    with torch.no_grad():
        logits = loaded.model(input_ids=torch.tensor([PROMPT])).logits[0, -1]
    chances = (logits / TEMPERATURE).softmax(-1).numpy()
    sampler = (logits / trained_at).log_softmax(-1).numpy()
    rows = []
    for token in range(size):
        last = np.array([0, 0, 0, 1], np.float32)
        rows.append(
            Row.of_tokens(
                tokens=np.array([*PROMPT, token]),
                mask=last,
                advantages=last * chances[token],
                sampler_logps=last * sampler[token],
                temperatures=np.where(last > 0, trained_at, 1.0).astype(np.float32),
                streams=last.astype(np.int64),
                versions=np.zeros(4, np.int64),
                segments=last.astype(np.int64),
                agent=0,
                debate=token,
            )
        )
    return Batch(tuple(rows), ("generator",), size, size)


@pytest.mark.parametrize(
    "loss",
    [
        ImportanceSampling(),
        PpoClip(aggregation="token_sum"),
        Dapo(aggregation="token_sum"),
        Grpo(aggregation="token_sum", kl=Kl()),
        Reinforce(aggregation="token_sum"),
    ],
    ids=lambda loss: str(loss.type),
)
def test_constant_advantage_moves_nothing_when_ratio_has_the_samplers_temperature(
    tiny: MakeModel, gradient_of: GradientOf, loss: Loss
) -> None:
    loaded = tiny()
    metrics, gradient = gradient_of(loaded, enumerated(loaded, TEMPERATURE), loss)
    # Both at temperature 1, as if untempered, though the samples are tempered: it moves.
    _, moved = gradient_of(loaded, enumerated(loaded, 1.0), loss)
    right, wrong = (sum(float((g**2).sum()) for g in x.values()) ** 0.5 for x in (gradient, moved))
    assert wrong > 0.1
    # What rows hold is float32: chances and log-probabilities of up to 2**4, rounded once.
    assert right < 2**4 * UNIT * wrong
    if loss.type != "reinforce":
        assert metrics["loss"] == pytest.approx(-1.0, abs=2**4 * UNIT)
    assert metrics["optim/ratio_min"] == pytest.approx(1.0, abs=2**4 * UNIT)
    assert metrics["optim/ratio_max"] == pytest.approx(1.0, abs=2**4 * UNIT)


@pytest.mark.parametrize("is_trained", [True, False])
def test_head_that_is_not_trained_takes_no_memory_for_its_gradient(is_trained: bool) -> None:
    made = []

    class Made(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), more: Any = None) -> Any:
            found = func(*args, **(more or {}))
            made.append(getattr(found, "shape", None))
            return found

    weight = torch.randn(50, 4).requires_grad_(is_trained)
    hidden = torch.randn(3, 4, requires_grad=True)
    found, _ = logps.hidden_logps(hidden, weight, torch.tensor([1, 2, 3]), torch.ones(3))
    with Made():
        found.sum().backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None
    assert (weight.grad is not None) == is_trained
    assert (weight.shape in made) == is_trained
