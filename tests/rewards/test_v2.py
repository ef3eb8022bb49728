"""Reward v2: what turns and judges are worth, by hand and for any debate."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from tests.rewards.debates import (
    SILENT,
    debate_of,
    judged_debate,
    numbers,
    round_values,
    score_of,
    span_values,
    turn_credits,
    turn_text,
    turn_values,
)
from tests.rewards.second_reading import (
    DrawnDebate,
    drawn_debates,
    generator_values,
    judge_values,
)

from debate_protocol.types import Protocol
from debate_rewards import V2, RewardContext, WinRate
from debate_rewards.reward import read_debate

# Round 1 is about round 0. Agent 1: 1>2 by 0 and 1>0 by 2, so 2·2/2 − 1 = 1. Agent 0: half of 0=2
# by 1, and against by 2, so 2·½/2 − 1 = −½; agent 2 the same.
VOTES = "A1>A2 | A0=A2 | A1>A0"


def v2_values(debate: Any, round: int, stream: str = "generator", **options: Any) -> Any:
    return round_values(score_of(V2(**options), debate), round, stream)


# ---- turns ----------------------------------------------------------------------------------


def test_votes_are_booked_on_the_turns_that_the_judge_was_shown() -> None:
    score = score_of(V2(), judged_debate(VOTES))
    assert round_values(score, 0) == numbers("-0.5 1 -0.5")
    assert round_values(score, 1) == numbers("none none none")


def test_sequential_votes_go_to_the_latest_shown_turn() -> None:
    # Agent 2, round 0: 0>1 about (0,0), (1,0). Agent 0, round 1: 1>2 about (1,0), (2,0).
    # Agent 1, round 1: 0>2 about (0,1), (2,0).
    debate = debate_of("| | A0>A1", "A1>A2 | A0>A2 |", schedule="sequential", max_rounds=2)
    score = score_of(V2(), debate)
    assert round_values(score, 0) == numbers("1 0 -1")
    assert round_values(score, 1) == numbers("1 none none")


@pytest.mark.parametrize(
    ("lines", "options", "expected"),
    [
        pytest.param(VOTES, {"ties": "ignore"}, numbers("-1 1 -1"), id="ties ignored"),
        pytest.param("A1=A2 | A0=A2 | A0=A1", {}, numbers("0 0 0"), id="all tie"),
        pytest.param(
            "A1=A2 | A0=A2 | A0=A1",
            {"ties": "ignore"},
            numbers("none none none"),
            id="all ties ignored",
        ),
        # Agent 2: once against and once for; literally twice against: 2/3 − 1.
        pytest.param("A1>A2; A2<A1 | A2>A0 |", {}, numbers("-1 1 0"), id="said twice"),
        pytest.param(
            "A1>A2; A2<A1 | A2>A0 |",
            {"duplicates": "count"},
            numbers("-1 1 -1/3"),
            id="said twice, counted",
        ),
        # Only 0>2 by agent 1 is left.
        pytest.param(
            "A1>A2; A2>A1 | A0>A2 | A0>A1; A1=A0", {}, numbers("1 none -1"), id="contradiction"
        ),
        # Agent 1: 1:1 by agent 0, 0:1 and ½:½ by agent 2, so 2·1½/4 − 1.
        pytest.param(
            "A1>A2; A2>A1 | A0>A2 | A0>A1; A1=A0",
            {"duplicates": "count"},
            [pytest.approx(2 * 2.5 / 3 - 1), -0.25, pytest.approx(2 / 3 - 1)],
            id="contradiction, counted",
        ),
        # All four others compare agent 0 with one other: it wins 3 and loses 1.
        pytest.param("| A0>A2 | A0>A1 | A0>A1 | A3>A0", {}, numbers("0.5 -1 -1 1 none"), id="five"),
    ],
)
def test_turns_are_worth_votes_for_minus_votes_against(
    lines: str, options: dict[str, Any], expected: Any
) -> None:
    assert v2_values(judged_debate(lines), 0, **options) == expected


@pytest.mark.parametrize(("unvoted", "value"), [("mask", None), ("zero", 0.0), ("literal", -1.0)])
def test_unvoted_turns_get_the_chosen_value(unvoted: Any, value: float | None) -> None:
    score = score_of(V2(unvoted=unvoted, format_penalty=None), judged_debate(SILENT))
    credits = turn_credits(score).values()
    assert [credit.value for credit in credits] == [value] * 6
    assert all(credit.expected and not credit.penalty for credit in credits)
    assert score.agents == (value,) * 3


def test_lines_that_are_no_votes_are_counted_by_their_fault() -> None:
    # Round 0 of a parallel debate is shown nobody: its line about 1 and 2 is unseen.
    debate = debate_of("A1>A2 | |", "A0>A1; A1>A7; A1>A1; nonsense | A2>A0 |")
    score = score_of(V2(), debate)
    counts = {
        "unseen_dropped": 1,
        "self_comparisons_dropped": 1,
        "comparison_lines_malformed": 2,
        "comparison_lines_invalid": 1,
        "comparison_lines_total": 6,
        "total_votes": 1,
        "votes_per_step": 1 / 6,
    }
    assert {name: score.metrics[f"v2/{name}"] for name in counts} == pytest.approx(counts)
    assert score.agents == (-1.0, None, 1.0)


def test_a_failed_turn_carries_minus_one_and_nothing_else() -> None:
    # Lines about the failed turn of agent 0 are dropped, 0>2 and 0>1: only 1>2 counts.
    debate = debate_of("fail | |", "A1>A2 | A0>A2 | A0>A1")
    score = score_of(V2(), debate)
    assert score.agents == (-1.0, 1.0, -1.0)
    assert turn_credits(score)[0, 0].penalty
    assert (0, 0) not in turn_credits(score, "judge")
    assert score.metrics["v2/failed_dropped"] == 2
    # Agents 1 and 2 were shown one valid turn only: no comparison was expected of them.
    assert score.metrics["v2/missing_comparisons"] == 0


def test_votes_of_one_role_alone_value_turns() -> None:
    # Agents 0, 1 and 2 debate and agent 3 judges: it prefers 1 to 0, the debaters 0 to 1.
    roles = [{"name": "debater", "count": 3}, {"name": "judge", "count": 1}]
    debate = judged_debate("A1=A2 | A0=A2 | A0>A1 | A0<A1", roles=roles)
    assert v2_values(debate, 0, votes_of="judge") == numbers("-1 1 none none")
    # All: agent 0 wins one of three, with a tie against 2: (1 + 1/2 − 1 − 1/2) / 3 = 0.
    assert v2_values(debate, 0) == numbers("0 0 0 none")
    context = RewardContext(debate.protocol)
    assert all(note.stream != "generator" for note in V2(votes_of="judge").notes(context))
    notes = [note for note in V2(votes_of="juge").notes(context) if note.stream == "generator"]
    assert [note.kind for note in notes] == ["no_signal"]
    assert "did you mean 'judge'" in notes[0].text


def test_votes_count_of_a_judge_that_owes_no_answer() -> None:
    roles = [{"name": "debater", "count": 2}, {"name": "judge", "answers": False}]
    debate = debate_of("| | absent", "absent | absent | A0>A1", roles=roles)
    score = score_of(V2(), debate)
    # The judge has no answer to be voted about, and no other judge to agree with.
    assert turn_values(score) == {(0, 0): 1.0, (1, 0): -1.0}
    assert turn_values(score, "judge") == {(0, 0): None, (1, 0): None, (2, 1): None}
    assert v2_values(debate, 1, "judge", consensus="inclusive") == [1.0]
    win_rates = score_of(WinRate(), debate).credits
    assert {(credit.agent, credit.value) for credit in win_rates} == {(0, 1.0), (1, 0.0)}


# ---- judges ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "inclusive", "leave_one_out"),
    [
        # Each pair has one judge, whose vote is the consensus; a tie is never valued.
        pytest.param(
            "A1>A2 | A2>A0 | A0=A1",
            numbers("1 1 none"),
            numbers("none none none"),
            id="a judge a pair",
        ),
        # On (0, 1) two say 0>1. Without its own vote 2 sees a level pair, 4 two against it.
        pytest.param(
            "A2>A3 | A0>A2 | A0>A1 | A0>A1 | A1>A0",
            numbers("1 1 1 1 -1"),
            numbers("none none none none -1"),
            id="a majority of judges",
        ),
        # A strict vote and two ties: more say > than <.
        pytest.param(
            "A2>A3 | A2>A3 | A0>A1 | A0=A1 | A0=A1",
            numbers("1 1 1 none none"),
            numbers("1 1 none none none"),
            id="ties of others",
        ),
        # Leave one out. 4: +1 on 0>1, −1 on 0>2 against 1 and 3, none on 0>3. 3: +1 on 0>1, level
        # on 2>0. 1: 2>0 beside one vote for and one against. 2: 0>1 with 3 and 4.
        pytest.param(
            "A1>A2 | A2>A0 | A0>A1 | A0>A1; A2>A0; A1=A2 | A0>A1; A0>A2; A0>A3",
            numbers("1 1 1 1 1/3"),
            numbers("none none 1 1 0"),
            id="mean over valued lines",
        ),
        # Seven agents. On (0, 1): 0>1 by 2, 3, 4; 1>0 by 5; = by 6.
        pytest.param(
            "A2>A3 | A2>A3 | A0>A1 | A0>A1 | A0>A1 | A1>A0 | A0=A1",
            numbers("1 1 1 1 1 -1 none"),
            numbers("1 1 1 1 1 -1 none"),
            id="seven agents",
        ),
    ],
)
def test_judges_are_worth_their_agreement_with_the_consensus(
    lines: str, inclusive: Any, leave_one_out: Any
) -> None:
    debate = judged_debate(lines)
    assert v2_values(debate, 1, "judge", consensus="inclusive") == inclusive
    assert v2_values(debate, 1, "judge") == leave_one_out
    assert v2_values(debate, 0, "judge") == [None] * (lines.count("|") + 1)


def test_leave_one_out_takes_out_all_lines_of_a_judge_when_repeats_count() -> None:
    # On (0, 1), literally: 2 says 0>1 three times, 3 and 4 say 1>0.
    debate = judged_debate("| | A0>A1; A0>A1; A1<A0 | A1>A0 | A1>A0")
    # 2: the others are 0 to 2. 3: 3 to 1 for agent 0, and so 4. Inclusive: 3 to 2 for agent 0.
    assert v2_values(debate, 1, "judge", duplicates="count")[2:] == [-1.0, -1.0, -1.0]
    inclusive = score_of(V2(duplicates="count", consensus="inclusive"), debate)
    assert round_values(inclusive, 1, "judge")[2:] == numbers("1 -1 -1")
    # Agent 0: 3 for, 2 against.
    assert round_values(inclusive, 0)[0] == pytest.approx(2 * 3 / 5 - 1)


@pytest.mark.parametrize(
    ("lines", "is_penalized"),
    [
        ("A1>A2 | | gibberish", [False, True, True]),
        ("A0>A1 | A1>A1 | A2=A0", [True, True, True]),  # Lines about oneself.
        ("A1>A2; A2>A1 | A0=A2 | A0>A1", [True, False, False]),  # A contradiction alone.
    ],
)
def test_judges_without_a_comparison_are_penalized(lines: str, is_penalized: list[bool]) -> None:
    debate = judged_debate(lines)
    score = score_of(V2(), debate)
    credits = turn_credits(score, "judge")
    assert [credits[agent, 1].penalty for agent in range(3)] == is_penalized
    assert round_values(score, 1, "judge") == [-0.5 if flag else None for flag in is_penalized]
    # Those without a penalty join the baseline of a group with one.
    assert all(credits[agent, 1].expected for agent in range(3))
    assert not any(credits[agent, 0].expected for agent in range(3))
    assert score.metrics["v2/missing_comparisons"] == sum(is_penalized)
    assert v2_values(debate, 1, "judge", format_penalty=None) == numbers("none none none")


@pytest.mark.parametrize(("history", "value"), [(-1, -0.5), (1, None)])
def test_what_is_expected_follows_from_what_was_shown(history: int, value: float | None) -> None:
    # Agent 1 fails in round 1. With all rounds its older turn still makes a pair for agent 2; with
    # one round agent 2 is shown one turn alone. Agent 0 has an excuse: its line is about agent 1.
    rounds = (SILENT, "A1>A2 | fail | A0>A1", "A1>A2 | A0>A2 |")
    score = score_of(V2(), debate_of(*rounds, max_rounds=3, history_rounds=history))
    assert round_values(score, 2, "judge")[0] is None
    assert round_values(score, 2, "judge")[2] == value
    assert score.metrics["v2/failed_dropped"] == 1


# ---- peer prediction ------------------------------------------------------------------------


def test_peer_prediction_pays_agreement_beyond_the_other_questions() -> None:
    # Pair (0, 1). Question a: judges 2 and 3 say >, 4 says =. Question b: 2 says <, 3 and 4 >.
    debates = [
        judged_debate("| | A0>A1 | A0>A1 | A0=A1", id="a"),
        judged_debate("| | A1>A0 | A0>A1 | A0>A1", id="b"),
    ]
    first, second = V2(consensus="peer_prediction")(debates)
    # In a: others of 2 say > and =: ½ agree, minus the frequency of > in b, 2/3. 4 alone says =.
    expected = pytest.approx(1 / 2 - 2 / 3)
    assert round_values(first, 1, "judge")[2:] == [expected, expected, 0.0]
    # In b: 2 alone says <, and nobody in a. The others of 3 say < and >.
    assert round_values(second, 1, "judge")[2:] == [0.0, expected, expected]
    assert all(credit.centred for credit in turn_credits(first, "judge").values())
    assert not any(credit.centred for credit in turn_credits(first).values())


# ---- lines and sentences of a turn ----------------------------------------------------------


def test_lines_have_values_of_their_own_and_a_price_where_they_do_not_count() -> None:
    # Agent 4 votes with 2 and 3, gives a pair both verdicts, compares itself and nobody, writes a
    # line that ends before it can be read, and repeats a line.
    lines = "A0>A1; A2>A3; A3>A2; A4>A0; A0>A9; A0; A1>A2; A1>A2; A0>A2; A0>A3; A1>A3"
    debate = judged_debate(f"| | A0>A1 | A0>A1 | {lines}")
    priced = [
        ("Agent 0>Agent 1", 1.0),
        ("Agent 2>Agent 3", -0.25),
        ("Agent 3>Agent 2", -0.25),
        ("Agent 4>Agent 0\n", -0.25),
        ("Agent 0>Agent 9\n", -0.25),
        ("Agent 0\n", -0.25),  # The line break stands where the verdict should.
        ("Agent 1>Agent 2", -0.25),
        ("Agent 1>Agent 2", 1.0),
        ("Agent 0>Agent 2", 1.0),
        ("Agent 0>Agent 3", 1.0),
        ("Agent 1>Agent 3", 1.0),
        ("\n</comparison>", -0.25),  # Of the six pairs (2, 3) is left out.
    ]
    score = score_of(V2(judge_credit="line", consensus="inclusive", format_penalty=-0.25), debate)
    assert span_values(score, debate, 4, 1) == priced
    # The turn's own value is that of its votes alone.
    assert round_values(score, 1, "judge")[4] == 1.0
    unpriced = score_of(V2(judge_credit="line", consensus="inclusive", format_penalty=None), debate)
    free = [(text, None if value == -0.25 else value) for text, value in priced]
    assert span_values(unpriced, debate, 4, 1) == free


def test_segment_credit_pays_parts_of_the_evaluation_by_the_lines_that_name_their_agent() -> None:
    evaluation = "All try. Agent 0 is neat, so agent 0 wins. Agent 1 slips. Agent 3 too."
    # Agent 4: 1>0 against 2 and 3 (−1), 2>0 with 1 (+1), 1=3 (None). The part about 0 is worth the
    # mean of −1 and 1, that about 1 is worth −1, and about 3 there is only a tie.
    lines = "| A2>A0 | A0>A1 | A0>A1 | A1>A0; A2>A0; A1=A3"
    debate = judged_debate(lines, evaluations={(4, 1): evaluation})
    score = score_of(V2(judge_credit="segment"), debate)
    valued_texts = [(text.strip(), value) for text, value in span_values(score, debate, 4, 1)]
    assert valued_texts == [
        ("Agent 0 is neat, so agent 0 wins.", 0.0),
        ("Agent 1 slips.", -1.0),
        ("Agent 3 too.", None),
        ("Agent 1>Agent 0", -1.0),
        ("Agent 2>Agent 0", 1.0),
        ("Agent 1=Agent 3", None),
        ("</comparison>", -0.5),
    ]
    nameless = judged_debate(
        "| A2>A0 | A0>A1 | A0>A1 | A1>A0", evaluations={(4, 1): "All are fine."}
    )
    valued_texts = span_values(score_of(V2(judge_credit="segment"), nameless), nameless, 4, 1)
    assert [value for _, value in valued_texts] == numbers("-1 -0.5")


# ---- any debate -----------------------------------------------------------------------------


@settings(max_examples=50, deadline=None, derandomize=True)
@given(drawn_debates())
def test_v2_is_its_formula_for_any_debate(debate: DrawnDebate) -> None:
    read = read_debate(debate.transcript())
    options: Any = product(
        ("half", "ignore"),
        ("one", "count"),
        ("mask", "zero", "literal"),
        ("leave_one_out", "inclusive"),
    )
    for ties, duplicates, unvoted, consensus in options:
        reward = V2(ties=ties, duplicates=duplicates, unvoted=unvoted, consensus=consensus)
        (score,) = reward.score_read([read])
        expected = generator_values(debate, ties, duplicates, unvoted)
        assert turn_values(score) == pytest.approx(expected)
        expected = judge_values(debate, consensus, duplicates)
        assert turn_values(score, "judge") == pytest.approx(expected)


def test_hostile_text_is_scored() -> None:
    lines = "Agent 0 > Agent 1\n" * 2000 + "\ud800 Agent 1 > Agent " + "9" * 5000
    debate = judged_debate(SILENT)
    texts = ["<solution>\ud800</solution>", "<solution>\x00</solution><evaluation>agent \ud800"]
    texts += [turn_text("\ud800") + f"<comparison>{lines}"] * 4
    turns = [replace(turn, text=text) for turn, text in zip(debate.turns, texts, strict=True)]
    hostile = replace(debate, turns=tuple(turns))
    for reward in (V2(judge_credit="segment"), WinRate(duplicates="count")):
        assert len(score_of(reward, hostile).agents) == 3


# ---- advice ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_agents", "judge_weight", "consensus", "warns"),
    [
        (3, 1.0, "inclusive", True),
        (3, 0.5, "leave_one_out", True),
        (4, 0.5, "leave_one_out", True),
        (5, 1.0, "leave_one_out", False),
        (3, 0.0, "leave_one_out", False),
        (3, 1.0, "none", False),
    ],
)
def test_few_judges_of_a_pair_are_warned_of(
    num_agents: int, judge_weight: float, consensus: Any, warns: bool
) -> None:
    context = RewardContext(Protocol(num_agents), judge_weight=judge_weight)
    notes = [note for note in V2(consensus=consensus).notes(context) if note.kind == "few_judges"]
    assert bool(notes) == warns
    if consensus == "inclusive":
        assert "value +1" in notes[0].text


def test_setting_of_a_judge_who_is_not_paid_is_doubted() -> None:
    reward = V2(consensus="none", judge_credit="line", format_penalty=-0.5)
    (note,) = reward.notes(RewardContext(Protocol(5)))
    assert (note.kind, note.text.partition(":")[0]) == ("doubt", "reward.judge_credit")


def test_peer_prediction_has_no_signal_for_a_single_question() -> None:
    debate = judged_debate("A2>A3 | A2>A3 | A0>A1 | A0>A1 | A0>A1")
    for score in V2(consensus="peer_prediction")([debate, debate]):
        assert {*turn_values(score, "judge").values()} == {None}
