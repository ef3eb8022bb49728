"""Verdicts on answers: tables of replies, classes of equal answers, and what a check costs."""

import inspect
import itertools
import runpy
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from debate_protocol.types import Question
from debate_rewards import answer_checking, answer_reward, verify
from debate_rewards.answer_checking import (
    answer_classes,
    check,
    check_many,
)
from debate_rewards.math_pool import AnswerComparison

ROOT = Path(__file__).parents[2]


def ask(gold: Any, kind: str = "math", **meta: Any) -> Question:
    return Question("q", "?", gold, {"kind": kind, **meta})


def boxed(answer: str) -> str:
    return rf"\boxed{{{answer}}}"


def rows_of(table: str) -> list[Any]:
    """Read a table of ` | ` between its columns; `⏎` breaks a line."""
    rows = []
    for line in table.strip().splitlines():
        columns = line.replace("⏎", "\n").split(" | ")
        rows.append(pytest.param(*columns, id=" ".join(columns[1:])))
    return rows


# ---- verdicts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gold", "prediction", "verdict", "reason"),
    [
        (r"\frac{1}{2}", r"It is \boxed{0.5}.", "right", "equivalent"),
        ("42", r"\boxed{42}", "right", "same_text"),
        ("#### 18", "so it is 18", "right", "same_text"),
        ("7", "Answer: $7$", "right", "same_text"),
        (r"\sqrt{2}", r"\boxed{\sqrt{3}}", "wrong", "different"),
        ("42", "  ", "wrong", "no_answer"),
        ("42", "no idea", "wrong", "unparsable"),
        (None, "42", "unverifiable", "no_gold"),
        ("", "42", "unverifiable", "gold_unparsable"),
    ],
)
def test_a_verdict_has_a_reason(
    gold: str | None, prediction: str | None, verdict: str, reason: str
) -> None:
    result = check(ask(gold), prediction)
    assert (result.verdict, result.reason) == (verdict, reason)


# Verdict, gold answer, boxed answer.
MATHEMATICS = r"""
wrong | 2^{-70} | 2^{-71}
right | 2^{-70} | \frac{1}{2^{70}}
wrong | .0000672 | .0000673
wrong | .0000672 | .000067
right | .0000672 | 6.72\times10^{-5}
right | \frac13 | 0.333333
wrong | \frac13 | 0.33333
right | \frac13 | 0.\overline{3}
right | \frac13 | 0.3333333
wrong | e^{-50} | e^{-51}
right | e^{-50} | \frac{1}{e^{50}}
wrong | 52_8 | 52_7
right | 52_8 | 52
wrong | 52_8 | 53_8
right | 52_8 | 52_{\text{eight}}
wrong | 52_8 | 52_0
right | (2,5] | 2<x\le5
right | (2,5] | x\in(2,5]
wrong | (2,5] | 2\le x\le5
wrong | (2,5] | [2,5)
right | 2<x\le5 | (2,5]
wrong | 2<x\le5 | (2,5)
right | (-\infty,2)\cup(3,\infty) | x<2 \text{ or } x>3
wrong | (-\infty,2)\cup(3,\infty) | 2<x<3
wrong | x | X
right | x | x
wrong | x | y
wrong | 2m | 2s
wrong | 2m | 2
right | 2m | 2 m
right | 2m | m+m
wrong | e | E
right | e | \mathrm{e}
right | e | \exp(1)
wrong | x^2+1=0 | x^2+2=0
right | x^2+1=0 | 2x^2+2=0
right | 10080 | 10 080
right | 10080 | 10{,}080
right | 10080 | 10,\!080
wrong | 10080 | 10, 080
right | 5 | x = 5
right | 5 | 5\text{ cm}
right | 5 | 5\%
wrong | 5 | 5 6
wrong | 5 | 5 or 6
wrong | 5 | x=
wrong | 5 | 
right | 5 | \boxed{5}
wrong | 5 | 5\text{ million}
wrong | 5 | -\infty
right | 5000000 | 5\text{ million}
wrong | 11 | 5 6
wrong | 11 | \infty^{\infty}
right | 1,2 | 2,1
right | 1,2 | \{1,2\}
right | 1,2 | (1,2)
wrong | 1,2 | 1
wrong | 1,2 | 1,2,3
wrong | 1,2 | 12
wrong | (1,2) | (2,1)
wrong | (1,2) | [1,2]
right | (1,2) | 1,2
wrong | 1,2,3 | 1,2
right | 1,2,3 | 3, 2, and 1
right | 2i | 2 i
right | 2i | 2\mathrm{i}
wrong | 2i | -2i
right | 2i | i+i
right | e^{i\pi/3} | \frac12+\frac{\sqrt3}{2}i
wrong | e^{i\pi/3} | \frac12-\frac{\sqrt3}{2}i
right | \text{no solution} | No solution.
wrong | \text{no solution} | \emptyset
wrong | \text{no solution} | \text{one solution}
right | \sqrt{x^2} | |x|
wrong | \sqrt{x^2} | x
right | \log_2 8 | 3
wrong | \log_2 8 | 4
"""


