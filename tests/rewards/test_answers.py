import subprocess
import sys
import threading

import pytest

from debate_protocol.types import Question
from debate_rewards import answer_checking as answers
from debate_rewards.answer_checking import answer_classes, check, check_many, same_answer
from debate_rewards.math_pool import AnswerComparison


def ask(gold, kind="math", **meta):
    return Question("q", "?", gold, {"kind": kind, **meta})


def verdict(gold, prediction, kind="math", **meta):
    found = check(ask(gold, kind, **meta), prediction)
    return found.verdict, found.reason


@pytest.mark.parametrize(
    ("gold", "prediction", "expected"),
    [
        (r"\frac{1}{2}", r"It is \boxed{0.5}.", ("right", "equivalent")),
        ("1/2", r"\boxed{\frac12}", ("right", "equivalent")),
        ("x^2-1", r"\boxed{(x-1)(x+1)}", ("right", "equivalent")),
        ("42", r"\boxed{42}", ("right", "same_text")),
        ("1,234", r"\boxed{1234}", ("right", "same_text")),
        ("#### 18", "so it is 18", ("right", "same_text")),
        ("42", "She has 40+2 = 42 apples.", ("right", "same_text")),
        ("7", r"The answer is 7.", ("right", "same_text")),
        ("7", "Answer: $7$", ("right", "same_text")),
        ("42", r"\boxed{43}", ("wrong", "different")),
        (r"\sqrt{2}", r"\boxed{\sqrt{3}}", ("wrong", "different")),
        ("42", None, ("wrong", "no_answer")),
        ("42", "  ", ("wrong", "no_answer")),
        ("42", r"\boxed{}", ("wrong", "no_answer")),
        ("42", "no idea", ("wrong", "unparsable")),
        (None, "42", ("unverifiable", "no_gold")),
        ("", "42", ("unverifiable", "gold_unparsable")),
    ],
)
def test_check_math(gold, prediction, expected):
    assert verdict(gold, prediction) == expected


@pytest.mark.parametrize(
    "response",
    [
        r"Agent 1 says \boxed{7}, but \boxed{42}",
        r"<solution>\boxed{42}</solution><evaluation>Agent 1 says \boxed{7}</evaluation>",
        r"<evaluation>\boxed{7} is off</evaluation><solution>I get \boxed{42}.</solution>",
    ],
)
def test_check_reads_the_responses_own_final_box(response):
    assert verdict("42", response)[0] == "right"
    assert verdict("7", response)[0] == "wrong"


RULES = {
    "2^{-70}": {"2^{-71}": False, r"\frac{1}{2^{70}}": True},
    ".0000672": {".0000673": False, ".000067": False, r"6.72\times10^{-5}": True},
    r"\frac13": {"0.333333": True, "0.33333": False, r"0.\overline{3}": True, "0.3333333": True},
    r"e^{-50}": {r"e^{-51}": False, r"\frac{1}{e^{50}}": True},
    "52_8": {"52_7": False, "52": True, "53_8": False, "52_{\\text{eight}}": True, "52_0": False},
    "(2,5]": {r"2<x\le5": True, r"x\in(2,5]": True, r"2\le x\le5": False, "[2,5)": False},
    r"2<x\le5": {"(2,5]": True, "(2,5)": False},
    r"(-\infty,2)\cup(3,\infty)": {r"x<2 \text{ or } x>3": True, r"2<x<3": False},
    "x": {"X": False, "x": True, "y": False},
    "2m": {"2s": False, "2": False, "2 m": True, "m+m": True},
    "e": {"E": False, r"\mathrm{e}": True, r"\exp(1)": True},
    "x^2+1=0": {"x^2+2=0": False, "2x^2+2=0": True},
    "10080": {"10 080": True, "10{,}080": True, r"10,\!080": True, "10, 080": False},
    "5": {"x = 5": True, r"5\text{ cm}": True, r"5\%": True, "5 6": False, "5 or 6": False}
    | {"x=": False, "": False, r"\boxed{5}": True, r"5\text{ million}": False, r"-\infty": False},
    "5000000": {r"5\text{ million}": True},
    "11": {"5 6": False, r"\infty^{\infty}": False},
    "1,2": {"2,1": True, r"\{1,2\}": True, "(1,2)": True, "1": False, "1,2,3": False, "12": False},
    "(1,2)": {"(2,1)": False, "[1,2]": False, "1,2": True},
    "1,2,3": {"1,2": False, "3, 2, and 1": True},
    "2i": {"2 i": True, r"2\mathrm{i}": True, "-2i": False, "i+i": True},
    r"e^{i\pi/3}": {r"\frac12+\frac{\sqrt3}{2}i": True, r"\frac12-\frac{\sqrt3}{2}i": False},
    r"\text{no solution}": {
        "No solution.": True,
        r"\emptyset": False,
        r"\text{one solution}": False,
    },
    r"\sqrt{x^2}": {"|x|": True, "x": False},
    r"\log_2 8": {"3": True, "4": False},
}


