"""Starting vLLM in this process without disturbing the rest of it."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Before vllm is imported: it reads these once.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import numpy as np
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    # The sampler is compiled even in eager mode; without a C++ compiler that fails.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

from vllm import LLM


def start(model: str, dtype: str, options: dict[str, Any]) -> Any:
    """Return a running `vllm.LLM`.

    Args:
        model: A directory or hub id.
        dtype: Type the weights are served in.
        options: Further arguments of `vllm.LLM`; None means vLLM's choice.
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    if not torch.cuda.is_available():
        chosen.pop("gpu_memory_utilization", None)
        chosen.setdefault("kv_cache_memory_bytes", 256 << 20)
        chosen.setdefault("block_size", 32)
        # A seeded request whose prompt is split over steps kills the CPU engine (vLLM 0.32).
        chosen["enable_chunked_prefill"] = False
    with _undisturbed():
        return LLM(
            model,
            dtype=dtype,
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",
            seed=0,
            **chosen,
        )


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep this process's random states and thread setting, which vLLM replaces."""
    set_num_threads = torch.set_num_threads
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
