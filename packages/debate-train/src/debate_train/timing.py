"""Where a step's time and memory go."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the wall time of what is within to `seconds`, as `time/{name}_s`, also if it fails."""
    key, began = f"time/{name}_s", time.perf_counter()
    try:
        yield
    finally:
        seconds[key] = seconds.get(key, 0.0) + time.perf_counter() - began


def peak_memory_gib() -> float:
    """Return the most memory of this process so far, in GiB (2^30 bytes).

    On CUDA it is what tensors took on the current device, as
    `torch.cuda.max_memory_allocated` counts it; elsewhere the resident set of the process.
    """
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    import resource  # There is none on Windows, where modules import but nothing runs.

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)  # Bytes there, KiB on Linux.
