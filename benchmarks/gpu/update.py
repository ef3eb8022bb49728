"""Packed rows on a GPU: right first, then how fast.

    python3 -m benchmarks.gpu.update | tee gpu.jsonl

Needs a CUDA device, torch and transformers (with the numpy they use): no network, and none of our
packages installed. Each part that fails prints a line with its error, and the others go on.
`--cpu-smoke` runs all parts in miniature on the CPU.
"""

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(path) for path in sorted(ROOT.glob("packages/*/src"))]


def main(arguments: list[str] | None = None) -> int:
    """Run all parts; return 1 when a check or a part failed."""
    options = parse(arguments)
    runner = Runner(options.limit_s)
    if not runner.attempt("import", _import):
        return runner.end()
    import torch

    if not options.cpu_smoke and not torch.cuda.is_available():
        print("gpu: found no CUDA device; expected one, or --cpu-smoke", file=sys.stderr)
        return 2
    from benchmarks.gpu.checks import CHECKS
    from benchmarks.gpu.models import MODELS, TINY
    from benchmarks.gpu.speed import Device, measure, measured_peak

    device = Device("cpu" if options.cpu_smoke else "cuda", peak_of(options))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for name, check in CHECKS.items():
        runner.attempt(f"check/{name}", lambda check=check: check(device.name))
    runner.attempt("matmul", lambda: measured_peak(device))
    shapes = {"tiny": TINY} if options.cpu_smoke else MODELS
    sizes = options.sizes.split(",") if not options.cpu_smoke else list(shapes)
    found = replace(device, tokens=options.tokens, repeats=options.repeats)
    for size, workload in product(sizes, options.workloads.split(",")):
        measure(runner, found, size, shapes[size], workload)
    if device.name == "cuda" and find_spec("liger_kernel"):  # Last: it changes classes for good.
        for size, workload in product(sizes, options.workloads.split(",")):
            measure(runner, replace(found, liger=True), size, shapes[size], workload)
    return runner.end()


def _import() -> None:
    """Import all that the parts need, so that what is missing is a line of the output, too."""
    import transformers

    import benchmarks.gpu.speed

    del benchmarks, transformers


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description="Packed rows on a GPU: right, and how fast.")
    parser.add_argument("--limit-s", type=float, default=540.0, help="begin nothing after this")
    parser.add_argument("--sizes", default="0.6B,1.7B", help="models to time")
    parser.add_argument("--workloads", default="grpo,debate", help="kinds of rows to time")
    parser.add_argument("--tokens", type=int, default=16384, help="most tokens of a pack")
    parser.add_argument("--repeats", type=int, default=5, help="timed updates of each setting")
    parser.add_argument("--peak-tflops", type=float, help="of dense bfloat16; else by its name")
    parser.add_argument("--cpu-smoke", action="store_true", help="all parts, tiny, on the CPU")
    options = parser.parse_args(arguments)
    if options.cpu_smoke:
        options.tokens, options.repeats = 256, 1
    return options


def peak_of(options: argparse.Namespace) -> float | None:
    """Return the peak in FLOP/s that utilisation refers to, None where it is not known."""
    from debate_train.monitoring.throughput import peak_flops

    return peak_flops(options.peak_tflops)


class Runner:
    """Runs parts one after the other, whatever becomes of each, within a limit of time."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s, self._began = limit_s, time.monotonic()
        self.failed: list[str] = []

    def seconds(self) -> float:
        """Return how long the run has lasted."""
        return time.monotonic() - self._began

    def attempt(self, name: str, part: Callable[[], bool | None]) -> bool:
        """Run a part; return whether it went through. False from the part is a failed check."""
        if self.seconds() > self._limit_s:
            self.line(f"gpu/{name}", {"skipped": f"after {self._limit_s:g} s"})
            return False
        try:
            passed = part() is not False
        except Exception as error:
            passed = False
            reason = "".join(traceback.format_exception_only(error)).strip()
            where = traceback.format_exc().strip().splitlines()[-6:]
            self.line(f"gpu/{name}", {"error": reason[:2000], "where": where})
            free_memory()
        if not passed:
            self.failed.append(name)
        return passed

    def end(self) -> int:
        """Print the last line; return the exit code."""
        self.line("gpu/done", {"seconds": round(self.seconds(), 1), "failed": self.failed})
        return 1 if self.failed else 0

    def line(self, benchmark: str, found: dict[str, Any]) -> None:
        """Print a line that is no measurement."""
        print(json.dumps({"benchmark": benchmark} | found), flush=True)


def free_memory() -> None:
    """Give back what a failed part held."""
    import gc

    gc.collect()
    try:
        import torch
    except ImportError:
        return
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    raise SystemExit(main())
