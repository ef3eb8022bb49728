"""Denominators: what each token of a step counts in the loss, whatever pack or rank it is in.

A mean is taken over units, and in each unit over its tokens: a token of unit u counts
1 / (units · tokens of u). The unit is the whole step (`token_mean_batch`), what all agents say who
began with one and the same prompt (`token_mean_group`) or the turn (`sequence_mean`). Each stream
has denominators of its own, over the tokens it covers, zero advantages included; the loss sums
streams before it clips.
All counts are over the whole optimizer step, all micro-batches and ranks.

Of the advantage of a token (docs/notation.md) it multiplies in n_s, a stream's own denominators.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from debate_train.batches.row_types import Batch, Floats, Row
    from debate_train.losses.loss_inputs import Aggregation

Bools = NDArray[np.bool_]


def weigh(
    batch: "Batch", aggregation: "Aggregation | Literal['pair_mean']"
) -> "tuple[Batch, list[Floats]]":
    """Return the rows of one optimizer step ready for a loss, and what each token counts.

    Args:
        batch: all rows of the step.
        aggregation: the loss's.

    Returns:
        The batch, its credits A_s · w_s / w and advantages their sum, such that w times them is
        the sum over streams of their own means; and w of each row, shape (T,).

    Source: `token_mean_group` is eq. 7 of Liu et al., "Self-Debate Reinforcement Learning". Its
    expectation is over the elements of the batch of Algorithm 1: (q, …) and (q_d, …) are two.
    """
    if not batch.rows:
        return batch, []
    rows, sampled = batch.rows, np.concatenate([row.mask > 0 for row in batch.rows])
    if aggregation == "pair_mean":
        return batch, _split(_pair_weights(rows), rows)
    units = None if aggregation == "token_sum" else _units(rows, aggregation)
    weights = _weights(units, sampled)
    credits = [row.credits for row in rows if row.credits is not None]
    if len(credits) < len(rows):
        return batch, _split(weights, rows)
    covers = np.concatenate([row.streams for row in rows])
    scaled = np.concatenate(credits, axis=1).astype(np.float64)
    for stream, values in enumerate(scaled):
        own = _weights(units, sampled & ((covers >> stream) & 1 > 0))
        values *= np.divide(own, weights, where=sampled, out=np.zeros_like(own))
    parts = zip(rows, _split(scaled, rows), strict=True)
    ready = tuple(replace(row, advantages=part.sum(axis=0), credits=part) for row, part in parts)
    return replace(batch, rows=ready), _split(weights, rows)


def _units(rows: "Sequence[Row]", aggregation: "Aggregation") -> NDArray[np.int64]:
    """Return for each token the number of the unit that it belongs to."""
    found, turns = [], 0
    for row in rows:
        if aggregation == "sequence_mean":
            found.append(row.segments + turns)
            turns += int(row.segments.max(initial=0)) + 1
        else:
            unit = row.group if aggregation == "token_mean_group" else 0
            found.append(np.full(len(row), unit, np.int64))
    return np.concatenate(found)


def _weights(units: NDArray[np.int64] | None, counted: Bools) -> NDArray[np.float64]:
    """Return 1 / (units · tokens of the unit) of each counted token, 0 of others."""
    weights = counted.astype(np.float64)
    if units is not None and counted.any():
        names, place, sizes = np.unique(units[counted], return_inverse=True, return_counts=True)
        weights[counted] = 1 / (len(names) * sizes[place])
    return weights


def _pair_weights(rows: "Sequence[Row]") -> NDArray[np.float64]:
    """Return 1 / pairs for the sampled tokens of paired rows, 0 for others.

    Raises:
        ValueError: A pair is not one chosen and one rejected row.
    """
    signs: dict[int, list[float]] = {}
    for row in rows:
        if row.pair >= 0:
            signs.setdefault(row.pair, []).append(float(np.sign(row.advantages.sum())))
    for pair, found in signs.items():
        if sorted(found) != [-1.0, 1.0]:
            raise ValueError(
                f"preference pair {pair}: found rows with advantages of sign "
                f"{', '.join(f'{sign:+.0f}' for sign in found)}; expected two rows, one with "
                "positive (chosen) and one with negative (rejected) advantages"
            )
    each = 1 / max(len(signs), 1)
    return np.concatenate([(row.mask > 0) * (each if row.pair >= 0 else 0.0) for row in rows])


def _split(values: NDArray[np.float64], rows: "Sequence[Row]") -> "list[Floats]":
    ends = np.cumsum([len(row) for row in rows])[:-1]
    return [part.astype(np.float32) for part in np.split(values, ends, axis=-1)]
