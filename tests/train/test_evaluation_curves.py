"""Accuracy beside the tokens that it took, on debates small enough to count by hand."""

from dataclasses import replace

import pytest

from debate_protocol.forms import Direct, Simultaneous
from debate_protocol.types import Question, Reply, Transcript, Turn
from debate_train.evaluation import DirectAnswers, debate_curves, reply_curves
from debate_train.evaluation.measuring import Measures
from debate_train.evaluation.modes import most_replies

QUESTION = Question("q", "How many?", "4", {"kind": "number"})


def turn(agent: int, round: int, answer: str, tokens: int) -> Turn:
    reply = Reply("", token_ids=tuple(range(tokens)))
    return Turn(agent, round, f"\\boxed{{{answer}}}", reply=reply)


def replies(answers: str, tokens: int = 10, question: Question = QUESTION) -> list[Transcript]:
    rules = Direct(contract="boxed", personas="none").protocol()
    return [
        Transcript(f"{question.id}/{n}", question, rules, (turn(0, 0, answer, tokens),))
        for n, answer in enumerate(answers)
    ]


def debate(rounds: list[str], **settings: object) -> Transcript:
    form = Simultaneous.model_validate(
        {"num_agents": 3, "max_rounds": 3, "contract": "boxed", "personas": "none"} | settings
    )
    turns = [
        turn(agent, round, answer, 10 * (round + 1))
        for round, answers in enumerate(rounds)
        for agent, answer in enumerate(answers)
    ]
    return Transcript("d", QUESTION, form.protocol(), tuple(turns))


def test_majority_of_more_replies_stands_beside_its_tokens() -> None:
    # 4, 4, 5: one reply right 2/3; a pair is 4-4 in one of three and a tie in two: (1 + 1/2 + 1/2)
    # / 3; all three: 4. pass@2: no pair without a 4.
    found = reply_curves(replies("445"), 3)
    assert [point.x for point in found["maj@k"]] == [1, 2, 3]
    assert [point.tokens for point in found["maj@k"]] == [10, 20, 30]
    values = [point.values["q"] for point in found["maj@k"]]
    assert values == [pytest.approx(value) for value in (2 / 3, 2 / 3, 1)]
    assert [point.values["q"] for point in found["pass@k"]] == [pytest.approx(2 / 3), 1, 1]


def test_tokens_of_a_curve_are_the_mean_over_questions() -> None:
    other = replace(QUESTION, id="r")
    unreadable = replace(QUESTION, id="s", answer=None)
    played = [*replies("44"), *replies("55", 30, other), *replies("44", 90, unreadable)]
    one, two = reply_curves(played, 2)["maj@k"]
    assert (one.tokens, two.tokens) == (20, 40)
    assert one.values == two.values == {"q": 1.0, "r": 0.0}
    assert not reply_curves(played, 3)


def test_curve_of_replies_goes_as_far_as_every_question_has_some() -> None:
    other = replace(QUESTION, id="r")
    played = [*replies("444"), *replies("45", 30, other)]
    assert (most_replies(played), most_replies(replies("4" * 80)), most_replies([])) == (2, 64, 1)
    # Two runs of two replies each: the majority of up to four.
    assert len(DirectAnswers(samples=2).curves([replies("4455")])["maj@k"]) == 4


def test_rounds_of_a_debate_stand_beside_all_tokens_until_then() -> None:
    # Round 0: 4 5 5, round 1: 4 4 5, round 2: 4 6 7 (a tie of three). All rounds together:
    # 4 once and 5 twice; then three each; then 4 four times, 5 three times.
    found = debate_curves([debate(["455", "445", "467"])])
    assert {name: [point.values["q"] for point in points] for name, points in found.items()} == {
        "debate/majority": [0, 1, pytest.approx(1 / 3)],
        "debate/agent": [pytest.approx(1 / 3), pytest.approx(2 / 3), pytest.approx(1 / 3)],
        "debate/all_rounds": [0, 0.5, 1],
    }
    assert [point.tokens for point in found["debate/majority"]] == [30, 90, 180]


def test_debate_that_ended_early_keeps_its_answers_and_costs_no_more() -> None:
    found = debate_curves([debate(["444"]), debate(["555", "444"])])
    majority = found["debate/majority"]
    assert [point.values["q"] for point in majority] == [0.5, 1]
    assert [point.tokens for point in majority] == [30, (30 + 90) / 2]


def test_center_has_a_curve_of_its_own() -> None:
    found = debate_curves([debate(["455", "545"], topology="central", center=1)])
    assert [point.values["q"] for point in found["debate/central"]] == [0, 1]
    assert [point.values["q"] for point in found["debate/majority"]] == [0, 0]


def test_curves_have_no_tokens_where_turns_hold_none() -> None:
    whole = debate(["444"])
    bare = replace(whole, turns=tuple(replace(turn, reply=None) for turn in whole.turns))
    assert debate_curves([bare])["debate/agent"][0].tokens is None
    assert not debate_curves([])


def test_looks_have_the_majority_of_two_four_and_eight_replies() -> None:
    other = replace(QUESTION, id="r")
    played = [*replies("444555"), *replies("555555", question=other)]
    # Three right of six, two classes: by symmetry each majority is right half of the time.
    measured = Measures({}, {}, curves={"eval/direct/maj@k": reply_curves(played, 6)["maj@k"]})
    assert measured.votes() == {"eval/direct/maj@2": 0.25, "eval/direct/maj@4": 0.25}
    assert Measures({}, {}).votes() == {}