@pytest.mark.parametrize(("verdict", "gold", "answer"), rows_of(MATHEMATICS))
def test_mathematics_is_compared_by_value_and_form(verdict: str, gold: str, answer: str) -> None:
    assert check(ask(gold), boxed(answer)).verdict == verdict


# Verdict, kind, gold answer, reply.
KINDS = r"""
right | choice | B | \boxed{B}
right | choice | (B) | Answer: (b)
right | choice | B | A car is fast, so the answer is B.
right | choice | B | I choose (B)
right | choice | B | B. Because it is.
wrong | choice | B | \boxed{\text{A}}
right | choice | B | Paris
right | yes_no | yes | Yes, there is no doubt.
right | yes_no | true | \boxed{\text{yes}}
right | yes_no | no | It cannot be, so no
wrong | yes_no | no | Yes
right | number | 1,234.50 | in all $1234.5
right | number | 0.75 | \boxed{\frac{3}{4}}
right | number | -3 | x = −3
wrong | number | 5 | 5 of 6
right | text | New York | new  york.
right | text | - - + | - - +
wrong | text | - - + | - + -
right | text | New York | NYC
"""


@pytest.mark.parametrize(("verdict", "kind", "gold", "reply"), rows_of(KINDS))
def test_kinds_are_compared_as_they_are_written(
    verdict: str, kind: str, gold: str, reply: str
) -> None:
    choices = {"choices": ["London", "Paris", "Rome"]} if kind == "choice" else {}
    accept = {"accept": ["NYC"]} if kind == "text" else {}
    assert check(ask(gold, kind, **choices, **accept), reply).verdict == verdict


