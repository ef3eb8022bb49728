"""Rows of tokens, made by hand."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from debate_train.batches.row_types import Row

ONE_TURN = {"advantages": 0, "sampler_logps": 0, "temperatures": 1}
ONE_TURN |= {"streams": 1, "segments": 1, "versions": 0}


def row_of(tokens: ArrayLike, sampled: ArrayLike, **fields: Any) -> Row:
    """Make a row, by default of one turn of one stream.

    Args:
        tokens: Ids of prompts and replies.
        sampled: True on sampled tokens.
        fields: Other fields of `Row.of_tokens`; a number holds for every token.
    """
    fields = {"agent": 0, "debate": 0} | ONE_TURN | fields
    for name in ONE_TURN:
        if np.ndim(fields[name]) == 0:
            fields[name] = np.broadcast_to(fields[name], np.shape(tokens))
    return Row.of_tokens(tokens, sampled, **fields)
