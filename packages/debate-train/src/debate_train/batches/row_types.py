"""Rows of tokens and the batch of a step, of numpy alone: all that packs need to know of them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence; every array has shape (T,) and speaks of the token as a target.

    `mask` is 1 on sampled tokens; `advantages` are Σ λ_s·A_s, 0 elsewhere. `streams` has bit s
    set where stream s of the batch covers the token. `segments` numbers the turns of the row
    from 1, 0 on tokens that nobody sampled.
    """

    tokens: Ints
    mask: Floats
    advantages: Floats
    sampler_logps: Floats
    temperatures: Floats
    streams: Ints
    versions: Ints
    segments: Ints
    agent: int
    debate: int
    group: int = 0
    """Number of the first prompt of the row's agent, within the step."""
    adapter: str | None = None
    """Of the trained policy's adapters the one that sampled the row and learns from it."""
    pair: int = -1
    """Rows with the same number, which land in one pack; -1 stands alone."""
    credits: Floats | None = None
    """What each stream adds to `advantages`, shape (S, T); None where nothing keeps them apart."""

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step, the names of their streams, and counts over the whole step.

    The counts are the denominators of means, so they hold for every rank and micro-batch.
    """

    rows: tuple[Row, ...]
    streams: tuple[str, ...]
    sampled_tokens: int
    turns: int
    seed: int = 0
    """Draws which rows each update takes, where a batch makes several."""
