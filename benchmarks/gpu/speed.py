"""How fast is an update of packed rows, and which share of the device's peak does it use?"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from benchmarks.gpu.checks import PACKAGES, turn_on_checkpointing
from benchmarks.gpu.models import (
    Shape,
    Spans,
    debate_rows,
    grpo_rows,
    make_batch,
    make_model,
    make_packs,
    model_flops,
    update,
)
from benchmarks.measurement import print_line

WORKLOADS: dict[str, Callable[[], list[Spans]]] = {
    "grpo": lambda: grpo_rows(8, 8, 512, 512),
    "debate": lambda: debate_rows(4, 5, 3, 600, 250),
}
TINY_WORKLOADS: dict[str, Callable[[], list[Spans]]] = {
    "grpo": lambda: grpo_rows(2, 4, 40, 12),
    "debate": lambda: debate_rows(1, 3, 2, 40, 12),
}
ABOUT = {
    "grpo": "8 questions x 8 replies, prompt 512 tokens, replies log-normal, median 512",
    "debate": "4 debates x 5 agents x 3 rounds, opening 600 tokens shared by a debate's agents, "
    "replies log-normal, median 250; told what the others said",
}


class Attempts(Protocol):
    """Runs parts that may fail."""

    def attempt(self, name: str, part: Callable[[], bool | None]) -> bool:
        """Run one."""
        ...


@dataclass(frozen=True, slots=True)
class Device:
    """What is measured on, and how."""

    name: str
    peak_flops: float | None
    """FLOP/s that utilisation refers to."""
    tokens: int = 16384
    """Most tokens of a pack."""
    repeats: int = 5
    liger: bool = False
    """Whether layers are those of liger-kernel; shared prefixes alone are measured then."""

    @property
    def dtype(self) -> torch.dtype:
        """What models are computed in."""
        return torch.bfloat16 if self.name == "cuda" else torch.float32


def measured_peak(device: Device) -> None:
    """Print what a large matrix product reaches: a bound on any utilisation."""
    size, times = (8192, 20) if device.name == "cuda" else (256, 2)
    a = torch.randn(size, size, device=device.name, dtype=device.dtype)
    b = torch.randn(size, size, device=device.name, dtype=device.dtype)
    found = []
    for repeat in range(device.repeats + 1):
        started = _now(device)
        for _ in range(times):
            a @ b
        seconds = _now(device) - started
        if repeat:
            found.append(2 * size**3 * times / seconds / 1e12)
    settings = {"size": size, "dtype": str(device.dtype), "peak_tflops": _tera(device.peak_flops)}
    print_line("gpu/matmul", found, "TFLOP/s", "higher", settings | _device(), PACKAGES)


def measure(runner: Attempts, device: Device, size: str, shape: Shape, workload: str) -> None:
    """Print the speed of an update for every way of packing, with and without checkpointing."""
    kept: dict[str, Any] = {}

    def make() -> None:
        kept["model"] = make_model(shape, device.name, device.dtype)
        if device.liger:
            from transformers.integrations.liger import apply_liger_kernel

            ours = {"cross_entropy": False, "fused_linear_cross_entropy": False}
            apply_liger_kernel(kept["model"], ours)
        spans = (WORKLOADS if device.name == "cuda" else TINY_WORKLOADS)[workload]()
        kept["batch"] = make_batch(spans, shape.vocab_size)

    if not runner.attempt(f"speed/{size}/{workload}/model", make):
        return
    seconds: dict[tuple[str, bool], float] = {}
    layers = "_liger" if device.liger else ""
    for checkpointing in (False, True):
        for share in ("prefix",) if device.liger else ("prefix", "rows", "none"):
            name = f"speed/{size}/{workload}/{share}{layers}/{_named(checkpointing)}"

            def part(name: str = name, share: str = share, again: bool = checkpointing) -> None:
                seconds[share, again] = _speed(f"gpu/{name}", device, shape, kept, (share, again))

            runner.attempt(name, part)
    for share in ("rows", "none"):
        for again in (False, True):
            if (share, again) in seconds and ("prefix", again) in seconds:
                ratio = seconds[share, again] / seconds["prefix", again]
                line = f"gpu/speed/{size}/{workload}/prefix_over_{share}/{_named(again)}"
                settings = {"of": "time of an update", "workload": ABOUT[workload]} | _device()
                print_line(line, [ratio], "ratio", "higher", settings, PACKAGES)
    kept.clear()
    if device.name == "cuda":
        torch.cuda.empty_cache()


def _speed(
    line: str, device: Device, shape: Shape, kept: dict[str, Any], how: tuple[str, bool]
) -> float:
    """Print the lines of one setting; return the median seconds of an update."""
    share, again = how
    model, batch = kept["model"], kept["batch"]
    model.zero_grad(set_to_none=True)
    if again:
        turn_on_checkpointing(model)
    else:
        model.gradient_checkpointing_disable()
    packs = make_packs(batch, device.tokens, share)
    flops, tokens, actions = model_flops(shape, packs)
    _now(device)
    if device.name == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    found, loss = [], 0.0
    for repeat in range(device.repeats + 1):
        started = _now(device)
        model.zero_grad(set_to_none=True)
        loss, _ = update(model, packs, device.name)
        if repeat:  # the first pass warms up
            found.append(_now(device) - started)
    if loss != loss:
        raise ArithmeticError("the loss is not a number")
    settings: dict[str, Any] = {
        "share": share, "checkpointing": again, "dtype": str(device.dtype), "loss": loss,
        "packs": len(packs), "tokens_per_pack": device.tokens, "rows": len(batch.rows),
        "row_tokens": sum(len(row) for row in batch.rows), "computed_tokens": tokens,
        "padded_tokens": sum(pack.tokens_BT.numel() for pack in packs), "actions": actions,
        "model_tflop": _tera(flops), "peak_tflops": _tera(device.peak_flops),
        "left_out": "packing on the CPU, gradient norm and optimizer",
    } | _device()  # fmt: skip
    if device.name == "cuda":
        settings["peak_memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    speeds = [settings["row_tokens"] / seconds for seconds in found]
    print_line(f"{line}/row_tokens", speeds, "tokens/s", "higher", settings, PACKAGES)
    if device.peak_flops is not None:
        shares = [flops / seconds / device.peak_flops for seconds in found]
        print_line(f"{line}/mfu", shares, "ratio", "higher", settings, PACKAGES)
    return sorted(found)[len(found) // 2]


def _now(device: Device) -> float:
    if device.name == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _named(checkpointing: bool) -> str:
    return "checkpointing_on" if checkpointing else "checkpointing_off"


def _tera(value: float | None) -> float | None:
    return None if value is None else round(value / 1e12, 4)


def _device() -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {}
    found = torch.cuda.get_device_properties(0)
    return {"gpu": found.name, "gpu_memory_gib": round(found.total_memory / 2**30, 1)}
