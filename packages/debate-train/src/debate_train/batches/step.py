"""What one training step leaves behind."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from debate_protocol.types import Transcript
from debate_rewards.reward import Score
from debate_train.advantages import Baselines
from debate_train.batches.row_types import Batch

if TYPE_CHECKING:
    from debate_train.batches.row_types import Batch


def minibatches(batch: "Batch", size: int | None) -> "list[Batch]":
    """Return the rows of a batch in equal parts of about `size`, drawn by the batch's seed.

    The rows of one prompt stay together, unless they are more than that, and so do the two of a
    preference pair, which count as one. Parts differ by the rows of a prompt at most. Each part is
    the batch of one update: its counts are denominators of its own. With None there is one part.
    """
    if size is None or not batch.rows:
        return [batch]
    members: dict[object, list[int]] = {}
    for number, row in enumerate(batch.rows):
        members.setdefault(("pair", row.pair) if row.pair >= 0 else number, []).append(number)
    groups: dict[int, list[list[int]]] = {}
    for member in members.values():
        groups.setdefault(batch.rows[member[0]].group, []).append(member)
    units = [unit for own in groups.values() for unit in ([own] if len(own) <= size else zip(own))]
    drawn = [units[place] for place in np.random.default_rng(batch.seed).permutation(len(units))]
    # A unit belongs to the part that its middle lies in.
    counts = np.array([len(unit) for unit in drawn])
    parts = part_count(len(members), size)
    places = (np.cumsum(counts) - counts / 2) * parts // len(members)
    taken: dict[float, list[int]] = {}
    for place, unit in zip(places, drawn, strict=True):
        taken.setdefault(place, []).extend(number for member in unit for number in member)
    # Rows keep their order within a part: what begins alike stays together.
    return [_taken(batch, sorted(numbers)) for numbers in taken.values()]


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


@dataclass(frozen=True, slots=True)
class Step:
    """What one step left behind. `number` counts from 0 over the whole run."""

    number: int
    transcripts: Sequence[Transcript]
    scores: Sequence[Score]
    batch: Batch
    metrics: dict[str, float]
    baselines: Baselines = field(default_factory=dict)
    """The running baselines after this step."""
    began: float = 0.0
    """When it began, in seconds of `time.perf_counter`."""
