"""What vLLM changes of the process it runs in, kept apart from what the trainer works with.

While vLLM starts, it sets torch's thread count, leaves the thread on a CUDA stream of its own,
seeds every generator and sets the precision of float32 products. The trainer needs its own back:
CPU optimizers use all threads, and DeepSpeed orders its work on the default stream. vLLM needs
its own again at each call: sampled ids are copied once that stream is through, so work on another
stream would be read before it is done.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class ThreadState:
    """Threads of torch's CPU operations, and the CUDA stream (None without CUDA), of a thread."""

    threads: int
    stream: Any

    @classmethod
    def now(cls) -> "ThreadState":
        """Return the state of the thread that calls."""
        stream = torch.cuda.current_stream() if torch.cuda.is_available() else None
        return cls(torch.get_num_threads(), stream)

    def restore(self) -> None:
        """Put the calling thread into this state."""
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        if self.stream is not None:
            torch.cuda.set_stream(self.stream)

    @contextmanager
    def entered(self, ordered: bool = False) -> Iterator[None]:
        """Put the calling thread into this state for a while.

        With `ordered`, work begins on this stream when that of the stream left is done, and the
        other way round: for tensors that both use.
        """
        before = ThreadState.now()
        if ordered and self.stream is not None:
            self.stream.wait_stream(before.stream)
        self.restore()
        try:
            yield
        finally:
            if ordered and self.stream is not None:
                before.stream.wait_stream(self.stream)
            before.restore()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Put back what vLLM's start replaces: random states, threads, stream, matmul precision."""
    set_num_threads, state = torch.set_num_threads, ThreadState.now()
    precision = torch.get_float32_matmul_precision()
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads  # vLLM on a CPU replaces the function
        state.restore()
        torch.set_float32_matmul_precision(precision)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
