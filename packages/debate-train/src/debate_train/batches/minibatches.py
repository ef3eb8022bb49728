"""Several updates a batch: which rows each of them takes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from debate_train.batches.row_types import Batch


def minibatches(batch: "Batch", size: int | None) -> "list[Batch]":
    """Return the rows of a batch in equal parts of at most `size`, drawn by the batch's seed.

    The two rows of a preference pair stay together and count as one. Each part is the batch of
    one update: its counts are denominators of its own. With None there is one part.
    """
    if size is None or not batch.rows:
        return [batch]
    units: dict[object, list[int]] = {}
    for number, row in enumerate(batch.rows):
        units.setdefault(("pair", row.pair) if row.pair >= 0 else number, []).append(number)
    members = list(units.values())
    order = np.random.default_rng(batch.seed).permutation(len(members))
    parts = np.array_split(order, part_count(len(members), size))
    # Rows keep their order within a part: what begins alike stays together.
    return [_taken(batch, sorted(n for unit in part for n in members[unit])) for part in parts]


def part_count(rows: int, size: int | None) -> int:
    """Return into how many minibatches so many rows are split."""
    return 1 if size is None else max(1, -(-rows // size))


def _taken(batch: "Batch", numbers: Sequence[int]) -> "Batch":
    rows = tuple(batch.rows[number] for number in numbers)
    return replace(
        batch,
        rows=rows,
        sampled_tokens=sum(int(row.mask.sum()) for row in rows),
        turns=sum(int(row.segments.max(initial=0)) for row in rows),
    )
