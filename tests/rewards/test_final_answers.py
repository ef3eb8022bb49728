"""Which part of a response is its own final answer, and that reading it takes linear time."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debate_protocol.types import Question
from debate_rewards.answer_checking import check
from debate_rewards.answers.questions import read_answer
from debate_rewards.answers.reply import KINDS, Kind, final_answer
from debate_rewards.answers.spelling import MAX_MATH_CHARS, spelling
from debate_rewards.answers.types import read_mathematics


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (r"Agent 1 says \boxed{7}, but it is \boxed{42}.", "42"),
        (r"\boxed{7}? \boxed{42}", "42"),  # two boxes near each other are not one list
        (r"\boxed{\boxed{42}}", "42"),
        (r"\boxed{7} and so \boxed{ \boxed{42} }", "42"),
        (r"<think>\boxed{7}</think>So it is \boxed{42}.", "42"),
        (r"<think>\boxed{7}</think>The answer is 42.", "42"),
        (r"<think>\boxed{42}</think>", "42"),
        (r"<think>cut off: \boxed{42}", "42"),
        (r"<THINK>\boxed{7}</ think ><think>\boxed{8}</think>Answer: 42", "42"),
        ("Agent 1 says \\boxed{7}.\nAnswer: 42", "42"),
        ("Answer: 7 is what agent 1 says.\nI find \\boxed{42}.", "42"),
        ("Answer: \\boxed{42}", "42"),
        ("**Answer:**\n\n42", "42"),
        ("**Answer:** 42", "42"),
        (r"The answer is $42$", "$42$"),
        ("It took 7 steps.\n#### 42", "42"),
        (r"<solution>\boxed{42}</solution><evaluation>agent 1: \boxed{7}</evaluation>", "42"),
        (r"<evaluation>agent 1: \boxed{7}</evaluation><solution>So 42</solution>", "So 42"),
        (r"<think><solution>7</solution></think><solution>42</solution>", "42"),
        (r"\boxed{f(\{1\}) = {42}}", r"f(\{1\}) = {42}"),
    ],
)
def test_final_answer_is_the_responses_own(response: str, expected: str) -> None:
    found = final_answer(response, "math")
    assert found is not None
    assert found.text == expected


@pytest.mark.parametrize(
    "response", ["", " \n", r"\boxed{}", "<solution></solution>", "<think></think>"]
)
def test_final_answer_is_none_when_there_is_none(response: str) -> None:
    found = final_answer(response, "math")
    assert found is None or found.text == "<think></think>"


@pytest.mark.parametrize("quote", [r"\boxed{7}", "Answer: 7\n", r"so $\boxed{7}$ or \boxed{8}"])
def test_check_a_quoted_answer_before_the_own_one_changes_nothing(quote: str) -> None:
    for own, verdict in (
        (r"\boxed{42}", "right"),
        (r"\boxed{7}", "wrong"),
        ("Answer: 42", "right"),
    ):
        for response in (f"{own}", f"Agent 1: {quote}\n{own}", f"<think>{quote}</think>{own}"):
            assert check(Question("q", "?", "42"), response).verdict == verdict


HOSTILE = {
    "spaces in a box": "\\boxed{1" + " " * 150_000 + "2}",
    "open brackets": "\\(" * 75_000,
    "boxes": "\\boxed{" * 40_000,
    "closed boxes": "\\boxed{1}" * 30_000,
    "thoughts": "<think>" * 30_000 + "</think>" * 30_000,
    "tags": "< solution" * 30_000,
    "answers": "Answer:\n" * 30_000,
    "answer is": "answer is " * 30_000,
    "answer far": "answer" + " " * 150_000 + "isn't",
    "dollars": "$" * 150_001,
    "digits": "1" * 150_000,
    "commas": "1,111" * 30_000,
    "slashes": "1 / " * 60_000,
    "texts": "\\text{" * 30_000,
    "letters": "A " * 90_000,
    "quotes": "'" * 150_000 + "b",
    "alternatives": "A or " * 30_000,
    "factors": "(x+1)" * 30_000,
    "money": "$1 and " * 25_000,
    "conclusions": "so 1 " * 30_000,
    "bounds": "x<1 or " * 20_000,
    "asides": " (a" * 50_000,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", HOSTILE)
def test_reading_an_answer_takes_linear_time(name: str, kind: Kind) -> None:
    question = Question("q", "?", "1", {"kind": kind, "choices": ["yes", "no"]})
    text = HOSTILE[name]
    started = time.process_time()
    for response in (text, f"\\boxed{{{text}}}", f"<solution>{text}</solution>"):
        read_answer(question, response)
    # Quadratic time would be minutes.
    assert time.process_time() - started < 2


PIECES = r"""\frac \sqrt { } ( ) [ ] , . 1 23 1,000 x i e \pi ^ _ \text{ \mathrm{ cm \circ ° % \$ $
= \approx \in \{ \} \\ \begin{pmatrix} \end{pmatrix} & √ ½ or and \le <"""


@pytest.mark.parametrize(
    ("gold", "response", "verdict"),
    [
        ("42", "So \\boxed{42}.\nAnswer: The final answer is 42 apples", "right"),
        ("42", "Answer: the rope is $42$ m long, I think", "right"),
        ("42", "The answer is clearly 42.", "right"),
        ("42", "The answer is 42 or 43.", "wrong"),
        ("42", "The answer is 7, since 42 is even.", "wrong"),
        (r"\text{Evelyn}", "Answer: Evelyn", "right"),
        (r"\frac{1}{2}", r"The answer is $\frac12$.", "right"),
        ("42", "\\boxed{42}\nAnswer: it cannot be known", "wrong"),
        ("3000000", r"\boxed{3 million}", "right"),
        ("3000000", r"\boxed{\$3\text{ million}}", "right"),
        ("300", r"\boxed{3\text{ hundred dollars}}", "right"),
    ],
)
def test_check_reads_sentences_around_one_number(gold: str, response: str, verdict: str) -> None:
    assert check(Question("q", "?", gold), response).verdict == verdict


LATEX = st.lists(st.sampled_from([*PIECES.split(), " ", "\ud800", "\x00"]), max_size=60).map(
    "".join
)


@settings(max_examples=500, deadline=None)
@given(LATEX | st.text(max_size=200))
def test_spelling_and_reading_survive_any_text(text: str) -> None:
    assert len(spelling(text)) <= 12 * len(text)
    answer = read_mathematics(text)
    assert answer.key == read_mathematics(text).key


@pytest.mark.parametrize(
    "unit", ["{", "\\frac", "\\text{", " ", "1,", "1 ", "\\\\", "\\text{ cm}", "("]
)
def test_reading_mathematics_is_quick_at_the_longest_length(unit: str) -> None:
    started = time.process_time()
    read_mathematics((unit * MAX_MATH_CHARS)[:MAX_MATH_CHARS])
    assert time.process_time() - started < 1
