"""Model, tokenizer and rows of `train_step.py`: GRPO groups, and turns of a debate."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from debate_train.batches.row_types import Batch, Row
from debate_train.losses import PpoClip

LOSS = PpoClip()
VOCABULARY, GROUP, PROMPTS, MAX_COMPLETION = 512, 8, 4, 64


def tiny_model(seed: int = 0) -> Any:
    """Return a Qwen3-shaped model of 0.7 million parameters; equal seeds give equal weights."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config)


def word_tokenizer() -> Any:
    """Return a tokenizer of the words w0 … w511; token 2 ends a reply."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"Ġw{number}": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="Ġw1"))
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" [^\s]+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    template = "{% for m in messages %} {{ m.content }}{% endfor %}"
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="Ġw0",
        eos_token="Ġw2",
        unk_token="Ġw1",
        chat_template=template,
    )


def make_row(prompt: Sequence[int], reply: Sequence[int], **fields: Any) -> Row:
    """Return the row of one reply; `advantage` and `logps` are those of all its tokens."""
    tokens = np.array([*prompt, *reply], np.int64)
    mask = np.arange(len(tokens)) >= len(prompt)
    logps = np.zeros(len(tokens), np.float32)
    logps[mask] = fields.pop("logps")
    return Row.of_tokens(
        tokens=tokens,
        mask=mask.astype(np.float32),
        advantages=mask.astype(np.float32) * np.float32(fields.pop("advantage")),
        sampler_logps=logps,
        temperatures=np.ones(len(tokens), np.float32),
        streams=mask.astype(np.int64),
        versions=np.where(mask, 0, -1),
        segments=mask.astype(np.int64),
        agent=0,
        **fields,
    )


def batch_of(rows: Sequence[Row]) -> Batch:
    """Return these rows as a step's batch."""
    turns = sum(int(row.segments.max()) for row in rows)
    return Batch(tuple(rows), ("return",), sum(len(row.sampled_positions) for row in rows), turns)


def groups(prompt_tokens: int, seed: int) -> Batch:
    """Return 4 prompts of about this length, each with 8 completions of 58 to 64 tokens."""
    rng = np.random.default_rng(seed)
    rows = []
    for question in range(PROMPTS):
        prompt = rng.integers(3, VOCABULARY, rng.integers(prompt_tokens - 8, prompt_tokens + 9))
        for copy in range(GROUP):
            reply = rng.integers(3, VOCABULARY, rng.integers(58, MAX_COMPLETION + 1))
            number = question * GROUP + copy
            credit = float(rng.normal())
            rows.append(
                make_row(
                    prompt.tolist(), reply.tolist(), advantage=credit, logps=-6.2, debate=number,
                    group=question,
                )
            )  # fmt: skip
    return batch_of(rows)


def shared_debates(count: int, agents: int, rounds: int, said: int, seed: int) -> Batch:
    """Return debates with `conversation: shared`: all read the same, before who they are."""
    rng = np.random.default_rng(seed)

    def tokens(size: int) -> list[int]:
        return [int(token) for token in rng.integers(3, VOCABULARY, size)]

    rows = []
    for debate in range(count):
        shown = tokens(96)  # The question and the rules.
        for _ in range(rounds):
            turns = [tokens(said) for _ in range(agents)]
            rows += [
                make_row(
                    shown + tokens(12), turn, advantage=float(rng.normal()), logps=-6.2,
                    debate=debate, group=len(rows),
                )
                for turn in turns
            ]  # fmt: skip
            shown = shown + [token for turn in turns for token in turn]
    return batch_of(rows)


@dataclass(frozen=True, slots=True)
class Turns:
    """The same turns as rows that go on from each other, and as a row a turn."""

    merged: Batch
    split: Batch


def equal_turns(turns: int, agents: int, told: int, said: int, seed: int) -> Turns:
    """Return agents that are told and say as much in every turn."""
    rng = np.random.default_rng(seed)
    merged, split = [], []
    for agent in range(agents):
        tokens = rng.integers(3, VOCABULARY, turns * (told + said))
        place = np.arange(len(tokens))
        sampled = place % (told + said) >= told
        whole = Row.of_tokens(
            tokens,
            sampled,
            advantages=rng.normal(size=len(tokens)),
            sampler_logps=np.full(len(tokens), -6.2),
            streams=np.ones(len(tokens)),
            versions=np.zeros(len(tokens)),
            segments=place // (told + said) + 1,
            agent=0,
            debate=agent,
        )
        merged.append(whole)
        split += [_one_turn(whole, turn, told + said) for turn in range(1, turns + 1)]
    return Turns(batch_of(merged), batch_of(split))


def _one_turn(row: Row, turn: int, size: int) -> Row:
    end = turn * size
    own = row.segments == turn
    names = ("places", "advantages", "sampler_logps", "temperatures", "streams", "versions")
    return replace(
        row,
        tokens=row.tokens[:end],
        segments=np.ones(own.sum(), np.int16),
        **{name: getattr(row, name)[own] for name in names},
    )
