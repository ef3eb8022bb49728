"""A batch's rows: denominators of the whole step, worked by hand, and several updates a batch."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arithmetic import UNIT
from debate_train.batches.row_types import Batch, minibatches, part_count, weigh
from train.made_rows import row_of

pytestmark = pytest.mark.numeric

MEANS = ("token_mean_batch", "token_mean_group", "sequence_mean")


def make_row(segments, credits=None, *, group=0, pair=-1, streams=None):
    """Make a row of these turns, numbered by token; no agent sampled the tokens of segment 0."""
    return row_of(
        np.arange(len(segments)),
        np.array(segments) > 0,
        advantages=0 if credits is None else np.sum(credits, 0),
        streams=streams or 0,
        segments=segments,
        group=group,
        pair=pair,
        credits=credits,
    )


def make_batch(*rows, streams=("generator",)):
    return Batch(
        rows,
        streams,
        sampled_tokens=sum(int(row.mask.sum()) for row in rows),
        turns=sum(int(row.over_tokens("segments").max()) for row in rows),
    )


def weights_by_token(batch, aggregation):
    """Compute each row's weights, with 0 for tokens that were not sampled."""
    rows_weights = weigh(batch, aggregation)[1]
    pairs = zip(batch.rows, rows_weights, strict=True)
    return [replace(row, advantages=w).over_tokens("advantages").tolist() for row, w in pairs]


THREE_ROWS = make_batch(
    make_row([0, 1, 1, 0, 2], group=7),
    make_row([0, 1, 1, 1, 0], group=9),
    make_row([0, 0, 1, 1], group=9),
)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token_sum", [[0, 1, 1, 0, 1], [0, 1, 1, 1, 0], [0, 0, 1, 1]]),
        # 8 sampled tokens.
        (
            "token_mean_batch",
            [[0, 1 / 8, 1 / 8, 0, 1 / 8], [0, 1 / 8, 1 / 8, 1 / 8, 0], [0, 0, 1 / 8, 1 / 8]],
        ),
        # Two questions, of 3 and 5 sampled tokens: 1/6 and 1/10.
        (
            "token_mean_group",
            [[0, 1 / 6, 1 / 6, 0, 1 / 6], [0, 1 / 10, 1 / 10, 1 / 10, 0], [0, 0, 1 / 10, 1 / 10]],
        ),
        # Four turns, of 2, 1, 3 and 2 tokens: 1/8, 1/4, 1/12, 1/8.
        (
            "sequence_mean",
            [[0, 1 / 8, 1 / 8, 0, 1 / 4], [0, 1 / 12, 1 / 12, 1 / 12, 0], [0, 0, 1 / 8, 1 / 8]],
        ),
    ],
)
def test_weights_are_reciprocals_of_the_counts_of_the_whole_step(aggregation, expected):
    weights = weights_by_token(THREE_ROWS, aggregation)
    for row_weights, expected_weights in zip(weights, expected, strict=True):
        assert row_weights == pytest.approx(expected_weights)


@settings(derandomize=True)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(0, 2)),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(MEANS),
)
def test_weights_of_a_mean_add_up_to_1(segments_and_groups, aggregation):
    rows = [make_row(sorted(segments), group=group) for segments, group in segments_and_groups]
    weights = weigh(make_batch(*rows), aggregation)[1]
    assert all(row_weights.dtype == np.float32 for row_weights in weights)
    total = sum(float(row_weights.sum(dtype=np.float64)) for row_weights in weights)
    is_any_sampled = any(row.mask.any() for row in rows)
    # Rounded to float32: the quotient, and with two kinds of denominators their product.
    assert total == pytest.approx(float(is_any_sampled), abs=2 * UNIT)


# Two streams over three turns; the second covers the later half of each turn only.
TWO_STREAMS = make_batch(
    make_row(
        [0, 1, 1, 1, 0, 2],
        [[0, 1, 2, 0, 0, 3], [0, 0, 0, 4, 0, 0]],
        streams=[0, 1, 1, 2, 0, 1],
    ),
    make_row([0, 1, 1], [[0, 5, 0], [0, 6, 7]], streams=[0, 3, 2], group=1),
    streams=("generator", "judge"),
)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token_sum", 1 + 2 + 3 + 4 + 5 + 6 + 7),
        # The generator covers 4 tokens, the judge 3.
        ("token_mean_batch", 11 / 4 + 17 / 3),
        # Generator: question 0 has 3 tokens, question 1 one: (6/3 + 5)/2. Judge: 1 and 2 tokens.
        ("token_mean_group", (6 / 3 + 5) / 2 + (4 + 13 / 2) / 2),
        # Generator: three turns with 2, 1 and 1 tokens; judge: two turns with 1 and 2.
        ("sequence_mean", (3 / 2 + 3 + 5) / 3 + (4 + 13 / 2) / 2),
    ],
)
def test_each_stream_is_a_mean_over_the_tokens_it_covers(aggregation, expected):
    batch, weights = weigh(TWO_STREAMS, aggregation)
    total = 0.0
    for row, row_weights in zip(batch.rows, weights, strict=True):
        total += float(row_weights.astype(np.float64) @ row.advantages)
        assert not row.over_tokens("advantages")[row.mask == 0].any()
    # Weights, credits and their products are rounded to float32; all terms are positive.
    assert total == pytest.approx(expected, rel=3 * UNIT)


