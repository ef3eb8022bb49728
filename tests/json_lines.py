"""Files of one JSON object a line, as tests write and read them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CLOCKS = ("time", "memory", "tokens_per", "speed", "throughput")
"""Names of metrics that depend on the machine begin so."""


def write_rows(path: Path, rows: Iterable[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def timeless_metrics(run: Path) -> list[dict[str, Any]]:
    """Read the metrics of a run without those that a clock says."""
    rows = read_rows(run / "metrics.jsonl")
    for row in rows:
        for name in [name for name in row if name.startswith(CLOCKS)]:
            del row[name]
    return rows