@pytest.mark.parametrize("gold", RULES)
def test_check_rules_for_mathematics(gold):
    found = {given: verdict(gold, f"\\boxed{{{given}}}")[0] == "right" for given in RULES[gold]}
    assert found == RULES[gold]


@pytest.mark.parametrize(
    ("kind", "gold", "prediction", "right"),
    [
        ("choice", "B", r"\boxed{B}", True),
        ("choice", "(B)", "Answer: (b)", True),
        ("choice", "B", "A car is fast, so the answer is B.", True),
        ("choice", "B", "I choose (B)", True),
        ("choice", "B", "B. Because it is.", True),
        ("choice", "B", r"\boxed{\text{A}}", False),
        ("choice", "B", "Paris", True),
        ("yes_no", "yes", "Yes, there is no doubt.", True),
        ("yes_no", "true", r"\boxed{\text{yes}}", True),
        ("yes_no", "no", "It cannot be, so no", True),
        ("yes_no", "no", "Yes", False),
        ("number", "1,234.50", "in all $1234.5", True),
        ("number", "0.75", r"\boxed{\frac{3}{4}}", True),
        ("number", "-3", "x = −3", True),
        ("number", "5", "5 of 6", False),
        ("text", "New York", "new  york.", True),
        ("text", "- - +", "- - +", True),
        ("text", "- - +", "- + -", False),
        ("text", "New York", "NYC", True),
    ],
)
def test_check_other_kinds_without_a_worker(kind, gold, prediction, right):
    meta = {"choices": ["London", "Paris", "Rome"]} if kind == "choice" else {"accept": ["NYC"]}
    expected = "right" if right else "wrong"
    assert verdict(gold, prediction, kind, **(meta if kind in ("choice", "text") else {}))[0] == (
        expected
    )


def test_check_refuses_an_unknown_kind():
    with pytest.raises(ValueError, match="did you mean 'choice'"):
        check(ask("A", "choise"), "A")


def test_check_gold_that_cannot_be_computed_is_unverifiable():
    found = check(ask("9^{9^{9^{9}}}"), r"\boxed{x}", limit_s=0.5)
    assert (found.verdict, found.reason) == ("unverifiable", "gold_timeout")


def test_check_uses_the_cache_for_a_second_look():
    question, prediction = ask(r"\tan y"), r"\boxed{\frac{\sin y}{\cos y}}"
    assert check(question, prediction).seconds > 0
    assert check(question, prediction).seconds == 0


def test_check_a_cached_timeout_is_tried_again_only_with_a_longer_limit(monkeypatch):
    limits = []

    class Pool:
        def compare(self, gold, prediction, limit_s):
            limits.append(limit_s)
            return AnswerComparison("timeout", limit_s)

    monkeypatch.setattr(answers, "_cache", {})
    monkeypatch.setattr(answers, "shared_pool", Pool)
    for limit_s in (0.2, 0.2, 0.1, 0.4):
        assert check(ask(r"\sin a"), r"\boxed{c}", limit_s=limit_s).reason == "timeout"
    assert limits == [0.2, 0.4]


def test_check_a_gold_answer_that_hangs_is_tried_once(monkeypatch):
    asked = []

    class Pool:
        def compare(self, gold, prediction, limit_s):
            asked.append(prediction)
            return AnswerComparison("gold_timeout", limit_s)

    monkeypatch.setattr(answers, "_cache", {})
    monkeypatch.setattr(answers, "shared_pool", Pool)
    for given in ("c", "d", "c"):
        found = check(ask(r"\sin a"), rf"\boxed{{{given}+1}}", limit_s=1)
        assert (found.verdict, found.reason) == ("unverifiable", "gold_timeout")
    assert asked == ["c+1"]


def test_check_many_keeps_order_from_many_threads():
    asked = [(ask(f"{i}z"), rf"\boxed{{z \cdot {i + i % 2}}}") for i in range(1, 17)]
    results: list[list[str]] = []

    def run() -> None:
        results.append([v.verdict for v in check_many(asked)])

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [["wrong", "right"] * 8] * 3


def test_same_answer_and_classes_go_by_equivalence():
    question = ask(None)
    assert same_answer(question, r"\boxed{\frac{1}{2}}", r"\boxed{0.5}")
    assert not same_answer(question, r"\boxed{1}", r"\boxed{2}")
    assert not same_answer(question, None, None)
    given = [r"\boxed{3}", None, r"\boxed{\frac{6}{2}}", r"\boxed{4}", "nothing", "3.0"]
    assert answer_classes(question, given) == [0, None, 0, 1, None, 0]


def test_import_brings_nothing_heavy():
    code = (
        "import sys\n"
        "from debate_rewards import V2, Verifiable, check, debate_metrics\n"
        "from debate_protocol.types import Question\n"
        "check(Question('q', '?', 'yes', {'kind': 'yes_no'}), 'no')\n"
        "from debate_rewards import math_pool\n"
        "heavy = {'sympy', 'torch', 'transformers', 'math_verify'} & set(sys.modules)\n"
        "print(sorted(heavy), math_pool._shared)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[] None"