@pytest.mark.parametrize("aggregation", ["token_sum", *MEANS])
def test_weights_of_nothing_are_0(aggregation):
    assert weights_by_token(make_batch(make_row([0, 0])), aggregation) == [[0, 0]]
    assert weights_by_token(make_batch(), aggregation) == []


def test_pairs_count_alike_and_rows_without_a_pair_nothing():
    chosen = [[0, 2, 0]]
    rejected = [[0, -1, -1]]
    batch = make_batch(
        make_row([0, 1, 1], chosen, pair=5),
        make_row([0, 1, 1], chosen),
        make_row([0, 1, 1], rejected, pair=5),
        make_row([0, 1, 1], rejected, pair=0),
        make_row([1, 1, 1], chosen, pair=0),
    )
    # Two pairs: every action of a pair has its weight, 1/2.
    expected = [[0, 0.5, 0.5], [0, 0, 0], [0, 0.5, 0.5], [0, 0.5, 0.5], [0.5, 0.5, 0.5]]
    assert weights_by_token(batch, "pair_mean") == expected


@pytest.mark.parametrize("signs", [(1.0,), (1.0, 1.0), (1.0, -1.0, -1.0), (1.0, 0.0)])
def test_pair_that_is_not_one_chosen_and_one_rejected_is_refused(signs):
    rows = [make_row([0, 1], [[0, sign]], pair=3) for sign in signs]
    with pytest.raises(ValueError, match="preference pair 3: found rows"):
        weigh(make_batch(*rows), "pair_mean")


def debates_of(batch):
    return [row.debate for row in batch.rows]


@pytest.mark.parametrize(
    ("num_rows", "row_counts"),
    [
        (24, [8, 8, 8]),
        (17, [6, 5, 6]),
        (3, [3]),
    ],
)
def test_minibatches_hold_every_row_once_and_are_of_equal_size(random_batch, num_rows, row_counts):
    batch = random_batch(lengths=range(5, 5 + num_rows))
    updates = minibatches(batch, 8)
    assert [len(update.rows) for update in updates] == row_counts
    assert part_count(num_rows, 8) == len(row_counts)
    numbers = [debates_of(update) for update in updates]
    assert sorted(chain(*numbers)) == list(range(num_rows))
    for update, update_numbers in zip(updates, numbers, strict=True):
        assert update_numbers == sorted(update_numbers)
        assert update.sampled_tokens == sum(len(row) - 3 for row in update.rows)
        assert update.turns == len(update.rows)


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_a_prompt_stay_together_unless_they_are_more_than_an_update(random_batch, seed):
    # 16 questions of 8 replies, 8 debate prompts of 8 and 8 of 5 (the others had no advantage):
    # 232 rows in updates of about 32, as many as the paper's 128 would be of 928.
    sizes = [8] * 24 + [5] * 8
    groups = np.repeat(range(len(sizes)), sizes)
    rows = random_batch(lengths=[9] * len(groups)).rows
    rows = tuple(replace(row, group=group) for row, group in zip(rows, groups, strict=True))
    batch = replace(random_batch(), rows=rows, seed=seed)
    updates = minibatches(batch, 32)
    assert len(updates) == part_count(232, 32) == 8
    num_groups = 0
    for update in updates:
        num_groups += len({row.group for row in update.rows})
    assert num_groups == len(sizes)
    assert all(abs(len(update.rows) - 29) <= 8 for update in updates)
    assert len(minibatches(replace(batch, rows=rows[:8]), 4)) == 2


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_a_pair_stay_together(random_batch, seed):
    batch = random_batch(lengths=range(5, 25))
    rows = tuple(replace(row, pair=number % 10) for number, row in enumerate(batch.rows))
    for update in minibatches(replace(batch, rows=rows, seed=seed), 3):
        rows_of_pair = np.bincount([row.pair for row in update.rows])
        assert set(rows_of_pair) <= {0, 2}