# Verdict, kind, gold answer, reply: numbers that are denied, bounds, parts of amounts or dates,
# alternatives, corrections, and labels that are only listed.
WORDS = r"""
wrong | number | 5 | It is not 5.
wrong | number | 5 | It is not **5**.
wrong | number | 5 | It is more than 5.
wrong | number | 5 | anything but 5
wrong | number | 5 | x > 5
wrong | number | 5 | It costs 5 million dollars.
right | number | 5000000 | It costs 5 million dollars.
wrong | math | 5 | 5 and a half
right | math | 11/2 | 5 and a half
wrong | math | 5 | negative 5
right | math | -5 | negative 5
wrong | math | 5 | twice 5
wrong | math | 5 | 5 squared
wrong | math | 5 | June 5
wrong | number | 12 | 12,50
right | number | 6 | 6, not 5
wrong | math | 0.5 | \boxed{0.5\%}
right | math | 1 | \boxed{100\%}
right | math | 10^{30}\pi | \boxed{\pi \cdot 10^{30}}
wrong | math | 10^{30}\pi | \boxed{10^{31}\pi}
wrong | number | 5 | 1234567890123456789012345.1234567
wrong | number | 5 | twenty 5
wrong | number | 5 | either 5 or something else
wrong | number | 6 | either 5 or 6
wrong | math | 5 | almost 5
wrong | math | 5 | around 5 or so
wrong | math | 5 | Answer: at least 5
wrong | number | 5 | \boxed{\text{at least }5}
wrong | number | 5 | 5ish
wrong | math | 5 | fifth
wrong | math | 5 | The distance is √5.
right | math | 2\sqrt{5} | The distance is 2√5 units.
right | math | 5 | It's 5.
right | math | 3/4 | The probability is 3/4, or 75%.
right | math | 2,5 | The solutions are x = 2 and x = 5.
right | math | -3 | It is 3 degrees below zero.
right | number | 3.5 | three and a half hours
right | number | 1250 | The warehouse holds 1 250 boxes.
right | number | 25 | Answer: twenty-five
right | math | 1 | \boxed{\text{one}}
wrong | number | 2 | two thirds
wrong | number | 1 | one of them
right | math | 64 | She pays **64 dollars** for 16 glasses.
right | math | 699 | The answer is **(C) 699**
right | math | \text{Evelyn} | The fastest of them is **Evelyn**.
wrong | math | \text{Evelyn} | The fastest is not **Evelyn**.
wrong | choice | A | A? No, B.
wrong | choice | A | I eliminated A
wrong | choice | A | everything except A
wrong | choice | A | A) red is wrong
wrong | choice | A | A) red, B) blue, C) green, D) all of the above
wrong | choice | C | C# is a language
right | choice | A | A) red
wrong | yes_no | yes | yes? no
wrong | yes_no | no | I have no idea
wrong | yes_no | no | nothing wrong with it
wrong | yes_no | yes | far from correct
right | yes_no | no | Answer: No way.
wrong | yes_no | no | There is no way to know.
wrong | yes_no | no | It cannot be determined whether this is false.
wrong | yes_no | no | no and yes
right | yes_no | yes | I'm not sure, but yes.
right | yes_no | no | Not really, no.
right | yes_no | no | Absolutely not.
right | yes_no | yes | Of course it is!
wrong | choice | B | Anything but blue.
right | choice | B | Answer: option (b)
right | choice | B | The second option.
wrong | math | 5 | 5 apples at the very most
wrong | math | 5 | upwards of 5
wrong | number | 5 | It costs over 5 dollars.
wrong | number | 5 | 5 tops
right | number | 5 | 5 fish
right | number | 6 | 5 is too small, so it is 6.
wrong | number | 5 | It might be five.
right | math | -5 | It must be minus five.
wrong | number | 1 | This is one reason.
right | number | 69 | 96? No wait, 69.
wrong | number | 96 | 96? No wait, 69.
wrong | choice | B | I'd say B. Actually, no.
wrong | math | 2/5 | He solves 2 in 5 minutes.
right | number | 7.25 | $7 and 25 cents
right | math | (4,-1) | They intersect at (4, -1).
wrong | math | (4,-1) | They do not intersect at (4, -1).
wrong | math | (4,-1) | They intersect at (4, -1) or (2, 3).
right | math | (2,-5) | x is 2 and y is -5
wrong | math | y=2x+3 | The line is not y = 2x + 3.
wrong | math | y=2x+3 | One line is y = x, and another is y = 2x + 3.
right | choice | C | Option 3
wrong | choice | C | Option 5
right | yes_no | no | I don't believe so.
right | text | Paris | It was Paris, in France.
wrong | text | Paris | It was Paris or Lyon.
right | text | photosynthesis | Photosynthesis!
wrong | text | 5 | 5!
right | math | 42 | So \boxed{42}.⏎Answer: The final answer is 42 apples
right | math | 42 | Answer: the rope is $42$ m long, I think
right | math | 42 | The answer is clearly 42.
wrong | math | 42 | The answer is 42 or 43.
wrong | math | 42 | The answer is 7, since 42 is even.
right | math | \text{Evelyn} | Answer: Evelyn
right | math | \text{Evelyn} | The final answer is $\text{Evelyn}$. I hope it is correct.
wrong | math | \text{Evelyn} | Answer: It is not $\text{Evelyn}$.
right | math | f is odd | Answer: $f$ is odd
right | math | 72 | The final answer is⏎\[⏎72⏎\]
right | math | 72 | **Final Answer:**⏎⏎$$⏎72⏎$$
right | number | 72 | So it is⏎```⏎72⏎```
wrong | math | 72 | \[⏎72⏎\]⏎Answer: 7
right | math | f(x) = x^2 + 1 | \boxed{x^2+1}
right | math | f(x) = x^2 + 1 | \boxed{g(x)=1+x^2}
wrong | math | f(x) = x^2 + 1 | \boxed{x^2-1}
right | math | a_n = 2n+1 | \boxed{2n+1}
right | math | \frac{1}{2} | The answer is $\frac12$.
wrong | math | 42 | \boxed{42}⏎Answer: it cannot be known
right | math | 3000000 | \boxed{3 million}
right | math | 3000000 | \boxed{\$3\text{ million}}
right | math | 300 | \boxed{3\text{ hundred dollars}}
"""


