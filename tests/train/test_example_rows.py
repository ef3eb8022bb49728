"""Rows of examples: the prompt, and the reply that is imitated, preferred or not."""

import numpy as np

from debate_protocol.types import Message
from debate_train.offline import Completion, Example
from debate_train.offline.example_set import example_batch, lengths

PROMPT: Message = {"role": "user", "content": "?"}


def test_rows_of_examples_hold_the_prompt_and_the_reply() -> None:
    pair = Example(
        (PROMPT,), (7, 8), Completion("a", (1, 2)), Completion("b", (3,)), 1, "critic", 5
    )
    alone = Example((PROMPT,), (7,), Completion("c", (4,)))
    batch = example_batch([pair, alone], seed=3)
    tokens = [row.tokens.tolist() for row in batch.rows]
    assert tokens == [[7, 8, 1, 2], [7, 8, 3], [7, 4]]
    masks = [row.mask.tolist() for row in batch.rows]
    assert masks == [[0, 0, 1, 1], [0, 0, 1], [0, 1]]
    assert [row.advantages.sum() for row in batch.rows] == [2, -1, 1]
    assert [row.pair for row in batch.rows] == [0, 0, -1]
    assert [row.adapter for row in batch.rows] == ["critic", "critic", None]
    assert batch.rows[0].over_tokens("versions").tolist() == [-1, -1, 5, 5]
    assert (batch.sampled_tokens, batch.turns) == (4, 3)
    assert lengths([pair, alone]) == {"offline/chosen_tokens": 1.5, "offline/rejected_tokens": 1.0}
    assert all(np.isfinite(row.over_tokens("sampler_logps")).all() for row in batch.rows)
