from dataclasses import replace

import pytest
from pydantic import ValidationError

from debate_protocol.types import Reply, Transcript
from debate_rewards import Mixed, Overlong, get_reward


def said_in(transcript: Transcript, *lengths: int | None) -> Transcript:
    """Give the turns replies of these many tokens; None leaves a turn without tokens."""
    turns = [
        turn if length is None else replace(turn, reply=Reply("", token_ids=(7,) * length))
        for turn, length in zip(transcript.turns, lengths, strict=True)
    ]
    return replace(transcript, turns=tuple(turns))


def values(reward, transcript: Transcript) -> list[float | None]:
    (score,) = reward([transcript])
    return [credit.value for credit in score.credits]


def test_overlong_is_flat_then_linear_then_flat(hold):
    # L = 10, B = 4: free up to 6, then a quarter a token, -1 from 10 on.
    debate = said_in(hold([""] * 7, n=7), 1, 6, 7, 8, 9, 10, 300)
    reward = Overlong(max_tokens=10, buffer=4)
    assert values(reward, debate) == [0.0, 0.0, -0.25, -0.5, -0.75, -1.0, -1.0]
    (score,) = reward([debate])
    assert {(c.stream, c.expected, c.penalty) for c in score.credits} == {
        ("generator", True, False)
    }
    assert score.metrics["overlong/penalised"] == pytest.approx(5 / 7)
    # (1 + 6 + 7 + 8 + 9 + 10 + 300) / 7
    assert score.metrics["overlong/tokens"] == pytest.approx(341 / 7)


@pytest.mark.parametrize(
    ("length", "value"),
    # The paper's numbers: 16,384 expected tokens and a cache of 4,096. (18,432 - 16,384) / 4,096.
    [(16_384, 0.0), (18_432, -0.5), (20_480, -1.0)],
)
def test_overlong_is_the_papers_equation(length, value):
    assert Overlong(max_tokens=20_480, buffer=4_096).value(length) == value


def test_overlong_factor_scales_the_slope_and_the_floor(hold):
    reward = Overlong(max_tokens=10, buffer=4, factor=0.5)
    assert values(reward, said_in(hold([""] * 3), 6, 8, 11)) == [0.0, -0.25, -0.5]


def test_overlong_buffer_as_long_as_the_limit_is_linear_from_the_first_token(hold):
    reward = Overlong(max_tokens=4, buffer=4)
    assert values(reward, said_in(hold([""] * 3), 1, 3, 4)) == [-0.25, -0.75, -1.0]


def test_overlong_judges_a_failed_turn_by_its_length_alone(hold):
    # The failure itself is valued by the reward beside it.
    debate = said_in(hold([None, None, ""]), 3, 10, 3)
    assert values(Overlong(max_tokens=10, buffer=4), debate) == [0.0, -1.0, 0.0]


def test_overlong_has_no_signal_without_tokens(hold):
    reward = Overlong(max_tokens=5, buffer=2)
    (score,) = reward([hold(["", "", ""])])
    assert [(c.value, c.expected) for c in score.credits] == [(None, False)] * 3
    assert score.agents == (None, None, None)
    assert score.metrics == {}


def test_overlong_has_no_signal_when_the_prompt_filled_the_context(hold):
    debate = said_in(hold(["", None, ""]), 3, 0, 3)
    assert values(Overlong(max_tokens=10, buffer=4), debate) == [0.0, None, 0.0]
    recorded = hold(["", "", ""])
    counts = [{"tokens": [9, 3]}, {"tokens": [9, 12]}, {"tokens": [9, 0]}]
    turns = [replace(t, extra=own) for t, own in zip(recorded.turns, counts, strict=True)]
    recorded = replace(recorded, turns=tuple(turns))
    assert values(Overlong(max_tokens=10, buffer=4), recorded) == [0.0, -1.0, None]


def test_overlong_adds_to_the_truth_when_raw_rewards_are_mixed(hold):
    # Right and 8 tokens: 1 - 0.5; wrong and short: -1; wrong and too long: -1 - 1 (DAPO's sum).
    config = {
        "mix": "rewards",
        "components": {
            "truth": {"reward": {"type": "verifiable"}, "weight": 1.0},
            "length": {"reward": {"type": "overlong", "max_tokens": 10, "buffer": 4}, "weight": 1},
        },
    }
    debate = said_in(hold(["", "", ""], answer="s0"), 8, 2, 12)
    assert values(Mixed.model_validate(config), debate) == pytest.approx([0.5, -1.0, -2.0])


@pytest.mark.parametrize(
    "settings",
    [{}, {"max_tokens": 4, "buffer": 5}, {"max_tokens": 4, "buffer": 0}, {"factor": -1}],
)
def test_overlong_refuses_settings_that_mean_nothing(settings):
    with pytest.raises(ValidationError):
        get_reward("overlong", **settings)