@pytest.mark.parametrize(("verdict", "kind", "gold", "reply"), rows_of(WORDS))
def test_words_around_an_answer_count(verdict: str, kind: str, gold: str, reply: str) -> None:
    choices = ["red", "blue", "green", "all of the above"]
    assert check(ask(gold, kind, choices=choices), reply).verdict == verdict


@pytest.mark.parametrize(
    ("verdict", "reply"),
    [
        ("right", "Answer: B. F. Skinner"),
        ("right", "C. B. F. Skinner"),
        ("wrong", "B. Wilhelm Wundt"),
        ("wrong", "B."),
    ],
)
def test_choice_may_begin_as_a_label_does(verdict: str, reply: str) -> None:
    choices = ["William James", "Wilhelm Wundt", "B. F. Skinner"]
    assert check(ask("C", "choice", choices=choices), reply).verdict == verdict


@pytest.mark.parametrize("quote", [r"\boxed{7}", "Answer: 7\n", r"so $\boxed{7}$ or \boxed{8}"])
def test_a_quote_before_the_final_answer_changes_nothing(quote: str) -> None:
    for answer, verdict in (
        (r"\boxed{42}", "right"),
        (r"\boxed{7}", "wrong"),
        ("Answer: 42", "right"),
    ):
        for response in (f"Agent 1: {quote}\n{answer}", f"<think>{quote}</think>{answer}"):
            assert check(ask("42"), response).verdict == verdict


def test_checks_of_many_threads_keep_their_order() -> None:
    pairs = []
    for number in range(1, 9):
        pairs.append((ask(f"{number}z"), boxed(rf"z \cdot {number + number % 2}")))
    verdicts: list[list[str]] = []

    def run() -> None:
        verdicts.append([result.verdict for result in check_many(pairs)])

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == [["wrong", "right"] * 4] * 3


# ---- workers that stand in ------------------------------------------------------------------

Pair = tuple[str, str]


