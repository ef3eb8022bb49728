"""One measurement as the JSON line that every benchmark prints; see README.md."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Literal


def print_line(
    benchmark: str,
    values: Sequence[float],
    unit: str,
    better: Literal["higher", "lower"],
    settings: Mapping[str, Any],
    packages: Sequence[str],
) -> None:
    """Print the line of one measurement: the median of its repeats and their spread."""
    line = {
        "benchmark": benchmark,
        "value": _five_digits(median(values)),
        "unit": unit,
        "better": better,
        "repeats": len(values),
        "spread": [_five_digits(min(values)), _five_digits(max(values))],
        "settings": settings,
        "versions": {"python": platform.python_version()} | {p: version(p) for p in packages},
        "machine": machine(),
    }
    print(json.dumps(line), flush=True)


def _five_digits(value: float) -> float:
    return float(f"{value:.5g}")


def machine() -> dict[str, Any]:
    """Return processor, cores and memory."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        cpu = names[0].partition(":")[2].strip() if names else cpu
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"cpu": cpu, "cores": os.cpu_count(), "memory_gib": round(pages / 2**30, 1)}
