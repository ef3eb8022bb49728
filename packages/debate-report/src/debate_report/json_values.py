"""Values of files that may be damaged, each read as its expected type or as nothing."""

import json
from collections.abc import Mapping
from pathlib import Path

# Sums and differences of larger numbers overflow.
LARGEST = 1e100


def finite(value: object) -> float | None:
    """Read a number that can be drawn: not NaN, infinite or too large; else `None`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -LARGEST <= value <= LARGEST else None


def as_mapping(value: object) -> Mapping[str, object]:
    """Read an object; empty for any other value."""
    return value if isinstance(value, Mapping) else {}


def as_list(value: object) -> list[object]:
    """Read a list; empty for any other value."""
    return value if isinstance(value, list) else []


def as_mappings(values: object) -> list[Mapping[str, object]]:
    """Read the objects of a list, without its other values."""
    return [value for value in as_list(values) if isinstance(value, Mapping)]


def read_text(path: Path) -> str:
    """Read a text file; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def read_object(path: Path) -> dict[str, object] | None:
    """Read a file with one JSON object; `None` where it has none."""
    value = parse_json(read_text(path))
    return value if isinstance(value, dict) else None


def parse_json(text: str) -> object:
    """Parse JSON; `None` where it is damaged, or has numbers with more digits than Python reads."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
