"""Models with random weights, rows of random tokens, and what computing them costs."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from debate_train.batches.forward import attending_packs, token_logps
from debate_train.batches.packs import Pack, pack
from debate_train.batches.row_types import Batch, Row


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen3-shaped model; sizes as in transformers' configuration."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int


MODELS = {
    "0.6B": Shape(1024, 3072, 28, 16, 8, 128, 151936),
    "1.7B": Shape(2048, 6144, 28, 16, 8, 128, 151936),
}
TINY = Shape(64, 128, 2, 4, 2, 32, 512)
CHECKED = Shape(128, 256, 3, 4, 2, 64, 1024)
"""Small enough that a CPU has the right result in seconds."""


def make_model(shape: Shape, device: str, dtype: torch.dtype, spread: float = 0.02) -> Any:
    """Return a model with the same random weights whatever the device and type."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        **{name: getattr(shape, name) for name in shape.__slots__},
        max_position_embeddings=32768,
        initializer_range=spread,
        tie_word_embeddings=True,
        use_cache=False,
    )
    big = shape.vocab_size > 100_000
    before = torch.get_default_dtype()
    try:  # Large ones are drawn where they are used: the CPU would take minutes.
        torch.set_default_dtype(dtype if big else torch.float32)
        torch.manual_seed(0)
        with torch.device(device if big else "cpu"):
            model = Qwen3ForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    return cast(model, dtype).to(device).train()


def cast(model: Any, dtype: torch.dtype) -> Any:
    """Let parameters have a type; the frequencies of positions stay float32, as when loaded."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


@dataclass(frozen=True, slots=True)
class Spans:
    """What a row consists of: the lengths of what was told and of what was sampled, in turns."""

    group: int
    """Rows of one group and length of the first span begin alike."""
    told: tuple[int, ...]
    sampled: tuple[int, ...]


def grpo_rows(questions: int, copies: int, prompt: int, reply: int) -> list[Spans]:
    """Return groups of replies of log-normal length to one prompt each."""
    rng = np.random.default_rng(1)
    lengths = np.exp(rng.normal(np.log(reply), 0.4, (questions, copies)))
    return [
        Spans(q, (prompt,), (int(np.clip(length, 8, 3 * reply)),))
        for q in range(questions)
        for length in lengths[q]
    ]


def debate_rows(debates: int, agents: int, rounds: int, prompt: int, reply: int) -> list[Spans]:
    """Return rows of agents that begin alike and are told what all others said, each round."""
    rng = np.random.default_rng(2)
    found = []
    for debate in range(debates):
        said = np.exp(rng.normal(np.log(reply), 0.4, (rounds, agents)))
        said = np.clip(said, 8, 3 * reply).astype(int)
        for agent in range(agents):
            told = [int(said[r].sum() - said[r, agent]) for r in range(rounds - 1)]
            found.append(Spans(debate, (prompt, *told), tuple(map(int, said[:, agent]))))
    return found


def make_batch(spans: Sequence[Spans], vocabulary: int) -> Batch:
    """Return rows of random tokens of these lengths, with random advantages."""
    rng = np.random.default_rng(0)
    prompts: dict[tuple[int, int], Any] = {}
    rows = []
    for number, one in enumerate(spans):
        tokens, mask = [], []
        for place, (told, sampled) in enumerate(zip(one.told, one.sampled, strict=True)):
            news = rng.integers(5, vocabulary, told)
            if place == 0:
                news = prompts.setdefault((one.group, told), news)
            tokens += [news, rng.integers(5, vocabulary, sampled)]
            mask += [np.zeros(told), np.ones(sampled)]
        rows.append(_row(np.concatenate(tokens), np.concatenate(mask), rng, number, one.group))
    actions = sum(len(row.sampled_positions) for row in rows)
    return Batch(tuple(rows), ("generator",), actions, sum(len(one.told) for one in spans))


def _row(tokens: Any, mask: Any, rng: Any, number: int, group: int) -> Row:
    size = len(tokens)
    return Row.of_tokens(
        tokens=tokens.astype(np.int64),
        mask=mask.astype(np.float32),
        advantages=(rng.normal(size=size) * mask).astype(np.float32),
        sampler_logps=np.zeros(size, np.float32),
        temperatures=np.where(mask > 0, 0.9, 1.0).astype(np.float32),
        streams=mask.astype(np.int64),
        versions=np.zeros(size, np.int64),
        segments=mask.astype(np.int64),
        agent=0,
        debate=number,
        group=group,
    )


def make_packs(batch: Batch, tokens: int, share: Any) -> list[Pack]:
    """Return the packs of a step for one process; each action counts one over all actions."""
    each = np.float32(1 / max(batch.sampled_tokens, 1))
    weights = [np.full(len(row.sampled_positions), each) for row in batch.rows]
    return pack(batch, weights, tokens, ranks=1, share=share)[0]


def update(model: nn.Module, packs: Sequence[Pack], device: str) -> tuple[float, list[Tensor]]:
    """Run forward and backward over all packs; return the loss and each pack's logps."""
    total, found = torch.zeros((), device=device), []
    for one in packs:
        here = one.to(torch.device(device))
        with nullcontext() if one.layout is None else attending_packs(model):
            logps_A, _ = token_logps(model, here)
            loss = -(logps_A * here.advantages_A * here.weights_A).sum()
            loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
        found.append(logps_A.detach())
    return float(total), found


def model_flops(shape: Shape, packs: Sequence[Pack]) -> tuple[float, int, int]:
    """Return forward and backward FLOPs, tokens computed, and actions; padding does not count.

    Forward: 2 for each weight and token, 4 · heads · features for each query, key it sees and
    layer, 2 for each weight of the head and action. Backward: twice that. Nothing is counted for
    what is computed again.
    """
    width, ffn, heads = shape.hidden_size, shape.intermediate_size, shape.num_attention_heads
    keys = shape.num_key_value_heads
    layer = width * shape.head_dim * (2 * heads + 2 * keys) + 3 * width * ffn
    tokens = pairs = actions = 0
    for one in packs:
        actions += len(one.targets_A)
        for queries, seen in _runs(one):
            tokens += queries
            pairs += queries * (seen - queries) + queries * (queries + 1) // 2
    layers = shape.num_hidden_layers
    forward = 2.0 * layer * layers * tokens + 4.0 * heads * shape.head_dim * layers * pairs
    return 3 * (forward + 2.0 * width * shape.vocab_size * actions), tokens, actions


def _runs(one: Pack) -> list[tuple[int, int]]:
    """Return the queries of each run and the keys that its last one sees."""
    if one.layout is not None:
        paths = [one.layout.path(node) for node in range(len(one.layout.parents))]
        return [(p[-1].stop - p[-1].start, sum(r.stop - r.start for r in p)) for p in paths]
    longest = one.tokens_BT.shape[1]
    ends: dict[int, int] = {}  # The last token of each padded row that predicts something.
    for source in one.sources_A.tolist():
        ends[source // longest] = max(ends.get(source // longest, 0), source % longest + 1)
    return [(end, end) for end in ends.values()]
