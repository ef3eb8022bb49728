"""Stop strings across token borders."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from debate_rollout.engines.sampling import StopStrings
from debate_rollout.rendering import token_text


def first_stop(tokenizer: Any, stops: tuple[str, ...], ids: list[int]) -> int | None:
    """Where a reply would end: only tokens of the table are looked at."""
    tracker = StopStrings(tokenizer, stops, len(tokenizer))
    for k, token in enumerate(ids):
        if bool(tracker.may_complete_V[token]) and tracker.completed(ids[: k + 1][-tracker.tail :]):
            return k
    return None


def test_completed_finds_a_stop_string_that_ends_inside_a_token(byte_bpe: Any) -> None:
    ids = byte_bpe.encode("so it is", add_special_tokens=False)
    assert first_stop(byte_bpe, ("o i",), ids) == next(
        k for k in range(len(ids)) if "o i" in byte_bpe.decode(ids[: k + 1])
    )


def test_completed_ignores_special_tokens_inside_a_stop_string(byte_bpe: Any) -> None:
    a, b, pad = byte_bpe.convert_tokens_to_ids(["a", "b", "<pad>"])
    assert first_stop(byte_bpe, ("ab",), [a, pad, b]) == 2
    assert first_stop(byte_bpe, (), [a, pad, b]) is None


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
    if not stop or "�" in stop or begin == 0:  # the first space may be stripped from the text
        return
    expected = next(k for k in range(len(ids)) if stop in token_text(tokenizer, ids[: k + 1]).text)
    assert first_stop(tokenizer, (stop,), ids) == expected
