"""Sampling: the distribution drawn from, the log-probabilities reported, and stop strings."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from debate_rollout.engine import Sampling
from debate_rollout.engines.sampling import Draws, StopStrings
from debate_rollout.rendering import token_text

pytestmark = pytest.mark.numeric
CPU = torch.device("cpu")
PLAIN = Sampling(max_tokens=1)
NEAR = 1e-14
"""Beside an edge: a few roundings of float64, the type in which edges are tested."""


def logits() -> Tensor:
    """Those of the probabilities 1/2, 1/4, 1/8, 1/8 at temperature 1, in the default type."""
    return torch.tensor([0.5, 0.25, 0.125, 0.125]).log()


def drawn(sampling: Sampling, uniform: float) -> int:
    """The id drawn at a given uniform."""
    draws = Draws.of([sampling], 1, CPU)
    draws.uniforms_BT[0, 0] = uniform
    return int(draws.draw(logits()[None], 0)[0])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("sampling", "edges"),
    [
        # Each id and the cumulative probability at which it ends.
        (PLAIN, [(0, 0.5), (1, 0.75), (2, 0.875), (3, 1.0)]),
        # T = 1/2 squares: 16, 4, 1, 1 of 22.
        (replace(PLAIN, temperature=0.5), [(0, 16 / 22), (1, 20 / 22), (2, 21 / 22), (3, 1.0)]),
        # Two likeliest: 1/2 and 1/4 of 3/4.
        (replace(PLAIN, top_k=2), [(0, 2 / 3), (1, 1.0)]),
        # Mass .6 needs two; the token that crosses the line is kept.
        (replace(PLAIN, top_p=0.6), [(0, 2 / 3), (1, 1.0)]),
        # At least 0.3 of the likeliest's 1/2: .15, so 1/8 goes.
        (replace(PLAIN, min_p=0.3), [(0, 2 / 3), (1, 1.0)]),
        # After top_k 3 masses are 4/7, 2/7, 1/7; .8 of it needs two.
        (replace(PLAIN, top_k=3, top_p=0.8), [(0, 2 / 3), (1, 1.0)]),
        (replace(PLAIN, temperature=0.0), [(0, 1.0)]),
        (replace(PLAIN, top_p=0.0), [(0, 1.0)]),
    ],
)
def test_draw_inverts_the_cumulative_distribution(
    sampling: Sampling, edges: list[tuple[int, float]]
) -> None:
    begin = 0.0
    for token, end in edges:
        assert drawn(sampling, begin + NEAR) == token
        assert drawn(sampling, end - NEAR) == token
        begin = end


@pytest.mark.usefixtures("float64")
def test_draw_reports_the_tempered_full_softmax_when_tokens_are_filtered() -> None:
    sampling = replace(PLAIN, temperature=0.5, top_k=1)
    _, logps = Draws.of([sampling], 1, CPU).draw(logits()[None], 0)
    assert float(logps) == pytest.approx(math.log(16 / 22), abs=1e-15)
    # Greedy: the log-probability at temperature 1.
    _, logps = Draws.of([replace(PLAIN, temperature=0.0)], 1, CPU).draw(logits()[None], 0)
    assert float(logps) == pytest.approx(math.log(0.5), abs=1e-15)


def test_draw_takes_a_possible_token_when_the_uniform_is_at_its_end() -> None:
    logits = torch.tensor([[0.0, 0.0, -math.inf]])
    draws = Draws.of([PLAIN], 1, CPU)
    for uniform, token in ((1 - 2**-53, 1), (0.0, 0)):
        draws.uniforms_BT[0, 0] = uniform
        assert int(draws.draw(logits, 0)[0]) == token


def first_stop(tokenizer: Any, stops: tuple[str, ...], ids: list[int]) -> int | None:
    """Where a reply would end: only tokens of the table are looked at."""
    tracker = StopStrings(tokenizer, stops, len(tokenizer))
    for k, token in enumerate(ids):
        if bool(tracker.may_complete_V[token]) and tracker.completed(ids[: k + 1][-tracker.tail :]):
            return k
    return None


@pytest.mark.parametrize("name", ["byte_bpe", "sentencepiece_style"])
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(ids=st.lists(st.integers(3, 270), max_size=30), data=st.data())
def test_completed_agrees_with_the_decoded_text_when_ids_are_arbitrary(
    name: str, ids: list[int], data: st.DataObject, request: pytest.FixtureRequest
) -> None:
    tokenizer = request.getfixturevalue(name)
    text = token_text(tokenizer, ids).text
    begin = data.draw(st.integers(0, max(0, len(text) - 1)))
    stop = text[begin : begin + data.draw(st.integers(1, 4))]
    # The first space may be stripped from the text.
    if not stop or "�" in stop or begin == 0 or f" {text}".startswith(stop):
        return
    expected = next(k for k in range(len(ids)) if stop in token_text(tokenizer, ids[: k + 1]).text)
    assert first_stop(tokenizer, (stop,), ids) == expected
