"""The package `answers`: a reply's final answer, the types of answers and the laws they keep."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debate_protocol.types import Question
from debate_rewards.answer_checking import answer_classes, check, same_answer
from debate_rewards.answers.questions import read_answer
from debate_rewards.answers.reply import KINDS, Kind, Unreadable, final_answer
from debate_rewards.answers.spelling import spelling
from debate_rewards.answers.types import READING_ORDER, Answer, Label, read_mathematics

# ---- the final answer -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (r"Agent 1 says \boxed{7}, but it is \boxed{42}.", "42"),
        (r"\boxed{7} and so \boxed{ \boxed{42} }", "42"),
        (r"<think>\boxed{7}</think>So it is \boxed{42}.", "42"),
        (r"<think>\boxed{42}</think>", "42"),
        (r"<think>cut off: \boxed{42}", "42"),
        ("Agent 1 says \\boxed{7}.\nAnswer: 42", "42"),
        ("Answer: 7 is what agent 1 says.\nI find \\boxed{42}.", "42"),
        ("**Answer:**\n\n42", "42"),
        ("**Answer:** 42", "42"),
        ("It took 7 steps.\n#### 42", "42"),
        (r"<solution>\boxed{42}</solution><evaluation>agent 1: \boxed{7}</evaluation>", "42"),
        (r"<think><solution>7</solution></think><solution>42</solution>", "42"),
        ("<think>7</think>\n<answer> 42 </answer>", "42"),
        ("<answer>7</answer> No: <Answer>6 * 7\n42</answer>", "42"),
        (r"\boxed{7} <answer>It is \boxed{42}", "42"),
        ("<answer>7</answer> is wrong.\nAnswer: 42", "42"),
        (r"\boxed{f(\{1\}) = {42}}", r"f(\{1\}) = {42}"),
    ],
)
def test_the_final_answer_is_the_last_that_is_no_quote(response: str, expected: str) -> None:
    answer = final_answer(response, "math")
    assert answer is not None
    assert answer.text == expected


@pytest.mark.parametrize(
    ("kind", "gold", "reply", "reason"),
    [
        ("math", "5", "The answer is 42 or perhaps 43 of them.", "several numbers"),
        ("math", "5", "Either $x+1$ or $x+2$ will do.", "several formulas"),
        ("number", "5", "5 of 6", "several numbers"),
        ("number", "5", "Answer: none of them", "no number"),
        ("choice", "B", "B or C", "several labels"),
        ("choice", "B", "None of the above", "no choice"),
        ("yes_no", "no", "yes and no", "yes and no"),
        ("yes_no", "no", "It depends.", "neither yes nor no"),
    ],
)
def test_a_reply_that_cannot_be_read_has_a_reason(
    kind: str, gold: str, reply: str, reason: str
) -> None:
    question = Question("q", "?", gold, {"kind": kind})
    assert read_answer(question, reply) == Unreadable(reason)
    result = check(question, reply)
    assert (result.verdict, result.reason, result.detail) == ("wrong", "unparsable", reason)


# ---- types ----------------------------------------------------------------------------------

EXAMPLES = []
for answer_type in (*READING_ORDER, Label):
    for first, second, is_same in answer_type.EXAMPLES:
        EXAMPLES += [(first, second, is_same), (second, first, is_same)]


@pytest.mark.parametrize(("gold", "answer", "is_same"), EXAMPLES)
def test_types_keep_their_examples(gold: str, answer: str, is_same: bool) -> None:
    verdict = check(Question("q", "?", gold), rf"\boxed{{{answer}}}").verdict
    assert (verdict == "right") == is_same


# ---- laws -----------------------------------------------------------------------------------

WORDS_TEXT = r"""5 - ٥ ² ½ : 1/0 ^ _ f( ) , and % $ 1e999 \frac{ } { \pm \sqrt[ \boxed{ Answer:
\cup < = ** ? million not minus five and a half A B) yes no"""
LATEX_TEXT = r"""\frac \sqrt { } ( ) [ ] , . 1 23 1,000 x i e \pi ^ _ \text{ \mathrm{ cm \circ ° %
\$ $ = \approx \in \{ \} \\ \begin{pmatrix} \end{pmatrix} & √ ½ or and \le <"""
WORDS = [*WORDS_TEXT.split(), "\ud800"]
LATEX = [*LATEX_TEXT.split(), " ", "\ud800", "\x00"]
REPLIES = st.text() | st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join)
FORMULAS = st.lists(st.sampled_from(LATEX), max_size=60).map("".join)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(REPLIES, REPLIES, st.none() | st.lists(REPLIES | st.integers() | st.none(), max_size=4))
def test_every_reply_to_every_question_is_read_or_unreadable(
    gold: str, reply: str, choices: Any
) -> None:
    for kind in KINDS:
        question = Question("q", "?", gold, {"kind": kind, "choices": choices})
        answer = read_answer(question, reply)
        if isinstance(answer, Unreadable):
            assert answer.reason
        else:
            again = read_answer(question, reply)
            assert isinstance(again, Answer)
            # Sets and classes can hold the key, which is one for one reply.
            assert {answer.key} == {again.key}


@settings(max_examples=50, deadline=None, derandomize=True)
@given(FORMULAS | st.text(max_size=200))
def test_spelling_and_reading_survive_any_text(text: str) -> None:
    assert len(spelling(text)) <= 12 * len(text)
    assert read_mathematics(text).key == read_mathematics(text).key


NUMBER_TEXTS = "0.5 1/2 .25 0.333333 1.50 1,000 -0.1 2.0 1e3 0.66666667"
NUMBERS = st.one_of(
    st.integers(-30, 30).map(str),
    st.sampled_from(NUMBER_TEXTS.split()),
    st.builds(r"\frac{{{}}}{{{}}}".format, st.integers(-9, 9), st.integers(1, 9)),
    st.builds(r"{}\frac{{1}}{{{}}}".format, st.integers(1, 9), st.integers(2, 9)),
)
OTHER_ANSWERS = r"\sqrt{2} 2\sqrt{3} \pi \frac{1}{\sqrt{2}} 12_5 12 x x+1 1+x 2x a+bi"
OTHER_ANSWERS += r" \text{even} odd \emptyset \infty"
VALUES = st.one_of(
    NUMBERS,
    NUMBERS.map(r"{}\%".format),
    NUMBERS.map(r"{}\text{{ cm}}".format),
    NUMBERS.map(r"{}\text{{ kg}}".format),
    st.sampled_from(OTHER_ANSWERS.split()),
)
STRUCTURES = [
    "({0}, {1})",
    r"\{{{0}, {1}\}}",
    "[{0}, {1}]",
    "{0}, {1}",
    "{0}, {0}, {1}",
    r"{0} \text{{ and }} {1}",
    "x = {0}, y = {1}",
    "f({0})",
    r"\begin{{pmatrix}}{0} & {1}\end{{pmatrix}}",
    r"{0} < x \le {1}",
    r"({0}, {1}] \cup [{1}, \infty)",
]
ANSWERS = st.one_of(
    VALUES,
    st.builds("x = {}".format, VALUES),
    st.builds("{}:{}".format, st.integers(0, 30), st.integers(0, 70)),
    st.builds("y = {}x + {}".format, st.integers(1, 3), st.integers(0, 3)),
    st.builds(
        lambda form, *numbers: form.format(*numbers), st.sampled_from(STRUCTURES), NUMBERS, NUMBERS
    ),
)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.none() | ANSWERS, st.lists(ANSWERS, min_size=3, max_size=5), st.randoms())
def test_equality_is_an_equivalence_whatever_the_question(
    gold: str | None, answers: list[str], random: Any
) -> None:
    question = Question("q", "?", gold)
    replies = [rf"\boxed{{{answer}}}" for answer in answers]
    classes = answer_classes(question, replies)
    pairs = list(itertools.product(range(len(replies)), repeat=2))
    for first, second in pairs:
        is_same = classes[first] is not None and classes[first] == classes[second]
        assert same_answer(question, replies[first], replies[second]) == is_same

    order = random.sample(range(len(replies)), len(replies))
    reordered = answer_classes(question, [replies[index] for index in order])
    for first, second in pairs:
        is_same = classes[order[first]] == classes[order[second]]
        assert (reordered[first] == reordered[second]) == is_same

    if gold is not None:
        assert check(question, rf"\boxed{{{gold}}}").verdict == "right"
        verdicts = [check(question, reply).verdict for reply in replies]
        for first, second in pairs:
            if classes[first] is not None and classes[first] == classes[second]:
                assert (verdicts[first] == "right") == (verdicts[second] == "right")


# ---- linear time ----------------------------------------------------------------------------

# Two combining marks in descending class: the worst that sorting by class can meet.
REPEATED = {
    "spaces in a box": "\\boxed{1" + " " * 50_000 + "2}",
    "open brackets": "\\(" * 25_000,
    "boxes": "\\boxed{" * 13_000,
    "closed boxes": "\\boxed{1}" * 10_000,
    "thoughts": "<think>" * 10_000 + "</think>" * 10_000,
    "tags": "< solution" * 10_000,
    "displays": "\\[\n" * 15_000,
    "fences": "```\n1\n" * 8_000,
    "blank lines": "$$" + " \n" * 25_000 + "1",
    "answer tags": "<answer>" * 10_000 + "< / answer" * 10_000,
    "answers": "Answer:\n" * 10_000,
    "answer is": "answer is " * 10_000,
    "answer far": "answer" + " " * 50_000 + "isn't",
    "dollars": "$" * 50_001,
    "digits": "1" * 50_000,
    "commas": "1,111" * 10_000,
    "slashes": "1 / " * 20_000,
    "texts": "\\text{" * 10_000,
    "letters": "A " * 30_000,
    "quotes": "'" * 50_000 + "b",
    "alternatives": "A or " * 10_000,
    "factors": "(x+1)" * 10_000,
    "money": "$1 and " * 8_000,
    "conclusions": "so 1 " * 10_000,
    "bounds": "x<1 or " * 7_000,
    "asides": " (a" * 17_000,
    "combining marks": "a" + "\u0315\u0300" * 25_000,
}


# Linear time is below a second here; quadratic time would be minutes.
@pytest.mark.timeout(100)
@pytest.mark.parametrize("name", REPEATED)
def test_long_answers_of_repeated_text_are_read(name: str) -> None:
    text = REPEATED[name]
    kinds: tuple[Kind, ...] = KINDS
    for kind in kinds:
        question = Question("q", "?", "1", {"kind": kind, "choices": ["yes", "no"]})
        for response in (text, f"\\boxed{{{text}}}", f"<solution>{text}</solution>"):
            answer = read_answer(question, response)
            # No spelling grows: neither marks that are decomposed nor products or powers.
            assert isinstance(answer, Unreadable) or len(answer.canonical) <= len(response)
