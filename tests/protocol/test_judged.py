"""Debates before a judge: who speaks, who reads what, and what copies have in common."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from debate_protocol.forms import FormConfig, Judged
from debate_protocol.forms.judged import quotes, word_ends
from debate_protocol.transcripts.files import from_json, to_json, transcript_problems
from debate_protocol.types import Question, Reply, Transcript, TurnRequest, decided

PASSAGE = "The box holds two red balls and two blue ones."
QUESTION = Question("q", "How many balls?", "4", {"kind": "number", "passage": PASSAGE})


def speak(request: TurnRequest) -> str:
    assert request.contract is not None
    if "decision" in request.contract.sections:
        return "<decision>Agent 0</decision>"
    return f"I say \\boxed{{{request.guide or 4}}}" if request.answers else "It is wrong."


def held(
    form: Judged, say: Callable[[TurnRequest], str] = speak, **start: Any
) -> tuple[Transcript, list[TurnRequest]]:
    run = form.start(QUESTION, **{"seed": 0, **start})
    asked: list[TurnRequest] = []
    requests: Any = next(run)
    try:
        while True:
            asked += requests
            requests = run.send([Reply(say(request)) for request in requests])
    except StopIteration as end:
        transcript: Transcript = end.value
    assert not transcript_problems(transcript)
    assert from_json(to_json(transcript)) == transcript
    assert len(transcript.turns) == form.turn_count()
    return transcript, asked


def prompt(request: TurnRequest) -> str:
    return "\n".join(message["content"] for message in request.messages)


@pytest.mark.parametrize(
    ("settings", "spoken"),
    [
        ({}, "0 1 2"),
        ({"max_rounds": 4}, "0 1 0 2"),
        ({"order": "simultaneous", "max_rounds": 3}, "01 01 2"),
        ({"opponent": "none", "max_rounds": 2}, "0 1"),
        ({"opponent": "critic", "max_rounds": 4, "judges": 2}, "0 1 0 23"),
    ],
)
def test_sides_speak_in_their_order_and_judges_last(settings: Any, spoken: str) -> None:
    transcript, _ = held(Judged(**settings))
    rounds: dict[int, str] = {}
    for turn in transcript.turns:
        rounds[turn.round] = rounds.get(turn.round, "") + str(turn.agent)
    assert " ".join(rounds.values()) == spoken
    judge = transcript.turns[-1]
    assert [(k.agent, k.round) for k in judge.shown] == [
        (t.agent, t.round) for t in transcript.turns if t.round < judge.round
    ]


def test_a_critic_owes_no_answer_and_judges_are_shown_what_it_says() -> None:
    transcript, requests = held(Judged(opponent="critic"))
    assert [turn.failure for turn in transcript.turns] == [None, None, None]
    assert "It is wrong." in prompt(requests[2])
    assert "right or wrong" in prompt(requests[2])
    assert [request.contract.name for request in requests if request.contract] == [
        "boxed",
        "critique",
        "judgment",
    ]


def test_each_rival_argues_for_the_answer_it_is_given() -> None:
    seen = set()
    for seed in range(8):
        transcript, requests = held(Judged(assigned=True), seed=seed)
        sides = transcript.meta["sides"]
        assert sorted(sides.values()) == ["4", "5"]
        assert [requests[a].guide for a in (0, 1)] == [sides["0"], sides["1"]]
        assert f"argue that the answer is {sides['1']}" in prompt(requests[1])
        seen.add(sides["0"])
    assert seen == {"4", "5"}  # The first speaker is not always right.


def test_judges_are_not_shown_the_passage_but_whether_quotes_stand_in_it() -> None:
    def quoting(request: TurnRequest) -> str:
        said = (
            "<quote>two  red balls</quote> <quote>six</quote> <verified_quote>six</verified_quote>"
        )
        return f"{said} {speak(request)}"

    _, requests = held(Judged(private=("passage",), opponent="none", max_rounds=2), quoting)
    assert PASSAGE in prompt(requests[0])
    read = prompt(requests[1])
    assert PASSAGE not in read
    assert "<verified_quote> two red balls </verified_quote>" in read
    assert "<unverified_quote> six </unverified_quote>" in read
    assert "<verified_quote> six" not in read  # A mark that a speaker writes is made plain.
    assert requests[1].question.meta == {"kind": "number"}


def test_every_second_judge_reads_rivals_in_the_opposite_order() -> None:
    form = Judged(order="simultaneous", max_rounds=2, both_orders=True, judges=2)
    said = "I am Agent {0}, no other: \\boxed{{1{0}}}"
    _, requests = held(form, lambda a: speak(a) if a.agent > 1 else said.format(a.agent))
    first, second = (prompt(request) for request in requests[2:])
    assert first.index("{10}") < first.index("{11}")
    assert second.index("{11}") < second.index("{10}")
    # Their speeches name them, so they keep their numbers.
    turns = re.findall(r'<turn agent="(.)".*?I am Agent (.)', first + second, re.DOTALL)
    assert turns == [("0", "0"), ("1", "1"), ("1", "1"), ("0", "0")]


@pytest.mark.parametrize(
    ("text", "meant"),
    [("Agent 0", 0), ("1", 1), ("**agent 1**", 1), ("_Agent 1_", 1),
     ("Agent 01", None), ("right", None), ("", None),
     (None, None), ("Agent 0 Agent 1", None)],
)  # fmt: skip
def test_choices_are_read_as_a_whole(text: str | None, meant: int | None) -> None:
    assert decided(Judged().protocol(), text) == meant


@pytest.mark.parametrize(
    "text",
    ["<quote>a</quote> b <quote>c\nd</quote>", "<quote><quote>a</quote></quote>", "<quote>", "",
     "</quote><quote>a", "<quote></quote><quote>x</quote>"],
)  # fmt: skip
def test_quotes_are_what_an_expression_finds(text: str) -> None:
    pattern = re.compile(r"<quote>(.*?)</quote>", re.DOTALL)
    assert quotes(text) == [match.span(1) for match in pattern.finditer(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one  two\nthree", 3),
        ("well-known", 1),
        ("字" * 30, 30),  # A word each, with what follows it.
        ("ภ" * 10, 3),  # Four characters each: 4 + 4 + 2.
        ("a-" * 40, 5),  # 80 characters, 16 each.
        (" \n ", 0),
    ],
)
def test_words_are_counted_without_spaces_too(text: str, expected: int) -> None:
    assert len(word_ends(text)) == expected


def test_copies_share_what_is_said_before_the_round_in_which_they_part() -> None:
    form = Judged(diverge=True, max_rounds=5)
    parted: set[int] = set()
    for shared in range(12):
        (one, requests), (_, others) = (
            held(form, seed=seed, shared_seed=shared) for seed in (100, 200)
        )
        at = one.meta["diverged"]
        parted.add(at)
        same = [a.seed == b.seed for a, b in zip(requests, others, strict=True)]
        assert same == [request.round < at for request in requests]
    assert parted == {0, 1, 2, 3}
    alone, _ = held(form)
    assert "diverged" not in alone.meta


@pytest.mark.parametrize(
    "settings",
    [
        {"opponent": "critic", "order": "simultaneous"},
        {"both_orders": True, "order": "simultaneous"},
        {"contract": "three_section"},
        {"style": {"system": "?"}},
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(FormConfig).validate_python({"type": "judged"} | settings)


@pytest.mark.parametrize("opponent", ["rival", "critic", "none"])
def test_compact_prompts_name_speakers(opponent: Any) -> None:
    form = Judged(
        style="compact",
        opponent=opponent,
        reasons=False,
        contract={"name": "speech", "sections": ["solution"]},  # type: ignore[arg-type]
    )

    def say(request: TurnRequest) -> str:
        own = {"evaluation": "no", "solution": "7", "decision": "1"}
        assert request.contract is not None
        return "".join(f"<{s}>{own[s]}</{s}>" for s in request.contract.sections)

    _, requests = held(form, say)
    lines = prompt(requests[-1]).splitlines()
    said: Sequence[str] = {
        "rival": ["Agent 0 : 7", "Agent 1 : 7"],
        "critic": ["Agent 0 : 7", "Agent 1 :", "evaluation : no"],
        "none": ["Agent 0 : 7", "Agent 0 : 7"],
    }[opponent]
    assert lines[-len(said) - 1 :] == [*said, "decision :"]
