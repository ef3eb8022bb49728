"""Who moves the policy: shares of the gradient, read off a step's rows before the update."""

from typing import TYPE_CHECKING

import numpy as np

from debate_train.batches.normalisation import weigh

if TYPE_CHECKING:
    from debate_train.batches.row_types import Batch
    from debate_train.losses import Loss


def gradient_shares(batch: "Batch", loss: "Loss") -> dict[str, float]:
    """Return each agent's and each stream's share of the gradient.

    A share is that of Σ w·|A|, w what the token counts and A its advantage: the size of the slopes
    of the loss in log p where ratios are 1. |A| is taken of each stream, before streams are summed.

    Args:
        batch: all rows of the step.
        loss: whose denominators count.
    """
    ready, weights = weigh(batch, loss.aggregation)
    agents: dict[str, float] = {}
    streams = dict.fromkeys(batch.streams, 0.0)
    for row, weight in zip(ready.rows, weights, strict=True):
        size = float(weight @ np.abs(row.advantages))
        agents[f"agent_{row.agent}"] = agents.get(f"agent_{row.agent}", 0.0) + size
        if row.credits is not None:
            sizes = np.abs(row.credits) @ weight
            for name, value in zip(batch.streams, sizes, strict=True):
                streams[name] += float(value)
    found = _shares(dict(sorted(agents.items()))) | _shares(streams)
    return {f"optim/gradient_share/{name}": share for name, share in found.items()}


def _shares(sizes: dict[str, float]) -> dict[str, float]:
    """Return each size over their sum; nothing where there is no gradient."""
    total = sum(sizes.values())
    return {name: size / total for name, size in sizes.items()} if total > 0 else {}
