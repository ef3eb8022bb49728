"""Which wrong answer an actor-critic debate is guided to."""

import random
from typing import Any

import pytest

from debate_protocol.forms.actor_critic import wrong_answer
from debate_protocol.types import Question


def same(left: str, right: str) -> bool:
    return left.strip("()").casefold() == right.strip("()").casefold()


@pytest.mark.parametrize(
    ("right", "meta", "own", "wrong"),
    [
        ("B", {"kind": "choice", "choices": ["x", "y"]}, ["C"], "A"),
        ("y", {"kind": "choice", "choices": ["x", "y"]}, [], "x"),  # written out as the right one
        ("2", {"kind": "choice", "choices": {"1": "x", "2": "y"}}, [], "1"),
        ("(B)", {"kind": "choice"}, ["(b)", "D"], "D"),  # its own wrong answer
        ("(B)", {"kind": "choice"}, [], "A"),
        ("A", {"kind": "choice"}, [], "B"),
        ("E", {"kind": "choice", "choices": ["x", "y"]}, [], "A"),  # is none of the choices
        ("Yes", {"kind": "yes_no"}, ["maybe"], "No"),
        ("false", {"kind": "yes_no"}, [], "true"),
        ("42", {}, ["42", "41"], "41"),
        ("42", {}, ["42"], "43"),
        ("2.9", {"kind": "number"}, [], "2.0"),
        ("x^{2}+1", {"kind": "math"}, [], "x^{2}+2"),
        ("\\pi", {}, [], "\\pi + 1"),
        ("Paris", {"kind": "text"}, [], None),
        ("Paris", {"kind": "text"}, ["paris", "Rome"], "Rome"),
        (None, {}, ["7"], None),
        ("valid", {"kind": "text"}, ["maybe"], "invalid"),
        ("Paris", {"kind": "text", "wrong_answers": ["Oslo"]}, [], "Oslo"),
        ("Paris", {"kind": "text", "wrong_answers": ["Oslo"]}, ["Rome"], "Rome"),
        ("7 km", {"kind": "text", "wrong_answers": ["9 km"]}, ["7 km"], "9 km"),
        # What is accepted, too, is no wrong answer, whoever names it.
        ("Paris", {"kind": "text", "accept": ["Lutetia"]}, ["Lutetia", "Rome"], "Rome"),
        ("Paris", {"kind": "text", "accept": ["x"], "wrong_answers": ["x"]}, ["x"], None),
    ],
)  # fmt: skip
def test_wrong_answer_takes_the_first_that_is_known(
    right: str | None, meta: dict[str, Any], own: list[str], wrong: str | None
) -> None:
    question = Question("q", "?", right, meta)
    assert wrong_answer(question, own, same, random.Random(0)) == wrong


def test_wrong_answer_draws_among_the_other_choices() -> None:
    question = Question("q", "?", "C", {"kind": "choice", "choices": list("wxyz")})
    drawn = {wrong_answer(question, [], same, random.Random(seed)) for seed in range(50)}
    assert drawn == {"A", "B", "D"}
