"""Loss and gradient are equal however rows are packed, shared, split or spread over ranks."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from arithmetic import assert_rounded, in_float64
from debate_train.batches import forward as block_attention
from debate_train.batches import packs as prefix_forest
from debate_train.batches.packs import Layout, pack
from debate_train.batches.row_types import Batch, Row, weigh
from debate_train.losses import Loss, PpoClip
from debate_train.models.loaded_model import LoadedModel, with_adapter
from debate_train.trainers import TorchTrainer
from debate_train.trainers.torch_session import KnownLogps, StepStats, accumulate, trainable

pytestmark = pytest.mark.numeric

Gradient = dict[str, Tensor]
LOSS = PpoClip(aggregation="token_mean_batch")
SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
SLIDING = {"sliding_window": 7}
MAKERS: dict[str, Callable[[], Any]] = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=True)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "mistral sliding": lambda: MistralForCausalLM(MistralConfig(**SHAPE, **SLIDING)),
    "gemma3 sliding": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**SHAPE, **SLIDING, layer_types=["sliding_attention", "full_attention"])
    ),
}


def model(kind: str = "qwen3") -> Any:
    torch.manual_seed(0)
    return MAKERS[kind]()


def row(tokens: Sequence[int], sampled: Sequence[bool], debate: int, rng: Any) -> Row:
    """A row with credit, log-probabilities and temperatures of its own."""
    mask = np.array(sampled)
    size = len(mask)
    return Row.of_tokens(
        tokens=np.array(tokens, np.int64),
        mask=mask.astype(np.float32),
        advantages=(rng.normal(size=size) * mask).astype(np.float32),
        sampler_logps=(rng.normal(-4.0, 0.1, size) * mask).astype(np.float32),
        temperatures=np.where(mask, rng.uniform(0.5, 1.5), 1.0).astype(np.float32),
        streams=mask.astype(np.int64),
        versions=np.where(mask, 0, -1),
        segments=mask.astype(np.int64),
        agent=0,
        debate=debate,
    )


def batch_of(sequences: Sequence[tuple[Sequence[int], Sequence[bool]]]) -> Batch:
    rng = np.random.default_rng(0)
    rows = tuple(row(tokens, sampled, k, rng) for k, (tokens, sampled) in enumerate(sequences))
    return Batch(rows, ("generator",), sum(int(r.mask.sum()) for r in rows), len(rows))


@st.composite
def forests(draw: st.DrawFn) -> Batch:
    """Rows that begin as another one does, or do not; copies and mere beginnings among them."""
    few = st.integers(1, 5)
    made: list[list[int]] = []
    for _ in range(draw(st.integers(1, 7))):
        start: list[int] = []
        if made and draw(st.booleans()):
            other = draw(st.sampled_from(made))
            start = other[: draw(st.integers(0, len(other)))]
        made.append((start + draw(st.lists(few, max_size=12))) or [draw(few)])
    sampled = [[draw(st.booleans()) for _ in tokens] for tokens in made]
    return batch_of(list(zip(made, sampled, strict=True)))


def by_rows(network: Any, batch: Batch, loss: Loss) -> tuple[float, Gradient]:
    """Loss and gradient the plain way: every row alone, its whole logits, summed at the end."""
    network.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    batch, weights = weigh(batch, loss.aggregation)
    for one, weight in zip(batch.rows, weights, strict=True):
        tokens = torch.from_numpy(one.over_tokens("tokens"))
        logits = network(input_ids=tokens[None]).logits[0, :-1]
        heat = torch.from_numpy(one.over_tokens("temperatures"))[1:, None]
        logps = (logits / heat).log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
        ratio = (logps - torch.from_numpy(one.over_tokens("sampler_logps"))[1:]).exp()
        credit = torch.from_numpy(one.over_tokens("advantages"))[1:]
        counted = dataclasses.replace(one, advantages=weight).over_tokens("advantages")
        worst = torch.minimum(ratio * credit, ratio.clamp(0.8, 1.28) * credit)
        total = total - (worst * torch.from_numpy(counted)[1:]).sum()
    if total.requires_grad:
        total.backward()
    return float(total.detach()), gradient_of(network)


def gradient_of(network: Any) -> Gradient:
    own = trainable(network)
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in own.items()}


def packed(
    network: Any, batch: Batch, loss: Loss, budget: int, ranks: int, share: Any
) -> tuple[float, Gradient]:
    """Loss and gradient of all ranks' packs, summed."""
    network.zero_grad()
    batch, weights = weigh(batch, loss.aggregation)
    total = 0.0
    for packs in pack(batch, weights, budget, ranks=ranks, share=share):
        stats, known = StepStats(), [KnownLogps()] * len(packs)
        accumulate(network, packs, loss, known, lambda share: share.backward(), stats)
        total += stats.metrics(1).get("loss", 0.0)
    return total, gradient_of(network)


