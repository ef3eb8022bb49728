"""Several updates a batch: every row in one of them, pairs together, denominators of its own."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from debate_train.batches.minibatches import minibatches
from debate_train.batches.rows import Batch

pytestmark = pytest.mark.numeric

MakeBatch = Callable[..., Batch]
LENGTHS = tuple(range(5, 25))


def numbers(part: Batch) -> list[int]:
    return [row.debate for row in part.rows]


def test_minibatches_hold_every_row_once_and_are_of_equal_size(random_batch: MakeBatch) -> None:
    batch = random_batch(lengths=LENGTHS)
    parts = minibatches(batch, 3)
    assert sorted(n for part in parts for n in numbers(part)) == list(range(20))
    assert [len(part.rows) for part in parts] == [7, 7, 6]
    for part in parts:
        assert numbers(part) == sorted(numbers(part))
        assert part.sampled_tokens == sum(len(row) - 3 for row in part.rows)
        assert part.turns == len(part.rows)


def test_minibatches_are_drawn_by_the_batchs_seed(random_batch: MakeBatch) -> None:
    batch = random_batch(lengths=LENGTHS)
    drawn = [[numbers(p) for p in minibatches(replace(batch, seed=s), 4)] for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] != [[*range(5)], [*range(5, 10)], [*range(10, 15)], [*range(15, 20)]]


def test_one_minibatch_is_the_batch(random_batch: MakeBatch) -> None:
    batch = random_batch()
    assert minibatches(batch, 1) == [batch]
    nothing = replace(batch, rows=())
    assert minibatches(nothing, 4) == [nothing]


def test_fewer_rows_than_minibatches_make_fewer(random_batch: MakeBatch) -> None:
    assert [len(part.rows) for part in minibatches(random_batch(lengths=(9, 9)), 5)] == [1, 1]


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_a_pair_stay_together(random_batch: MakeBatch, seed: int) -> None:
    batch = random_batch(lengths=LENGTHS)
    paired = tuple(replace(row, pair=n % 10) for n, row in enumerate(batch.rows))
    for part in minibatches(replace(batch, rows=paired, seed=seed), 4):
        found = [row.pair for row in part.rows]
        assert np.bincount(found).max() == 2
        assert len(found) == 2 * len(set(found))
