"""Proposed questions: who speaks when, and what becomes of questions that a checker refuses."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from debate_protocol.forms import Checked, Proposal, ProposalProblem
from debate_protocol.transcripts.files import from_json, to_json, transcript_problems
from debate_protocol.types import Question, Reply, Transcript, TurnKey, TurnRequest, turn_failed

GIVEN = Question("q", "What is 6 times 7?", "42")
PROPOSER = 5


def check_sum(text: str) -> Proposal | ProposalProblem:
    """Accept `Add 2 and 3`, hold out `Add 2 and 2`, and refuse all else."""
    if text == "Add 2 and 2":
        return "held_out_question"
    if text == "Add 2 and 3":
        return Proposal(Question(text, text, "5", {"kind": "number"}))
    return "invalid_question"


def play_proposed(
    proposal: str, form: Checked, check: Callable[[str], Any] | None = check_sum
) -> tuple[Transcript, list[list[TurnRequest]]]:
    """Play a debate of three debaters and two judges whose proposer says this."""
    run = form.start(GIVEN, seed=1, check_proposal=check)
    steps: list[list[TurnRequest]] = []

    def speak(request: TurnRequest) -> Reply:
        if request.agent == PROPOSER:
            return Reply(proposal)
        if request.answers:
            return Reply(f"\\boxed{{{request.agent}}}")
        return Reply("<evaluation>e</evaluation><comparison>Agent 0 > Agent 1</comparison>")

    try:
        requests: Any = next(run)
        while True:
            steps.append(list(requests))
            requests = run.send([speak(request) for request in requests])
    except StopIteration as end:
        return end.value, steps


def proposed(**settings: Any) -> Checked:
    return Checked.model_validate({"type": "proposed", "debaters": 3, "judges": 2, **settings})


def test_an_accepted_question_is_the_question_of_the_debate() -> None:
    text = "<question> Add 2 and 3 </question>"
    transcript, steps = play_proposed(text, proposed())
    assert [[r.agent for r in step] for step in steps] == [[5], [0, 1, 2], [3, 4]]
    assert [[r.round for r in step] for step in steps] == [[0], [1, 1, 1], [2, 2]]
    assert transcript.question == Question("Add 2 and 3", "Add 2 and 3", "5", {"kind": "number"})
    assert transcript.meta["ended"] == "max_rounds"
    assert all(request.question == transcript.question for request in steps[1] + steps[2])
    # Debaters do not see the proposer's turn, but its question.
    assert "Add 2 and 3" in steps[1][0].messages[-1]["content"]
    assert GIVEN.text not in str(steps[1] + steps[2])
    assert steps[2][0].shown == (TurnKey(0, 1), TurnKey(1, 1))
    assert not any(turn_failed(transcript, turn) for turn in transcript.turns)
    assert transcript_problems(transcript) == []
    assert from_json(json.loads(json.dumps(to_json(transcript)))) == transcript
    assert proposed().turn_count() == len(transcript.turns) == 6


@pytest.mark.parametrize(
    ("text", "ended", "failure"),
    [
        ("<question> Add 2 and 2 </question>", "held_out_question", None),
        ("<question> Add 2 and 4 </question>", "invalid_question", "invalid_question"),
        # Outside of the section there is no question.
        ("Add 2 and 3", "invalid_question", "invalid_question"),
        ("<question>Add 2 and 3<solution>5</question>", "invalid_question", "invalid_question"),
        ("", "invalid_question", "no_feedback"),
        ("<question>" + "Add 2 and 3 " * 50_000, "invalid_question", "invalid_question"),
    ],
)
def test_a_refused_question_is_not_asked(text: str, ended: str, failure: str | None) -> None:
    transcript, steps = play_proposed(text, proposed())
    assert len(steps) == 1
    assert transcript.meta["ended"] == ended
    assert transcript.question == GIVEN
    assert [turn.failure for turn in transcript.turns] == [failure]
    assert transcript_problems(transcript) == []


def test_without_a_checker_the_given_question_is_debated_as_in_checked() -> None:
    transcript, steps = play_proposed("", proposed(style="compact"), check=None)
    assert transcript.question == GIVEN
    assert {turn.agent for turn in transcript.turns} == {0, 1, 2, 3, 4}
    # The prompts are those of `checked`, so that one policy knows both.
    run = Checked(debaters=3, judges=2, style="compact").start(GIVEN, seed=1)
    assert [r.messages for r in next(run)] == [r.messages for r in steps[0]]  # type: ignore[union-attr]


@pytest.mark.parametrize("style", ["full", "compact"])
def test_proposers_are_shown_an_example_only_where_asked(style: str) -> None:
    _, steps = play_proposed("", proposed(style=style))
    assert GIVEN.text in steps[0][0].messages[-1]["content"]
    _, steps = play_proposed("", proposed(style=style, example=False))
    assert GIVEN.text not in str(steps[0][0].messages)
    assert "question" in steps[0][0].messages[-1]["content"]
    assert steps[0][0].stop == ("</question>",)