def assert_equal(
    found: tuple[float, Gradient], expected: tuple[float, Gradient], gap: float = 1e-12
) -> None:
    """Of float64: sums of some hundred terms, each rounded by 1e-16 of it."""
    assert found[0] == pytest.approx(expected[0], rel=10 * gap, abs=gap)
    largest = max(float(g.abs().max()) for g in expected[1].values())
    for name, slope in expected[1].items():
        found_gap = float((found[1][name] - slope).abs().max())
        assert found_gap <= gap * max(largest, 1e-3), (name, found_gap, largest)


NETWORK = model().double()
SPLITS = st.tuples(
    st.sampled_from([1, 9, 10**6]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from(["prefix", "rows", "none"]),
)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(batch=forests(), split=SPLITS, shortest=st.sampled_from([1, 4]))
def test_loss_and_gradient_are_those_of_rows_alone_when_packed_in_any_way(
    batch: Batch, split: tuple[int, int, Any], shortest: int
) -> None:
    with pytest.MonkeyPatch.context() as patch, in_float64():
        patch.setattr(prefix_forest, "MIN_SHARED", shortest)
        expected = by_rows(NETWORK, batch, LOSS)
        assert_equal(packed(NETWORK, batch, LOSS, *split), expected)


def groups(seed: int = 0) -> Batch:
    """Two questions of four replies; the second turns of three go on from one first turn."""
    rng = np.random.default_rng(seed)
    sequences = []
    for _ in range(2):
        prompt = rng.integers(1, 60, 12).tolist()
        first = rng.integers(1, 60, 10).tolist()
        for size in (5, 9, 3):
            told = rng.integers(1, 60, 2).tolist()
            tokens = prompt + first + told + rng.integers(1, 60, size).tolist()
            sampled = [False] * 12 + [True] * 10 + [False] * 2 + [True] * size
            sequences.append((tokens, sampled))
        tokens = prompt + rng.integers(1, 60, 8).tolist()
        sequences.append((tokens, [False] * 12 + [True] * 8))
    return batch_of(sequences)


@pytest.mark.parametrize("kind", list(MAKERS))
@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
def test_every_architecture_is_packed_without_a_difference(kind: str, checkpointing: bool) -> None:
    network, batch = model(kind).double(), groups()
    network.train()
    if checkpointing:
        network.gradient_checkpointing_enable()
    before = network.config._attn_implementation
    with in_float64():
        expected = by_rows(network, batch, LOSS)
        for budget, ranks, share in ((10**6, 1, "prefix"), (40, 2, "prefix"), (10**6, 1, "rows")):
            assert_equal(packed(network, batch, LOSS, budget, ranks, share), expected)
    assert network.config._attn_implementation == before


@pytest.mark.parametrize("kind", list(MAKERS))
def test_packs_round_as_rows_alone_do(kind: str) -> None:
    batch, plain = groups(), by_rows(model(kind), groups(), LOSS)[1]
    with in_float64():
        exact = by_rows(model(kind).double(), batch, LOSS)[1]
    assert all(slope.dtype == torch.float32 for slope in plain.values())
    for budget, ranks, share in ((10**6, 1, "prefix"), (40, 2, "prefix"), (10**6, 1, "rows")):
        assert_rounded(packed(model(kind), batch, LOSS, budget, ranks, share)[1], plain, exact)


def test_adapter_is_trained_alike_when_packed(tiny: Callable[..., LoadedModel]) -> None:
    loaded = dataclasses.replace(
        LoadedModel(model(), tiny().tokenizer), lora=tiny(lora_rank=2).lora
    )
    network = with_adapter(loaded, 0).model.double()
    with torch.no_grad():  # B starts at 0: move it, so that adapters matter.
        for name, parameter in network.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    with in_float64():
        expected = by_rows(network, groups(), LOSS)
        assert all("lora_" in name for name in expected[1])
        for share in ("prefix", "rows", "none"):
            assert_equal(packed(network, groups(), LOSS, 10**6, 1, share), expected)


def test_bfloat16_is_as_near_packed_as_padded() -> None:
    exact = by_rows(model().double(), groups(), LOSS)[1]
    shared, padded = (
        packed(model().bfloat16(), groups(), LOSS, 10**6, 1, share)[1]
        for share in ("prefix", "none")
    )
    assert all(slope.dtype == torch.bfloat16 for slope in shared.values())
    assert_rounded(shared, padded, exact, factor=2)


def test_parameters_are_equal_after_a_step_of_any_packing() -> None:
    after = []
    for share, budget in (("none", 10**6), ("rows", 30), ("prefix", 10**6), ("prefix", 30)):
        network = model().double()
        trainer = TorchTrainer(
            learning_rate=1e-2, packing=share, tokens_per_micro_batch=budget, max_grad_norm=1e9
        ).open(LoadedModel(network, None), LOSS, 1)  # type: ignore[arg-type]
        with in_float64():
            trainer.step(groups())
        after.append({n: p.detach().clone() for n, p in trainable(network).items()})
    for name, first in after[0].items():
        # AdamW's first step is lr·g/(|g| + 1e-8): a gap of 1e-17 in g is one of 1e-11 in it.
        for other in after[1:]:
            torch.testing.assert_close(other[name], first, rtol=0, atol=1e-10)
        assert float((first - trainable(model())[name]).abs().max()) > 9e-3


def sibling_seen(layout: Layout) -> Layout:
    """The layout with one rectangle that lets a child see its sibling."""
    start, end, until = layout.ancestor_blocks[0]
    return dataclasses.replace(
        layout, ancestor_blocks=((start, end + 3, until), *layout.ancestor_blocks[1:])
    )


def square_shifted(layout: Layout) -> Layout:
    """The layout with the second place of a block twice."""
    first = layout.blocks[0]
    places = first.indices_NL.clone()
    places[0, 2] = places[0, 1]
    broken = dataclasses.replace(first, indices_NL=places)
    return dataclasses.replace(layout, blocks=(broken, *layout.blocks[1:]))


@pytest.mark.parametrize("broken", [sibling_seen, square_shifted])
def test_equality_notices_a_wrong_layout(
    broken: Callable[[Layout], Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = block_attention.block_attention
    with in_float64():
        expected = by_rows(NETWORK, groups(), LOSS)
        assert_equal(packed(NETWORK, groups(), LOSS, 10**6, 1, "prefix"), expected)
    monkeypatch.setattr(
        "debate_train.batches.forward.block_attention",
        lambda q, k, v, layout, scale: right(q, k, v, broken(layout), scale),
    )
    with in_float64(), pytest.raises(AssertionError):
        assert_equal(packed(NETWORK, groups(), LOSS, 10**6, 1, "prefix"), expected)
