"""Checked answers: whom judges read, how they are dealt, and what is refused."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from debate_protocol.forms import Checked
from debate_protocol.parsing import Contract
from debate_protocol.transcripts.files import from_json, to_json, transcript_problems
from debate_protocol.types import TurnKey, TurnRequest

Play = Callable[..., Any]


def answer_of(*answers: str) -> Callable[[TurnRequest], str]:
    """Give these answers by agent, `none` without any; judges name the lower number."""

    def speak(request: TurnRequest) -> str:
        if request.answers:
            answer = answers[request.agent]
            return "no idea" if answer == "none" else f"\\boxed{{{answer}}}"
        if len(request.shown) == 1:
            return "<evaluation>fine</evaluation><verdict>right</verdict>"
        low, high = sorted(key.agent for key in request.shown)
        return f"<evaluation>e</evaluation><comparison>Agent {low} > Agent {high}</comparison>"

    return speak


def read_by_judges(played: Any) -> list[tuple[int, ...]]:
    return [tuple(key.agent for key in request.shown) for request in played.steps[1]]


def test_judges_are_dealt_evenly_over_pairs_in_both_orders(play: Play) -> None:
    played = play(Checked(debaters=3, judges=7), answer_of("1", "2", "3"))
    assert [len(step) for step in played.steps] == [3, 7]
    pairs = [(0, 1), (0, 2), (1, 2)]
    reversed_pairs = [(1, 0), (2, 0), (2, 1)]
    assert read_by_judges(played) == [*pairs, *reversed_pairs, (0, 1)]
    assert [request.agent for request in played.steps[1]] == [3, 4, 5, 6, 7, 8, 9]


def test_judges_of_single_answers_read_nothing_else(play: Play) -> None:
    played = play(Checked(debaters=3, judges=5, judges_see="answer"), answer_of("11", "22", "33"))
    assert read_by_judges(played) == [(0,), (1,), (2,), (0,), (1,)]
    for request in played.steps[1]:
        prompt = request.messages[-1]["content"]
        for agent, answer in enumerate(("11", "22", "33")):
            assert (answer in prompt) == (request.shown == (TurnKey(agent, 0),))
        assert request.stop == ("</verdict>",)
    # Checks of one answer are samples of one prompt.
    first, *_, second, _ = played.steps[1]
    assert first.messages == second.messages and first.seed != second.seed


def test_answers_may_have_an_evaluation_as_checks_do(play: Play) -> None:
    contract = Contract("worked", ("evaluation", "solution"))
    checked = Checked(debaters=2, judges=2, judges_see="answer", contract=contract, style="compact")

    def speak(request: TurnRequest) -> str:
        if request.answers:
            return f"<evaluation>sum {request.agent}</evaluation><solution>7</solution>"
        return "<evaluation>fine</evaluation><verdict>right</verdict>"

    played = play(checked, speak)
    prompts = [request.messages[-1]["content"] for request in played.steps[1]]
    assert ["sum 0" in prompt for prompt in prompts] == [True, False]
    assert ["sum 1" in prompt for prompt in prompts] == [False, True]


def test_failed_answers_are_not_checked_and_equal_ones_once_if_distinct(play: Play) -> None:
    speak = answer_of("1", "none", "1", "2")
    every_answer = play(Checked(judges=6, judges_see="answer"), speak)
    assert Counter(read_by_judges(every_answer)) == {(0,): 2, (2,): 2, (3,): 2}
    distinct = play(Checked(judges=6, judges_see="answer", distinct=True), speak)
    assert Counter(read_by_judges(distinct)) == {(0,): 3, (3,): 3}
    pairs = play(Checked(judges=6, distinct=True), speak)
    assert Counter(read_by_judges(pairs)) == {(0, 3): 3, (3, 0): 3}


@pytest.mark.parametrize("answers", [("1", "1", "1"), ("1", "none", "none")])
def test_nobody_judges_without_two_answers(answers: tuple[str, ...], play: Play) -> None:
    played = play(Checked(debaters=3, distinct=True), answer_of(*answers))
    assert len(played.steps) == 1
    assert played.transcript.meta["ended"] == "no_pair"


@pytest.mark.parametrize("judges_see", ["answer", "pair"])
def test_transcript_is_whole_and_judges_owe_no_answer(judges_see: str, play: Play) -> None:
    form = Checked.model_validate({"judges_see": judges_see, "judges": 4})
    transcript = play(form, answer_of("1", "2", "3", "4")).transcript
    assert transcript_problems(transcript) == []
    assert from_json(json.loads(json.dumps(to_json(transcript)))) == transcript
    assert not any(turn.failure for turn in transcript.turns)
    assert form.turn_count() == form.sequence_count() == len(transcript.turns) == 8
    frozen = Checked.model_validate({"judges": 4, "roles": {"judge": {"policy": "start"}}})
    assert frozen.trained_agents() == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"contract": "three_section"}, "in which agents compare each other"),
        ({"conversation": "shared"}, "conversation\n  Extra inputs"),
        ({"judges_see": "all"}, "'answer' or 'pair'"),
        ({"debaters": 1}, "greater than or equal to 2"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Checked.model_validate(settings)
