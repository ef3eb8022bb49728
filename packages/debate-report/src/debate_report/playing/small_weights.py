"""Weights of small models, read without torch and packed for the page."""

import base64
import json
import math
import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from debate_report.json_values import as_list, as_mapping, parse_json

# Two sets in base64 leave room in a page of 3 MB. Rounded to 16 bits, each row by a scale of its
# own, a log-probability in a thousand was off by 1e-3 to 1e-2, so weights stay float32.
MAX_WEIGHT_BYTES = 800_000
# A file may hold a tied output head a second time, and names its tensors first.
MAX_FILE_BYTES = 2 * MAX_WEIGHT_BYTES


class NotPlayableError(Exception):
    """Says why the page cannot sample the debaters of a run."""


@dataclass(frozen=True, slots=True)
class WeightFile:
    """A safetensors file: values and shape of each tensor, and the metadata."""

    values: "Mapping[str, array[float]]"
    shapes: Mapping[str, tuple[int, ...]]
    metadata: Mapping[str, object]


def read_weights(path: Path) -> WeightFile:
    """Read a small safetensors file of float32 tensors.

    Raises:
        NotPlayableError: The file is missing, damaged, too large, or of another type.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise NotPlayableError(f"{path.name}: expected at most {MAX_FILE_BYTES:,} bytes")
        content = path.read_bytes()
    except OSError as error:
        raise NotPlayableError(f"{path.name}: {error.strerror}") from error
    if len(content) < 8:
        raise NotPlayableError(f"{path.name}: found {len(content)} bytes, expected safetensors")
    (header_length,) = struct.unpack("<Q", content[:8])
    header = as_mapping(parse_json(content[8 : 8 + header_length].decode(errors="replace")))
    if not header:
        raise NotPlayableError(f"{path.name}: its header cannot be read")
    body = content[8 + header_length :]
    values = {}
    shapes = {}
    for name, description in header.items():
        if name == "__metadata__":
            continue
        details = as_mapping(description)
        if details.get("dtype") != "F32":
            raise NotPlayableError(
                f"{path.name}, {name}: found {details.get('dtype')}, expected F32"
            )
        start, end = _as_sizes(details.get("data_offsets")) or (0, -1)
        shape = _as_sizes(details.get("shape")) or (-1,)
        if start > end or end > len(body) or 4 * math.prod(shape) != end - start:
            raise NotPlayableError(f"{path.name}, {name}: its place or shape is damaged")
        numbers = array("f", body[start:end])
        if sys.byteorder == "big":
            numbers.byteswap()
        values[name] = numbers
        shapes[name] = shape
    return WeightFile(values, shapes, as_mapping(header.get("__metadata__")))


def _as_sizes(value: object) -> tuple[int, ...] | None:
    sizes = as_list(value)
    if not sizes or not all(isinstance(size, int) and size >= 0 for size in sizes):
        return None
    return tuple(size for size in sizes if isinstance(size, int))


def pack_weights(weights: WeightFile, names: Sequence[str]) -> str:
    """Pack float32 tensors one after the other, little-endian, in base64."""
    packed = array("f")
    for name in names:
        values = weights.values[name]
        if not all(map(math.isfinite, values)):
            raise NotPlayableError(f"{name}: has weights that are not finite")
        packed.extend(values)
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode()


def read_config(path: Path) -> Mapping[str, object]:
    """Read a JSON file of a checkpoint.

    Raises:
        NotPlayableError: It is missing or damaged.
    """
    try:
        return as_mapping(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise NotPlayableError(f"{path.name}: {error}") from error
