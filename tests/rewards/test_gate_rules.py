"""Which debates go on: rules on hand-made gates."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from debate_protocol.types import Gate, Protocol, Question, Transcript, Turn
from debate_rewards import Agreed, AtMost, GateRule, Informative, InOrder


def gate(
    *answers: str | None, id: str = "q", name: str = "round_0", gold: str | None = "4"
) -> Gate:
    question = Question(id, "?", gold, {"kind": "number"})
    turns = tuple(
        Turn(i, 0, "" if answer is None else f"\\boxed{{{answer}}}")
        for i, answer in enumerate(answers)
    )
    rules = Protocol(len(answers), contract="boxed")
    return Gate(Transcript(id, question, rules, turns), name)


MIXED, RIGHT, WRONG = gate("4", "5"), gate("4", "4.0"), gate("5", None)


def test_informative_drops_groups_that_are_all_right_or_all_wrong() -> None:
    assert Informative()([MIXED, RIGHT, WRONG]) == ["go_on", "drop", "drop"]
    assert Informative()([]) == []


def test_informative_takes_correctness_from_a_plain_function() -> None:
    asked: list[Sequence[tuple[Question, str | None]]] = []

    def correct(answers: Sequence[tuple[Question, str | None]]) -> list[bool | None]:
        asked.append(answers)
        return [answer == "5" for _, answer in answers]

    assert Informative()([MIXED, RIGHT, WRONG], correct=correct) == ["go_on", "drop", "go_on"]
    (once,) = asked
    assert [answer for _, answer in once] == ["4", "5", "4", "4.0", "5", None]


def test_informative_pools_debates_of_a_question_when_told() -> None:
    replies = [gate("4", id="a"), gate("5", id="a"), gate("4", id="b"), gate("4", id="b")]
    assert Informative()(replies) == ["drop"] * 4
    assert Informative(group="question")(replies) == ["go_on", "go_on", "drop", "drop"]


def test_informative_drops_and_names_a_question_without_a_usable_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert Informative()([gate("4", "5", id="row-7", gold=None)]) == ["drop"]
    assert "row-7" in caplog.text


@pytest.mark.parametrize("others", ["keep", "drop"])
def test_at_most_draws_the_same_debates_in_any_order(others: Any) -> None:
    gates = [gate("4", id=str(i)) for i in range(20)]
    rule = AtMost(go_on=8, others=others)
    first = rule(gates, seed=3)
    assert (first.count("go_on"), first.count(others)) == (8, 12)
    assert rule(gates[::-1], seed=3) == first[::-1]
    assert rule(gates, seed=4) != first
    assert AtMost(go_on=20)(gates) == ["go_on"] * 20
    assert AtMost(go_on=1)([gate("4", id="\ud800")]) == ["go_on"]
    assert AtMost(go_on=0)(gates) == ["keep"] * 20


def test_at_most_draws_every_debate_equally_often() -> None:
    gates = [gate("4", id=str(i)) for i in range(4)]
    counts = [0] * 4
    for seed in range(2000):
        for i, decision in enumerate(AtMost(go_on=1)(gates, seed=seed)):
            counts[i] += decision == "go_on"
    # Binomial(2000, 1/4): mean 500, standard deviation 19.4; five of them are 97.
    assert sum(counts) == 2000
    assert max(abs(count - 500) for count in counts) < 97


def test_agreed_ends_debates_whose_answers_are_the_same() -> None:
    gates = [RIGHT, MIXED, gate("4", "4", "5"), gate(None, None), gate("4", None)]
    assert Agreed()(gates) == ["keep", "go_on", "go_on", "go_on", "go_on"]
    # 2 of 3 is enough for a share of 0.6; 1 of 2 is not.
    assert Agreed(share=0.6)(gates) == ["keep", "go_on", "keep", "go_on", "go_on"]


def test_rules_decide_only_on_gates_of_their_name() -> None:
    later = gate("4", "4", name="round_1")
    assert Informative(at="round_0")([RIGHT, later]) == ["drop", "go_on"]
    assert AtMost(at="round_1", go_on=0)([RIGHT, later]) == ["go_on", "keep"]


def test_in_order_gives_each_rule_what_the_one_before_let_go_on() -> None:
    config: Any = TypeAdapter(GateRule).validate_python(
        {"type": "in_order", "rules": [{"type": "informative"}, {"type": "at_most", "go_on": 2}]}
    )
    gates = [gate("4", str(4 + i % 2), id=str(i)) for i in range(8)]  # odd ones are informative
    decisions = config(gates, seed=1)
    assert decisions[::2] == ["drop"] * 4
    assert sorted(decisions[1::2]) == ["go_on", "go_on", "keep", "keep"]
    assert isinstance(config, InOrder)


@pytest.mark.parametrize("wrong", [{"type": "at_most"}, {"type": "agreed", "share": 0}])
def test_gate_rules_refuse_settings_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(GateRule).validate_python(wrong)
