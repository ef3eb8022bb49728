"""A run of milliseconds a step that is stopped, fails or is resumed, and what it ends with."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RECIPE = """\
name: small
steps: 3
model: {type: scratch, hidden_size: 8, layers: 1, heads: 1, kv_heads: 1, head_dim: 8, ffn_size: 8}
data: {type: signs_puzzle, batch_size: 1, num_digits: 3, largest_digit: 4}
debate: {type: simultaneous, num_agents: 2, max_rounds: 1, style: compact, personas: none}
rollout: {max_tokens: 4}
reward: {type: v2}
advantage: {baseline: none}
loss: {type: ppo_clip}
trainer: {type: torch, learning_rate: 1.0e-2}
evaluation: {questions: 1, direct_samples: 1, every: 2}
recording: {debates: 0}
tracking: {wandb: false}
"""
AHEAD = ("pipeline.max_staleness=1", "evaluation.questions=0", "steps=4")
_CLOCKS = ("time_s", "time/", "tokens_per_s", "memory/")
Run = Callable[..., int]
End = tuple[list[dict[str, Any]], *tuple[bytes, ...]]


def end_of(folder: Path, *names: str) -> End:
    """Return the rows without times, and the bytes of files in the last checkpoint."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timeless = [{k: v for k, v in row.items() if not k.startswith(_CLOCKS)} for row in rows]
    last = max((folder / "checkpoints").glob("step-*"))
    names = names or ("model.safetensors", "optimizer-00000.safetensors")
    return timeless, *((last / name).read_bytes() for name in names)


def steps(folder: Path) -> list[int]:
    return sorted(int(p.name[5:]) for p in (folder / "run/checkpoints").glob("step-*"))


def at_call(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, number: int, act: Callable[[], object]
) -> None:
    """Act when a function is called for the n-th time, before it does anything."""
    inner, calls = getattr(owner, name), iter(range(1, 10_000))

    def outer(*arguments: Any, **named: Any) -> Any:
        if next(calls) == number:
            act()
        return inner(*arguments, **named)

    monkeypatch.setattr(owner, name, outer)
