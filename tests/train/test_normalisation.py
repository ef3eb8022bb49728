"""Denominators against numbers worked by hand."""

import numpy as np
import pytest

from debate_train.losses import Normalise
from debate_train.normalisation import token_weights
from debate_train.rows import Batch, Row

MASKS = ([0, 1, 1, 0, 1], [0, 1, 1, 1, 0])
SEGMENTS = ([0, 1, 1, 0, 2], [0, 1, 1, 1, 0])


def row(mask: list[int], segments: list[int]) -> Row:
    sampled = np.array(mask, np.float32)
    return Row(
        tokens=np.zeros(len(mask), np.int64),
        mask=sampled,
        advantages=sampled,
        sampler_logps=sampled,
        temperatures=sampled,
        streams=np.zeros(len(mask), np.int64),
        versions=np.zeros(len(mask), np.int64),
        segments=np.array(segments),
        agent=0,
        debate=0,
    )


ROWS = tuple(row(*pair) for pair in zip(MASKS, SEGMENTS, strict=True))


def found(normalise: Normalise) -> list[list[float]]:
    batch = Batch(ROWS, ("generator",), sampled_tokens=10, turns=4)
    return [weights.tolist() for weights in token_weights(batch, normalise)]


def test_token_sum_weighs_every_sampled_token_1() -> None:
    assert found("token_sum") == [list(mask) for mask in MASKS]


def test_token_mean_divides_by_the_sampled_tokens_of_the_whole_step() -> None:
    # 6 sampled tokens are in these rows; the batch says that the step has 10.
    assert found("token_mean_batch") == [pytest.approx([x / 10 for x in mask]) for mask in MASKS]


def test_sequence_mean_divides_by_each_turns_tokens_and_all_turns_of_the_step() -> None:
    # Turns of 2, 1 and 3 tokens here, 4 turns in the step: 1/8, 1/4, 1/12.
    expected = [[0, 1 / 8, 1 / 8, 0, 1 / 4], [0, 1 / 12, 1 / 12, 1 / 12, 0]]
    assert found("sequence_mean") == [pytest.approx(weights) for weights in expected]


@pytest.mark.parametrize("normalise", ["token_sum", "token_mean_batch", "sequence_mean"])
def test_weights_of_nothing_are_0(normalise: Normalise) -> None:
    nothing = Batch((row([0, 0, 0], [0, 0, 0]),), ("generator",), 0, 0)
    assert not token_weights(nothing, normalise)[0].any()
