"""What comparison lines cost that do not count, and ending with pairs left out."""

from dataclasses import replace

import pytest

from debate_protocol.types import Transcript
from debate_rewards.rewards import V2

FIVE = [""] * 5


def placed(debate: Transcript, agent: int, round: int, **options) -> list[tuple[str, float | None]]:
    """Return the text and value of each span of a turn's judge stream, in text order."""
    (score,) = V2(judge_credit="line", consensus="inclusive", **options)([debate])
    text = next(turn.text for turn in debate.turns if turn.key == (agent, round))
    of_turn = [c for c in score.credits if (c.stream, c.agent, c.round) == ("judge", agent, round)]
    spans = sorted((c.span, c.value) for c in of_turn if c.span is not None)
    return [(text[slice(*span)], value) for span, value in spans]


def test_v2_line_credit_prices_lines_that_do_not_count(hold):
    # Agent 4 votes with 2 and 3, says a pair both ways, compares itself and nobody, writes a line
    # that ends before it can be read, and says one thing twice.
    said = "A0>A1; A2>A3; A3>A2; A4>A0; A0>A9; A0; A1>A2; A1>A2; A0>A2; A0>A3; A1>A3"
    debate = hold(FIVE, ["", "", "A0>A1", "A0>A1", said], n=5)
    priced = [
        ("Agent 0>Agent 1", 1.0),
        ("Agent 2>Agent 3", -0.25),
        ("Agent 3>Agent 2", -0.25),
        ("Agent 4>Agent 0\n", -0.25),
        ("Agent 0>Agent 9\n", -0.25),
        # The line break stands where the verdict should.
        ("Agent 0\n", -0.25),
        ("Agent 1>Agent 2", -0.25),
        ("Agent 1>Agent 2", 1.0),
        ("Agent 0>Agent 2", 1.0),
        ("Agent 0>Agent 3", 1.0),
        ("Agent 1>Agent 3", 1.0),
        # Of the six pairs (2, 3) is left out.
        ("\n</comparison>", -0.25),
    ]
    assert placed(debate, 4, 1, format_penalty=-0.25) == priced
    without = placed(debate, 4, 1, format_penalty=None)
    assert without == [(text, None if value == -0.25 else value) for text, value in priced]
    # The turn's own value is that of its votes alone.
    (score,) = V2(judge_credit="line", consensus="inclusive")([debate])
    whole = [c for c in score.credits if c.span is None and (c.agent, c.round) == (4, 1)]
    assert [c.value for c in whole if c.stream == "judge"] == [1.0]


def test_v2_line_credit_leaves_the_end_of_a_whole_section_to_its_turn(hold):
    debate = hold(FIVE, ["", "", "", "", "A0>A1; A0>A2; A0>A3; A1>A2; A1>A3; A2>A3"], n=5)
    assert [text for text, _ in placed(debate, 4, 1)][-1] == "Agent 2>Agent 3"


def test_v2_line_credit_has_no_price_for_lines_about_turns_that_failed(hold):
    third = ["A1>A2; A2>A3; A2>A0; A3>A4", "", "", "", "A2>A3"]
    debate = hold(FIVE, ["", None, "", "", ""], third, n=5, max_rounds=3)
    assert placed(debate, 0, 2) == [
        ("Agent 1>Agent 2", None),
        ("Agent 2>Agent 3", 1.0),
        ("Agent 2>Agent 0\n", -0.5),
        ("Agent 3>Agent 4", 1.0),
        ("\n</comparison>", -0.5),
    ]


@pytest.mark.parametrize("judge_credit", ["line", "segment"])
def test_v2_line_credit_without_penalty_takes_turns_without_any_comparison(hold, judge_credit):
    debate = hold(FIVE, [""] * 5, n=5)
    bare = [replace(turn, text="<solution>1</solution>") for turn in debate.turns]
    for one in (debate, replace(debate, turns=tuple(bare))):
        (score,) = V2(judge_credit=judge_credit, format_penalty=None)([one])
        assert {c.value for c in score.credits if c.stream == "judge"} == {None}
        assert not any(c.span for c in score.credits)
