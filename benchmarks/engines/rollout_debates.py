"""Debates whose replies differ in length, for the parts of `rollout.py`."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiny_model import byte_level_tokenizer

from debate_protocol.forms import Simultaneous
from debate_protocol.types import DebateRun, Gate, Question, Transcript


def debates(count: int, rounds: int, agents: int, conversation: str = "append") -> list[DebateRun]:
    """Return debates of `Simultaneous` at temperature 1; failed turns do not end them."""
    form = Simultaneous.model_validate(
        {
            "num_agents": agents,
            "max_rounds": rounds,
            "style": "compact",
            "personas": "none",
            "conversation": conversation,
        }
    )
    texts = ("A train leaves at nine and arrives at noon.", "How many legs have six spiders?")
    return [
        form.start(Question(f"q{k}", f"{texts[k % 2]} Case {k}."), seed=k, debate_id=str(k))
        for k in range(count)
    ]


def skewed(run: DebateRun, median: int, spread: float, longest: int) -> DebateRun:
    """Give each ask of a debate its own `max_tokens`: log-normal, the same in every run."""
    sent: Any = None
    while True:
        try:
            waits = run.send(sent)
        except StopIteration as stop:
            transcript: Transcript = stop.value
            return transcript
        if not isinstance(waits, Gate):
            waits = [
                replace(request, stop=(), max_tokens=_tokens(request.seed, median, spread, longest))
                for request in waits
            ]
        sent = yield waits


def _tokens(seed: int, median: int, spread: float, longest: int) -> int:
    drawn = median * random.Random(f"tokens/{seed}").lognormvariate(0.0, spread)
    return max(1, min(longest, round(drawn)))


def sampled_tokens(transcripts: Sequence[Transcript]) -> int:
    """Return how many tokens were sampled in these debates."""
    return sum(len(t.reply.token_ids) for x in transcripts for t in x.turns if t.reply)


def random_model(hidden: int, layers: int, dtype: str = "float32") -> tuple[Any, Any]:
    """Return a Qwen3-shaped model with random weights, and a byte-level tokenizer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = byte_level_tokenizer()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=max(2, hidden // 64),
        num_key_value_heads=max(1, hidden // 128),
        head_dim=64,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config).to(getattr(torch, dtype)).eval(), tokenizer


def on_disk(model: Any, tokenizer: Any, folder: Path) -> str:
    """Write a model for engines that read directories; return where."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
