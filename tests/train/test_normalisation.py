"""Denominators of the whole step, worked by hand; streams and preference pairs."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arithmetic import UNIT
from debate_train.batches.row_types import Batch, Floats, Row, weigh
from debate_train.losses import Aggregation

pytestmark = pytest.mark.numeric

MEANS: Sequence[Aggregation] = ("token_mean_batch", "token_mean_group", "sequence_mean")


def row(
    segments: Sequence[int],
    credits: Sequence[Sequence[float]] | None = None,
    *,
    group: int = 0,
    pair: int = -1,
    streams: Sequence[int] | None = None,
) -> Row:
    """A row whose tokens of segment 0 nobody sampled."""
    size = len(segments)
    parts = None if credits is None else np.array(credits, np.float32)
    return Row.of_tokens(
        tokens=np.arange(size),
        mask=(np.array(segments) > 0).astype(np.float32),
        advantages=np.zeros(size, np.float32) if parts is None else parts.sum(0),
        sampler_logps=np.zeros(size, np.float32),
        temperatures=np.ones(size, np.float32),
        streams=np.zeros(size, np.int64) if streams is None else np.array(streams),
        versions=np.zeros(size, np.int64),
        segments=np.array(segments, np.int64),
        agent=0,
        debate=0,
        group=group,
        pair=pair,
        credits=parts,
    )


def over_tokens(rows: Batch, weights: Sequence[Floats]) -> list[list[float]]:
    """The weights of rows' sampled tokens among 0 of the others."""
    pairs = zip(rows.rows, weights, strict=True)
    return [replace(r, advantages=own).over_tokens("advantages").tolist() for r, own in pairs]


def batch(*rows: Row, streams: Sequence[str] = ("generator",)) -> Batch:
    sampled = sum(int(r.mask.sum()) for r in rows)
    return Batch(
        rows, tuple(streams), sampled, sum(int(r.over_tokens("segments").max()) for r in rows)
    )


ROWS = batch(
    row([0, 1, 1, 0, 2], group=7),
    row([0, 1, 1, 1, 0], group=9),
    row([0, 0, 1, 1], group=9),
)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token_sum", [[0, 1, 1, 0, 1], [0, 1, 1, 1, 0], [0, 0, 1, 1]]),
        # 8 sampled tokens.
        ("token_mean_batch", [[0, 1 / 8, 1 / 8, 0, 1 / 8], [0, 1 / 8, 1 / 8, 1 / 8, 0],
                              [0, 0, 1 / 8, 1 / 8]]),
        # Two questions, of 3 and 5 sampled tokens: 1/6 and 1/10.
        ("token_mean_group", [[0, 1 / 6, 1 / 6, 0, 1 / 6], [0, 1 / 10, 1 / 10, 1 / 10, 0],
                              [0, 0, 1 / 10, 1 / 10]]),
        # Four turns, of 2, 1, 3 and 2 tokens: 1/8, 1/4, 1/12, 1/8.
        ("sequence_mean", [[0, 1 / 8, 1 / 8, 0, 1 / 4], [0, 1 / 12, 1 / 12, 1 / 12, 0],
                           [0, 0, 1 / 8, 1 / 8]]),
    ],
)  # fmt: skip
def test_weights_are_one_over_the_counts_of_the_whole_step(
    aggregation: Aggregation, expected: list[list[float]]
) -> None:
    found = weigh(ROWS, aggregation)[1]
    assert all(weights.dtype == np.float32 for weights in found)
    for weights, wanted in zip(over_tokens(ROWS, found), expected, strict=True):
        assert weights == pytest.approx(wanted)


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(0, 2)),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(MEANS),
)
def test_weights_of_a_mean_add_up_to_1(
    rows: list[tuple[list[int], int]], mean: Aggregation
) -> None:
    found = weigh(batch(*(row(sorted(s), group=g) for s, g in rows)), mean)[1]
    any_sampled = any(max(segments) > 0 for segments, _ in rows)
    total = sum(float(w.sum(dtype=np.float64)) for w in found)
    # Rounded to float32: the quotient, and with two kinds of denominators their product.
    assert total == pytest.approx(float(any_sampled), abs=2 * UNIT)


# Two streams over three turns; the second covers the later half of each turn only.
STREAMED = batch(
    row([0, 1, 1, 1, 0, 2], [[0, 1, 2, 0, 0, 3], [0, 0, 0, 4, 0, 0]], streams=[0, 1, 1, 2, 0, 1]),
    row([0, 1, 1], [[0, 5, 0], [0, 6, 7]], streams=[0, 3, 2], group=1),
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
def test_each_stream_is_a_mean_over_the_tokens_it_covers(
    aggregation: Aggregation, expected: float
) -> None:
    ready, weights = weigh(STREAMED, aggregation)
    pairs = [(w, r.advantages) for w, r in zip(weights, ready.rows, strict=True)]
    total = sum(float(w.astype(np.float64) @ credit) for w, credit in pairs)
    # Weights, credits and their products are rounded to float32; all terms are positive.
    assert total == pytest.approx(expected, rel=3 * UNIT)
    assert not any(r.over_tokens("advantages")[r.mask == 0].any() for r in ready.rows)


def test_advantages_without_streams_stay_as_they_are() -> None:
    plain = replace(ROWS.rows[0], advantages=np.array([1, 2, 4], np.float32))
    ready, _ = weigh(replace(ROWS, rows=(plain, *STREAMED.rows)), "sequence_mean")
    assert ready.rows[0].over_tokens("advantages").tolist() == [0, 1, 2, 0, 4]
    assert ready.rows[1] is STREAMED.rows[0]


def test_weights_of_nothing_are_0() -> None:
    for aggregation in ("token_sum", *MEANS):
        nothing = batch(row([0, 0]))
        assert over_tokens(nothing, weigh(nothing, aggregation)[1]) == [[0, 0]]
        assert weigh(batch(), aggregation)[1] == []


def test_pairs_count_alike_and_rows_without_a_pair_nothing() -> None:
    chosen, rejected = [[0, 2, 0]], [[0, -1, -1]]
    rows = batch(
        row([0, 1, 1], chosen, pair=5),
        row([0, 1, 1], chosen),
        row([0, 1, 1], rejected, pair=5),
        row([0, 1, 1], rejected, pair=0),
        row([1, 1, 1], chosen, pair=0),
    )
    # Two pairs: every action of a pair has its weight, 1/2.
    assert over_tokens(rows, weigh(rows, "pair_mean")[1]) == [
        [0, 0.5, 0.5], [0, 0, 0], [0, 0.5, 0.5], [0, 0.5, 0.5], [0.5, 0.5, 0.5],
    ]  # fmt: skip


@pytest.mark.parametrize("signs", [(1.0,), (1.0, 1.0), (1.0, -1.0, -1.0), (1.0, 0.0)])
def test_pair_that_is_not_one_chosen_and_one_rejected_is_refused(signs: tuple[float, ...]) -> None:
    rows = batch(*(row([0, 1], [[0, sign]], pair=3) for sign in signs))
    with pytest.raises(ValueError, match="preference pair 3: found rows"):
        weigh(rows, "pair_mean")
