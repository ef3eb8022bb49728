"""Several updates a batch: every row in one of them, pairs together, denominators of its own."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from debate_train.batches.row_types import Batch, minibatches, part_count

pytestmark = pytest.mark.numeric

MakeBatch = Callable[..., Batch]
LENGTHS = tuple(range(5, 25))


def numbers(part: Batch) -> list[int]:
    return [row.debate for row in part.rows]


def test_minibatches_hold_every_row_once_and_are_of_equal_size(random_batch: MakeBatch) -> None:
    batch = random_batch(lengths=LENGTHS)
    parts = minibatches(batch, 8)  # 20 rows: two parts would have 10.
    assert sorted(n for part in parts for n in numbers(part)) == list(range(20))
    assert [len(part.rows) for part in parts] == [7, 6, 7]
    for part in parts:
        assert numbers(part) == sorted(numbers(part))
        assert part.sampled_tokens == sum(len(row) - 3 for row in part.rows)
        assert part.turns == len(part.rows)


def test_minibatches_are_drawn_by_the_batchs_seed(random_batch: MakeBatch) -> None:
    batch = random_batch(lengths=LENGTHS)
    drawn = [[numbers(p) for p in minibatches(replace(batch, seed=s), 5)] for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] != [[*range(5)], [*range(5, 10)], [*range(10, 15)], [*range(15, 20)]]


def test_one_minibatch_is_the_batch(random_batch: MakeBatch) -> None:
    batch = random_batch()
    assert minibatches(batch, None) == [batch]
    nothing = replace(batch, rows=())
    assert minibatches(nothing, 4) == [nothing]


def test_more_rows_make_more_minibatches_of_the_size(random_batch: MakeBatch) -> None:
    # DAPO's batch of 16 rows, and one of SDRL with 8 second turns beside them: 2 and 3 updates.
    for rows, parts in ((16, [8, 8]), (24, [8, 8, 8]), (17, [6, 5, 6]), (3, [3])):
        found = minibatches(random_batch(lengths=[9] * rows), 8)
        assert [len(part.rows) for part in found] == parts
        assert part_count(rows, 8) == len(parts)


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_a_prompt_stay_together_unless_they_are_more_than_an_update(
    random_batch: MakeBatch, seed: int
) -> None:
    # 16 questions of 8 replies, 8 debate prompts of 8 and 8 of 5 (the others had no advantage):
    # 232 rows in updates of about 32, as many as the paper's 128 would be of 928.
    sizes = [8] * 24 + [5] * 8
    groups = [group for group, size in enumerate(sizes) for _ in range(size)]
    whole = random_batch(lengths=[9] * len(groups))
    rows = tuple(replace(r, group=g) for r, g in zip(whole.rows, groups, strict=True))
    parts = minibatches(replace(whole, rows=rows, seed=seed), 32)
    assert len(parts) == part_count(232, 32) == 8
    found = [{row.group for row in part.rows} for part in parts]
    assert sum(map(len, found)) == len(sizes)
    assert all(abs(len(part.rows) - 29) <= 8 for part in parts)
    assert len(minibatches(replace(whole, rows=rows[:8], seed=seed), 4)) == 2


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_a_pair_stay_together(random_batch: MakeBatch, seed: int) -> None:
    batch = random_batch(lengths=LENGTHS)
    paired = tuple(replace(row, pair=n % 10) for n, row in enumerate(batch.rows))
    for part in minibatches(replace(batch, rows=paired, seed=seed), 3):
        found = [row.pair for row in part.rows]
        assert np.bincount(found).max() == 2
        assert len(found) == 2 * len(set(found))
