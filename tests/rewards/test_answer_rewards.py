"""Rewards by answers: against the truth, against the majority, and judges of either."""

import logging
from typing import Any

import pytest
from tests.rewards.debates import (
    SILENT,
    debate_of,
    judged_debate,
    numbers,
    on_question,
    round_values,
    score_of,
    span_values,
    turn_credits,
    turn_values,
)

from debate_protocol.types import Protocol, Question, Transcript, Turn
from debate_rewards import Majority, MajorityJudge, TruthJudge, Verifiable
from debate_rewards.metrics import debate_metrics

LEFT_OUT = {(None, False, False)}


def value_expected_penalty(score: Any) -> set[tuple[float | None, bool, bool]]:
    return {(credit.value, credit.expected, credit.penalty) for credit in score.credits}


# ---- verifiable -----------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "wrong"), [("plus_minus", -1.0), ("zero_one", 0.0)])
def test_verifiable_values_every_valid_turn(scale: Any, wrong: float) -> None:
    score = score_of(Verifiable(values=scale), debate_of(SILENT, "| fail |", gold="s1"))
    assert round_values(score, 0) == [wrong, 1.0, wrong]
    assert round_values(score, 1) == [wrong, -1.0, wrong]
    assert [credit.penalty for credit in score.credits] == [False] * 4 + [True, False]
    assert score.agents == (wrong, 0.0, wrong)


@pytest.mark.parametrize(
    ("text", "keeps_contract", "value"),
    [
        ("<solution>s1</solution><evaluation>N/A</evaluation><comparison>N/A</comparison>", 1, 1.0),
        # What a policy found that was paid for its answer alone: no tag is ever closed.
        ("<solution>\\boxed{s1}>N/N}>N>N", 0, 0.5),
        ("<solution>s1</solution><solution>s1</solution>", 0, 0.5),
        ("<solution>s2</solution>", 0, -1.0),  # −1 − .5, but no less than a turn that fails.
    ],
)
def test_verifiable_prices_a_broken_contract(text: str, keeps_contract: int, value: float) -> None:
    question = Question("q", "?", "s1", {"kind": "text"})
    debate = Transcript("d", question, Protocol(1), (Turn(0, 0, text),))
    assert score_of(Verifiable(contract_penalty=-0.5), debate).agents == (value,)
    assert score_of(Verifiable(), debate).agents == (1.0 if "s1" in text else -1.0,)
    assert debate_metrics([debate])["format_strict"] == keeps_contract


@pytest.mark.parametrize("reward", [Verifiable(), TruthJudge()])
@pytest.mark.parametrize("gold", [None, ""])
def test_questions_without_a_usable_gold_answer_are_left_out_and_named(
    reward: Any, gold: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        score = score_of(reward, debate_of(SILENT, "| fail |", id="row-7", gold=gold))
    assert value_expected_penalty(score) == LEFT_OUT
    assert score.agents == (None, None, None)
    assert score.metrics[f"{reward.type}/unverifiable_gold"] == 1
    assert "row-7" in caplog.text


# ---- judges of the truth --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("debate", "expected"),
    [
        # Agent 0 is right, 1 and 2 are wrong: the truth does not say which of these is better.
        pytest.param(
            judged_debate("A1>A2 | A2>A0 | A0>A1", gold="s0"), "none -1 1", id="right and wrong"
        ),
        pytest.param(
            judged_debate("A1>A2 | A2=A0 | A0>A1", solutions=[["s0"] * 3], gold="s0"),
            "none none none",
            id="all right",
        ),
        # Agent 0 is right in round 0 and wrong in round 1; votes of round 1 are about round 0.
        pytest.param(
            judged_debate(
                "A1>A2 | A0>A2 | A0=A1",
                solutions=[["s0", "s1", "s2"], ["no", "s1", "s2"]],
                gold="s0",
            ),
            "none 1 0",
            id="the turn that was judged",
        ),
        # A contradiction on (0, 1), then 0>2 twice: one vote.
        pytest.param(
            judged_debate("A1>A2 | A0>A2 | A0>A1 | A0>A1 | A0>A1; A1>A0; A0>A2; A2<A0", gold="s0"),
            "none 1 1 1 1",
            id="contradiction",
        ),
    ],
)
def test_votes_on_a_right_and_a_wrong_turn_are_worth_the_truth(debate: Any, expected: str) -> None:
    assert round_values(score_of(TruthJudge(), debate), 1, "judge") == numbers(expected)


def test_truth_judge_counts_its_votes_and_expects_none_in_the_first_round() -> None:
    score = score_of(TruthJudge(), judged_debate("A1>A2 | A2>A0 | A0>A1", gold="s0"))
    credits = turn_credits(score, "judge")
    assert [credits[agent, 0].expected for agent in range(3)] == [False] * 3
    assert [credits[agent, 1].expected for agent in range(3)] == [True] * 3
    assert score.agents == (None, -1.0, 1.0)
    assert score.metrics == {
        "truth_judge/unverifiable_gold": 0.0,
        "truth_judge/votes": 3.0,
        "truth_judge/votes_with_value": 2.0,
        "reward/judge/mean": 0.0,
    }