class RecordingPool:
    """Workers that answer as they are told, and record what they are asked."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome
        self.pairs: list[Pair] = []
        self.limits: list[float] = []

    def compare(self, gold: str, prediction: str, limit_s: float) -> AnswerComparison:
        self.pairs.append((gold, prediction))
        self.limits.append(limit_s)
        outcome = self.outcome(gold, prediction)
        return AnswerComparison(outcome, limit_s if "timeout" in outcome else 0.0)


def use_pool(monkeypatch: pytest.MonkeyPatch, outcome: Any) -> RecordingPool:
    pool = RecordingPool(outcome)
    monkeypatch.setattr(answer_checking, "_cache", type(answer_checking._cache)())
    monkeypatch.setattr(answer_checking, "shared_pool", lambda: pool)
    return pool


def test_a_cached_timeout_is_tried_again_only_with_a_longer_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = use_pool(monkeypatch, lambda gold, prediction: "timeout")
    for limit_s in (0.2, 0.2, 0.1, 0.4):
        assert check(ask(r"\sin a"), boxed("c"), limit_s=limit_s).reason == "timeout"
    assert pool.limits == [0.2, 0.4]


def test_an_answer_that_takes_too_long_is_waited_for_twice_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tower = "x^{9^{9^9}}"

    def outcome(gold: str, prediction: str) -> str:
        return {gold: "gold_timeout", prediction: "timeout"}.get(tower, "different")

    pool = use_pool(monkeypatch, outcome)
    answers = [*(rf"\sqrt{{y+{number}}}" for number in range(9)), tower]
    assert answer_classes(Question("q", "?"), answers) == [*range(10)]
    assert len([pair for pair in pool.pairs if tower in pair]) == 2


# ---- classes --------------------------------------------------------------------------------


def partition(question: Question, replies: Sequence[str]) -> frozenset[frozenset[str]]:
    members = defaultdict(set)
    for reply, number in zip(replies, answer_classes(question, replies), strict=True):
        members[number].add(reply)
    return frozenset(frozenset(replies_of_class) for replies_of_class in members.values())


@pytest.mark.parametrize(
    ("gold", "answers", "classes"),
    [
        (None, ["50", r"50\%", "0.5"], [0, 0, 1]),
        (r"50\%", ["50", r"50\%", "0.5"], [0, 0, 0]),
        (None, ["(1,2)", "1, 2", "2, 1", "(2,1)", r"\{1,2\}"], [0, 1, 1, 2, 1]),
        ("(1,2)", ["(1,2)", "1, 2", "2, 1", "(2,1)", r"\{1,2\}"], [0, 0, 1, 1, 2]),
    ],
)
def test_classes_follow_the_question_and_are_the_same_in_every_order(
    gold: str | None, answers: list[str], classes: list[int]
) -> None:
    question = Question("q", "?", gold)
    replies = [boxed(answer) for answer in answers]
    assert answer_classes(question, replies) == classes
    partitions = {partition(question, order) for order in itertools.permutations(replies)}
    assert len(partitions) == 1


def test_classes_of_formulas_without_keys_are_connected_components(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A relation that is not transitive: 1 ~ 2 ~ 3, but not 1 ~ 3.
    def near(gold: str, prediction: str) -> str:
        return "equal" if abs(int(gold[-1]) - int(prediction[-1])) <= 1 else "different"

    use_pool(monkeypatch, near)
    replies = [boxed(rf"\sin x_{number}") for number in (1, 2, 3, 7)]
    expected = {frozenset(replies[:3]), frozenset(replies[3:])}
    for order in itertools.permutations(replies):
        assert partition(Question("q", "?"), order) == expected


# ---- functions for other trainers -----------------------------------------------------------


def test_answer_reward_reads_texts_and_chats() -> None:
    blocks = [{"type": "image"}, {"type": "text", "text": "Answer: 5"}]
    completions = [
        boxed("5"),
        [{"role": "user", "content": "4?"}, {"role": "assistant", "content": boxed("5")}],
        [{"role": "assistant", "content": blocks}],
        # What the model says, not what a tool or an environment answers it.
        [
            {"role": "assistant", "content": "I ask."},
            {"role": "tool", "content": boxed("5")},
        ],
        [{"role": "assistant", "content": boxed("5")}, {"role": "user", "content": "Sure?"}],
        [{"role": "assistant", "content": None}],
        [],
        "",
    ]
    assert answer_reward(completions=completions, answer=[5] * 8) == [1, 1, 1, 0, 1, 0, 0, 0]
    with pytest.raises(ValueError, match="2 completions and 1 of answer"):
        answer_reward(completions=["a", "b"], answer=["a"])


def test_answer_reward_reads_the_columns_of_a_data_set() -> None:
    rewards = answer_reward(
        completions=["blue", "Answer: 6", "Answer: 6", "blue", "blue", "Answer: 6"],
        answer=["B", 5, float("nan"), "B", "B", 6],
        kind=["choice", "number", "number", "choice", None, None],
        choices=[
            ["red", "blue"],
            None,
            None,
            {"text": ["red", "blue"], "label": ["A", "B"]},
            ["red", "blue"],
            None,
        ],
        accept=[None, ["6"], None, None, None, None],
    )
    assert rewards == [1, 1, None, 1, 1, 1]
    choices = [["red", "blue"]]
    assert answer_reward(completions=["blue"], answer=["B"], choices=choices) == [1]
    with pytest.raises(ValueError, match="2 completions and 1 of accept"):
        answer_reward(completions=["a", "b"], answer=["a", "b"], accept=[None])


@pytest.mark.parametrize("gold", [["5", "6"], {"value": "5"}])
def test_gold_that_is_no_single_answer_is_refused(gold: Any) -> None:
    message = "answer: found .*; expected a text, a number or None"
    with pytest.raises(ValueError, match=message):
        verify([gold], ["5"])
    with pytest.raises(ValueError, match=message):
        answer_reward(completions=["5"], answer=[gold])


def test_verl_function_has_the_arguments_that_verl_gives() -> None:
    compute_score = runpy.run_path(str(ROOT / "examples" / "verl_reward.py"))["compute_score"]
    names = list(inspect.signature(compute_score).parameters)
    assert names[:4] == ["data_source", "solution_str", "ground_truth", "extra_info"]
    info = {"kind": "choice", "choices": ["red", "blue"], "index": 7}
    arguments = {"solution_str": "blue", "ground_truth": "B", "extra_info": info}
    result = compute_score(data_source="x", **arguments, reward_router_address=None)
    assert result["score"] == 1.0


def test_an_import_brings_nothing_heavy_and_starts_no_worker() -> None:
    code = (
        "import sys\n"
        "from debate_rewards import V2, Verifiable, check, debate_metrics, math_pool\n"
        "from debate_protocol.types import Question\n"
        "check(Question('q', '?', 'yes', {'kind': 'yes_no'}), 'no')\n"
        "heavy = {'sympy', 'torch', 'transformers', 'math_verify'} & set(sys.modules)\n"
        "print(sorted(heavy), math_pool._shared)"
    )
    command = [sys.executable, "-c", code]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "[] None"


def test_verify_judges_lists_in_order() -> None:
    results = verify([5, "1/2", None, "B"], [boxed("5"), boxed("0.6"), "x", None])
    verdicts = [result.verdict for result in results]
    assert verdicts == ["right", "wrong", "unverifiable", "wrong"]
    assert verify([], []) == []
    with pytest.raises(ValueError, match="1 golds and 0 predictions"):
        verify(["5"], [])


@pytest.mark.parametrize("choices", ["A) red B) blue", 5, {"red"}])
def test_choices_that_are_no_list_are_refused(choices: Any) -> None:
    question = Question("q7", "?", "A", {"kind": "choice", "choices": choices})
    with pytest.raises(ValueError, match=r"question 'q7', meta.choices: found .*, expected a list"):
        check(question, "A")


@pytest.mark.parametrize("accept", ["17", 17, {"a": "17"}, [["17"]], [None], [float("inf")]])
def test_accepted_answers_that_are_no_list_of_texts_are_refused(accept: Any) -> None:
    question = Question("q7", "?", "42", {"accept": accept})
    with pytest.raises(ValueError, match=r"question 'q7', meta.accept: found .*, expected a list"):
        check(question, "1")
