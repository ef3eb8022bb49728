"""What each token's loss is multiplied by before summing, so that sums are the means asked for.

Every denominator counts the whole optimizer step, over all ranks and micro-batches, zero
advantages included: the shares of packs add up to the step's loss however rows are packed.
"""

from typing import TYPE_CHECKING

import numpy as np

from debate_train.losses import Normalise

if TYPE_CHECKING:
    from debate_train.rows import Batch, Floats


def token_weights(batch: "Batch", normalise: Normalise) -> list["Floats"]:
    """Return the weights of each row's tokens, a (T,) array a row; 0 where nothing was sampled."""
    if normalise == "token_sum":
        return [row.mask for row in batch.rows]
    if normalise == "token_mean_batch":
        return [row.mask / np.float32(max(batch.sampled_tokens, 1)) for row in batch.rows]
    weights = []
    for row in batch.rows:
        counts = np.bincount(row.segments, row.mask)[row.segments]
        weights.append((row.mask / (counts.clip(min=1) * max(batch.turns, 1))).astype(np.float32))
    return weights
