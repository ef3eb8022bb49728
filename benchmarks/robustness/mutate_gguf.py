"""Damage a GGUF file and look whether it is refused, or taken for the model that it says.

A tiny Llama's file loses each tensor, gets NaN into each, gains keys and tensors that change the
model, or is cut. A file must be refused with one line, or give the logits of the model that was
written; anything else is a failure.

    python -m benchmarks.robustness.mutate_gguf
"""

import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaForCausalLM

from benchmarks.measurement import print_line
from benchmarks.robustness.gguf_files import PARTS, write
from debate_train.errors import ModelError
from debate_train.models import PretrainedModel

NUM_CUTS = 12
TENSORS = (
    "token_embd.weight",
    "output_norm.weight",
    *(f"blk.0.{name}.weight" for name in PARTS),
)
# Keys by value; each changes the model, or is harmless at this value.
KEYS: tuple[tuple[str, str | int | float | bool], ...] = (
    ("llama.rope.scaling.type", "linear"),
    ("llama.rope.scaling.type", "yarn"),
    ("llama.rope.scaling.type", "none"),
    ("llama.rope.scaling.factor", 4.0),
    ("llama.rope.scaling.factor", 1.0),
    ("llama.rope.dimension_count", 16),
    ("llama.attention.key_length", 16),
    ("llama.attention.key_length", 8),
    ("llama.attention.sliding_window", 16),
    ("llama.attention.sliding_window", 0),
    ("llama.logit_scale", 0.5),
    ("llama.logit_scale", 1.0),
    ("llama.embedding_scale", 2.0),
    ("llama.residual_scale", 0.5),
    ("llama.final_logit_softcapping", 30.0),
    ("llama.expert_count", 4),
    ("llama.block_count", 2),
    ("llama.no_such_key", 1),
    ("tokenizer.ggml.pre", "smollm"),
    ("tokenizer.ggml.pre", "no-such-rule"),
    ("tokenizer.ggml.add_bos_token", True),
    ("tokenizer.ggml.add_eos_token", True),
)
EXTRA_TENSORS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("rope_freqs.weight", (8,)),
    ("blk.0.attn_q.bias", (64,)),
    ("blk.0.attn_q_norm.weight", (16,)),
    ("blk.1.attn_norm.weight", (64,)),
    ("no_such_tensor.weight", (4,)),
)


def damages(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each damage by name, with how the file is written."""
    for name in TENSORS:
        yield f"without {name}", {"left_out": (name,)}
        yield f"NaN in {name}", {"extra_tensors": {name: np.full(shapes[name], np.nan, "f")}}
    for key, value in KEYS:
        yield f"{key} = {value}", {"extra_keys": {key: value}}
    for name, shape in EXTRA_TENSORS:
        yield f"with {name}", {"extra_tensors": {name: np.full(shape, 2.0, "f")}}


def outcome_of(file: Path, written: LlamaForCausalLM) -> str:
    """Load a file; say whether it was refused, or is the model that was written."""
    try:
        model = PretrainedModel(name=str(file)).load(0).model
    except ModelError as refusal:
        return "traceback" if "\n" in str(refusal) else "refused"
    ids = torch.arange(1, 60)[None]
    with torch.no_grad():
        is_same = torch.allclose(model(ids).logits, written(ids).logits, atol=1e-4)
    return "the model that was written" if is_same else "another model"


def main() -> None:
    """Try every damage, and print how many files came to what."""
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_HOME"] = folder
        file = Path(folder) / "tiny.gguf"
        written = write(file)
        whole = file.read_bytes()
        shapes = gguf_shapes(file)
        for name, changes in damages(shapes):
            write(file, **changes)
            outcomes[note(name, outcome_of(file, written))] += 1
        for index in range(NUM_CUTS):
            file.write_bytes(whole[: len(whole) * index // NUM_CUTS])
            outcomes[note(f"cut to {index}/{NUM_CUTS}", outcome_of(file, written))] += 1
    failures = outcomes["another model"] + outcomes["traceback"]
    settings = {"files": outcomes.total(), **outcomes}
    print_line("gguf/failures", [failures], "files", "lower", settings, ["gguf", "transformers"])


def gguf_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a file's tensors, as numpy has them."""
    from gguf import GGUFReader

    return {
        tensor.name: tuple(int(size) for size in reversed(tensor.shape))
        for tensor in GGUFReader(file).tensors
    }


def note(name: str, outcome: str) -> str:
    """Print a failure, and return the outcome."""
    if outcome in ("another model", "traceback"):
        print(f"FAILURE: {name}: {outcome}")
    return outcome


if __name__ == "__main__":
    main()
