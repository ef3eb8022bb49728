"""From examples to rows of tokens: one row of each that is imitated, two of each pair."""

from collections.abc import Sequence

import numpy as np

from debate_train.batches.row_types import Batch, Row
from debate_train.offline.example import Completion, Example

STREAM = "generator"
"""The stream that all tokens of examples are in."""


def example_batch(examples: Sequence[Example], seed: int) -> Batch:
    """Return the rows of a step.

    Args:
        examples: All with token ids; the chosen reply of a pair has advantage 1, the rejected one
            −1, and a reply that is imitated its weight.
        seed: Of the batch.
    """
    rows: list[Row] = []
    for number, example in enumerate(examples):
        is_pair = example.rejected is not None
        pair = number if is_pair else -1
        rows.append(_row(example, example.chosen, example.weight, number, pair))
        if example.rejected is not None:
            rows.append(_row(example, example.rejected, -1.0, number, pair))
    sampled = sum(int(row.mask.sum()) for row in rows)
    return Batch(tuple(rows), (STREAM,), sampled, len(rows), seed)


def _row(example: Example, said: Completion, advantage: float, number: int, pair: int) -> Row:
    shown, length = len(example.prompt_ids), len(said.token_ids)
    is_said = np.repeat((0, 1), (shown, length))
    advantages = (advantage * is_said).astype(np.float32)
    return Row(
        tokens=np.array([*example.prompt_ids, *said.token_ids], np.int64),
        mask=is_said.astype(np.float32),
        advantages=advantages,
        sampler_logps=np.zeros(shown + length, np.float32),
        temperatures=np.ones(shown + length, np.float32),
        streams=is_said.astype(np.int64),
        versions=np.where(is_said > 0, example.weight_version, -1).astype(np.int64),
        segments=is_said.astype(np.int64),
        agent=example.agent,
        debate=number,
        group=number,
        adapter=example.adapter,
        pair=pair,
        credits=None if example.rejected is not None else advantages[None, :],
    )


def lengths(examples: Sequence[Example]) -> dict[str, float]:
    """Return the mean length in tokens of what is chosen, and of what is rejected."""
    chosen = [len(one.chosen.token_ids) for one in examples]
    rejected = [len(one.rejected.token_ids) for one in examples if one.rejected is not None]
    found = {"chosen": chosen, "rejected": rejected}
    return {f"offline/{name}_tokens": float(np.mean(n)) for name, n in found.items() if n}
