"""How much memory do log-probabilities of tokens take beside full logits, and how long?

Forward and backward pass from hidden states and a head's weights, each way in a process of its
own: the peak of its resident memory above what it held before. Gradients are compared first.

    OMP_NUM_THREADS=1 python -m benchmarks.training.logp_memory
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.measurement import print_line
from debate_train.batches.forward import hidden_logps

PACKAGES = ("debate-train", "torch")
Way = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def full(hidden: Tensor, head: Tensor, targets: Tensor, heat: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and entropies from all logits at once."""
    every = (hidden @ head.T / heat[:, None]).log_softmax(-1)
    entropies = -(every.detach().exp() * every.detach()).sum(-1)
    return every.gather(1, targets[:, None])[:, 0], entropies


WAYS: dict[str, Way] = {"ours": hidden_logps, "full": full}


def main() -> None:
    """Print two lines a way and one a ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=32768)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--way", choices=WAYS, help="measure this one here and print raw figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.way:
        print(json.dumps(measured(WAYS[options.way], options)))
        return
    gap = gradient_gap(options)
    if not gap < 1e-5:
        raise SystemExit(f"gradients differ by {gap:.1e} of the largest; nothing is measured")
    settings = {
        "tokens": options.tokens, "hidden": options.hidden, "vocabulary": options.vocabulary,
        "dtype": "float32", "threads": 1, "gradient_gap": float(f"{gap:.1e}"),
    }  # fmt: skip
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(options.repeats):
        for way, lines in found.items():
            lines.append(in_its_own_process(way))
    for name, unit in (("peak", "bytes"), ("time", "s")):
        values = {way: [line[name] for line in lines] for way, lines in found.items()}
        for way, own in values.items():
            print_line(f"logp_memory/{name}_{way}", own, unit, "lower", settings, PACKAGES)
        ratio = [a / b for a, b in zip(values["ours"], values["full"], strict=True)]
        line = f"logp_memory/{name}_ours_over_full"
        print_line(line, ratio, "ratio", "lower", settings, PACKAGES)


def in_its_own_process(way: str) -> dict[str, float]:
    """Return the figures of one way from a fresh process."""
    command = [sys.executable, "-m", "benchmarks.training.logp_memory", *sys.argv[1:], "--way", way]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def data(tokens: int, options: argparse.Namespace) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return hidden states, a head, targets and temperatures."""
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, options.hidden, generator=draw, requires_grad=True)
    head = torch.randn(options.vocabulary, options.hidden, generator=draw).mul_(0.05)
    targets = torch.randint(options.vocabulary, (tokens,), generator=draw)
    return hidden, head.requires_grad_(), targets, torch.full((tokens,), 0.8)


def run(way: Way, given: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    """Make one forward and backward pass."""
    logps, _ = way(*given)
    (logps * torch.linspace(-1, 1, len(logps))).sum().backward()


def measured(way: Way, options: argparse.Namespace) -> dict[str, float]:
    """Return the peak of resident memory above the start, gradients included, and the time."""
    run(way, data(8, options))  # Loads libraries and their buffers.
    given = data(options.tokens, options)
    for leaf in given[:2]:
        leaf.grad = torch.zeros_like(leaf)
    forget_peak()
    before, began = resident("VmRSS"), time.process_time()
    run(way, given)
    return {"peak": resident("VmHWM") - before, "time": time.process_time() - began}


def forget_peak() -> None:
    """Set the peak of resident memory back to what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def resident(kind: str) -> float:
    """Return a figure of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith(kind))


def gradient_gap(options: argparse.Namespace) -> float:
    """Return the largest difference of gradients over the largest slope."""
    slopes: dict[str, list[Any]] = {}
    for name, way in WAYS.items():
        given = data(min(256, options.tokens), options)
        run(way, given)
        slopes[name] = [leaf.grad for leaf in given[:2]]
    pairs = list(zip(slopes["ours"], slopes["full"], strict=True))
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


if __name__ == "__main__":
    main()