def test_lines_are_worth_the_truth_each() -> None:
    debate = judged_debate("| | | | A1>A0; A1>A2; A0>A2", gold="s0")
    score = score_of(TruthJudge(judge_credit="line"), debate)
    # The end of the section is worth the penalty, as three pairs are left out.
    line_values = [value for _, value in span_values(score, debate, 4, 1)]
    assert line_values == numbers("-1 none 1 -0.5")
    # A repeated vote counts once: −1 for 1>0, and +1.
    repeated = judged_debate("| | | | A1>A0; A1>A0; A0>A2", gold="s0")
    assert round_values(score_of(TruthJudge(), repeated), 1, "judge")[4] == 0


# ---- majority -------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "minority"), [("zero_one", 0.0), ("plus_minus", -1.0)])
def test_majority_values_each_turn_by_the_round_it_is_in(scale: Any, minority: float) -> None:
    # Round 0 says a, round 1 says b: agent 1 is with it in both.
    debate = debate_of(SILENT, SILENT, solutions=["aab", "abb"])
    score = score_of(Majority(values=scale, scope="debate"), debate)
    assert round_values(score, 0) == [1.0, 1.0, minority]
    assert round_values(score, 1) == [minority, 1.0, 1.0]
    assert score.agents == ((1 + minority) / 2, 1.0, (1 + minority) / 2)
    assert score.metrics == {"majority/undecided": 0.0, "majority/share": pytest.approx(4 / 6)}


def test_the_majority_of_a_question_counts_all_its_debates_in_the_batch() -> None:
    # Question q: a a b and b b b, so b (4 of 6); question r has its own majority, a.
    batch = [
        on_question("q", debate_of(SILENT, solutions=["aab"])),
        on_question("r", debate_of(SILENT, solutions=["aab"])),
        on_question("q", debate_of(SILENT, solutions=["bbb"])),
    ]
    by_question = [round_values(score, 0) for score in Majority()(batch)]
    assert by_question == [[0.0, 0.0, 1.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    by_debate = [round_values(score, 0) for score in Majority(scope="debate")(batch)]
    assert by_debate == [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]


@pytest.mark.parametrize("solutions", ["aabb", "abcd"])
def test_two_largest_answers_are_no_majority(solutions: str) -> None:
    score = score_of(Majority(), debate_of("| | |", solutions=[solutions]))
    assert value_expected_penalty(score) == {(None, True, False)}
    assert score.agents == (None,) * 4
    assert score.metrics == {"majority/undecided": 1.0}


def test_a_verified_majority_counts_where_votes_decide_for_it_too() -> None:
    solutions = ["aab", "aab"]
    votes_for_b = debate_of(SILENT, "A1<A2 | A0<A2 | A0=A1", id="b", solutions=solutions)
    votes_for_a = debate_of(SILENT, "A1>A2 | A0>A2 | A0=A1", id="a", solutions=solutions)
    expected = [{None}, {0.0, 1.0}]
    scores = Majority(scope="debate", verified=True)([votes_for_b, votes_for_a])
    assert [{*turn_values(score).values()} for score in scores] == expected
    # On one question the debates have one majority; each is verified by its own votes.
    joint = [on_question("q", debate) for debate in (votes_for_b, votes_for_a)]
    scores = Majority(verified=True)(joint)
    assert [{*turn_values(score).values()} for score in scores] == expected
    failed = debate_of(SILENT, "A1<A2 | A0<A2 | fail", solutions=solutions)
    assert round_values(score_of(Majority(verified=True), failed), 1)[2] == -1.0


# ---- judges of the majority -----------------------------------------------------------------

# Three of five say a. Lines: a over another, another over a, a tie, two that both say a.
LINES = "A1>A3 | A0<A4; A2>A3 | A0=A3; A1>A4 | A0>A1; A2=A0 | A1=A2; A3<A0"
FOR_A = judged_debate(LINES, solutions=["aaabc", "aaabc"], gold="a")


def test_votes_for_the_answer_of_the_majority_are_right_and_against_it_wrong() -> None:
    score = score_of(MajorityJudge(verified=False), FOR_A)
    # Agent 1: −1 for agent 4 over agent 0, +1. Agent 2: 0 for the tie, +1.
    assert round_values(score, 1, "judge") == numbers("1 0 0.5 none 1")
    assert score.agents == (1.0, 0.0, 0.5, None, 1.0)
    assert score.metrics == {
        "majority_judge/votes": 9.0,
        "majority_judge/votes_with_value": 6.0,
        "reward/judge/mean": 2.5 / 4,
    }
    # A wrong majority teaches what the truth would call wrong.
    wrong_majority = judged_debate(LINES, solutions=["aaabc"], gold="b")
    assert round_values(score_of(TruthJudge(), wrong_majority), 1, "judge")[0] == -1.0
