"""Gold answers of benchmarks, and replies that people have labelled."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from debate_protocol.types import Question
from debate_rewards.answer_checking import answer_classes, check_many

DATA = Path(__file__).parents[2] / "benchmarks" / "answers"


def rows_of(name: str) -> list[Any]:
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def question_of(row: Any) -> Question:
    meta = {"kind": row["kind"]}
    if "choices" in row:
        meta["choices"] = row["choices"]
    if row["kind"] == "puzzle":
        meta = {"kind": "text", "reasoning_gym": row["task"]}
    return Question("q", row.get("question") or "?", row["gold"], meta)


# Gold answers and replies that are still judged otherwise than a person would, by file; only the
# first of the everyday ones has a right verdict that should be wrong.
MISJUDGED: dict[str, set[tuple[str, str]]] = {
    "pairs.jsonl": set(),
    "held_out.jsonl": {
        ("45", "Answer: 45 km\n"),
        ("45", "He is 45 miles from home at the end of those 4 hours."),
        ("55", r"$\boxed{m+n=55}$"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"\boxed{(3, 90^\circ)}"),
        (r"90^\circ", r"\boxed{\frac{\pi}{2}}"),
        ("C", "A is too short and D even shorter; B is too long. C it is."),
        ("yes", "So the answer is not (True and False), which is True."),
        ("11", "You have 11 vegetables: 4 onions, 5 carrots and 2 heads of broccoli."),
    },
    "everyday.jsonl": {
        ("35", "He is 35 years old now and was 30 five years ago."),
        ("B", "All but B are wrong."),
        ("blue whale", "The answer is: the blue whale"),
    },
    "everyday_2.jsonl": {
        ("3600", "That's 3,600 meters, or 3.6 kilometers."),
        ("20", "a score"),
    },
    "everyday_3.jsonl": {
        (
            "B",
            "Let's see. A makes ATP. C holds DNA. D does photosynthesis. The ribosome makes "
            "proteins.",
        ),
        ("B", "the second one"),
        ("18.5", "1850 cents"),
        ("Joseph is an angel, and Zoey is an angel.", "Both are angels."),
    },
}


@pytest.mark.parametrize("file", MISJUDGED)
def test_labelled_replies_are_judged_as_a_person_would(file: str) -> None:
    labelled = rows_of(file)
    verdicts = check_many([(question_of(row), row["reply"]) for row in labelled])
    misjudged = set()
    for row, verdict in zip(labelled, verdicts, strict=True):
        if (verdict.verdict == "right") != row["right"]:
            misjudged.add((row["gold"], row["reply"]))
    assert len(labelled) >= (400 if file == "pairs.jsonl" else 60)
    assert misjudged == MISJUDGED[file]


GOLDS = rows_of("golds.jsonl")
# Golds that are written differently and are one answer where no question says which is meant: the
# same number with a name, unit, percent sign or base or without, or spelled in two ways.
DEGREES = ("30", "36", "40", "55", "60", "75", "76", "90", "106", "120", "145", "180")
SAME = {frozenset({number, rf"{number}^\circ"}) for number in DEGREES} - {
    frozenset({"36", r"36^\circ"}),
    frozenset({"40", r"40^\circ"}),
}
SAME |= {
    frozenset({"36", r"36^\circ", r"\$36"}),
    frozenset({"40", r"40^\circ", "40_9"}),
    frozenset({"5", "x=5", r"\$ 5"}),
    frozenset({"-4", "b = -4"}),
    frozenset({"17", r"17\text{ meters}"}),
    frozenset({"15", r"15\mbox{ cm}^2"}),
    frozenset({"12", r"12 \text{ gm}"}),
    frozenset({r"137 \frac{1}{2}", r"137.5\text{ degrees}"}),
    frozenset({"10", r"10\%"}),
    frozenset({"52", "52_8"}),
    frozenset({"24", "24_{10}"}),
    frozenset({"204", "204_5"}),
    frozenset({"1,-2", "-2,1"}),
    frozenset({r"\frac{1}{4}", r"\frac14"}),
    frozenset({r"\frac{3}{4}", r"\frac 34"}),
    frozenset({r"2\sqrt{5}", r"2 \sqrt{5}"}),
    frozenset({"10080", r"10,\!080"}),
    frozenset({"No", "no", "False"}),
    frozenset({"Yes", "yes", "True"}),
}


@pytest.mark.parametrize("wrapped", ["Some steps.\nAnswer: {}", "So \\boxed{{{}}}."])
def test_gold_answers_are_right_against_themselves(wrapped: str) -> None:
    replies = [(question_of(row), wrapped.format(row["gold"])) for row in GOLDS]
    wrong = []
    for (question, _), verdict in zip(replies, check_many(replies), strict=True):
        if verdict.verdict != "right":
            wrong.append(question.answer)
    assert wrong == []


def test_different_gold_answers_are_different() -> None:
    golds_by_kind: dict[str, dict[str, None]] = defaultdict(dict)
    for row in GOLDS:
        if row["kind"] != "choice":
            golds_by_kind[row["kind"]][row["gold"]] = None
    same = set()
    for kind, golds in golds_by_kind.items():
        question = Question("q", "?", None, {"kind": kind})
        classes = answer_classes(question, [rf"\boxed{{{gold}}}" for gold in golds])
        members = defaultdict(set)
        for gold, number in zip(golds, classes, strict=True):
            members[number].add(gold)
        same |= {frozenset(group) for group in members.values() if len(group) > 1}
    assert same == SAME


FILE = Path(__file__).parents[2] / "benchmarks" / "data" / "math500_answers.jsonl"
MATH500_GOLDS = [
    json.loads(line)["answer"] for line in FILE.read_text(encoding="utf-8").splitlines()
]
DISTINCT = list(dict.fromkeys(MATH500_GOLDS))
WHOLE = [gold for gold in DISTINCT if re.fullmatch(r"-?\d+", gold)]
OTHERS = [gold for gold in DISTINCT if gold not in WHOLE]

DEGREE_SIGNS = ("", "^{\\circ}", "°", " degrees", "\\text{ degrees}", "\\degree", "^ \\circ")


def misjudged(pairs: list[tuple[str, str]], expected: str) -> list[tuple[str, str, str]]:
    questions = []
    for gold, answer in pairs:
        questions.append((Question("q", "?", gold), f"So it is $\\boxed{{{answer}}}$."))
    wrong = []
    for pair, verdict in zip(pairs, check_many(questions, limit_s=20), strict=True):
        if verdict.verdict != expected:
            wrong.append((*pair, verdict.reason))
    return wrong


def wrapped(gold: str) -> Iterator[str]:
    yield from (f"${gold}$".replace("\\$", ""), f"\\({gold}\\)", f"\\[ {gold} \\]", f" {gold} .")
    yield from (f"\\displaystyle {gold}", f"{{{gold}}}", f"\\boxed{{{gold}}}", f"**{gold}**")
    yield gold.replace("\\left", "").replace("\\right", "")
    if not re.search("text|mbox|left|\\\\[{}]", gold):
        opened = re.sub(r"([(\[])", r"\\left\1", gold)
        yield re.sub(r"([)\]])", r"\\right\1", opened)
    if not re.search(r"\d,\s*(\\!)?\s*\d|text|mbox|_", gold):
        yield re.sub(r"([-+=,])", r" \1 ", gold)
        yield gold.replace(",", ",\\,").replace(" + ", " \\,+\\; ")


def fractions(gold: str) -> Iterator[str]:
    yield gold.replace("\\frac", "\\dfrac")
    yield gold.replace("\\dfrac", "\\frac").replace("\\frac", "\\tfrac")
    yield re.sub(r"frac\s*(\d)\s*(\d)(?!\d)", r"frac{\1}{\2}", gold)
    match = re.fullmatch(r"(-?)\\d?frac\{(\d+)\}\{(\d+)\}", gold)
    decimal = re.fullmatch(r"-?\d*\.\d+", gold)
    if decimal:
        value = Fraction(gold)
        yield from (f"\\frac{{{value.numerator}}}{{{value.denominator}}}", f"{gold}0", str(value))
    if match:
        sign = match[1]
        up = int(match[2])
        low = int(match[3])
        yield from (f"{sign}{up}/{low}", f"{sign}\\frac{{{2 * up}}}{{{2 * low}}}")
        yield f"\\frac{{{sign}{up}}}{{{low}}}"
        if 10**9 % low == 0:
            yield f"{sign}{Decimal(up) / Decimal(low)}"
        if up > low:
            yield f"{sign}{up // low}\\frac{{{up % low}}}{{{low}}}"
            yield f"{sign}{up // low} {up % low}/{low}"
    root = re.fullmatch(r"(\d*) ?\\sqrt\{?(\d+)\}?", gold)
    if root:
        factor = int(root[1] or 1)
        under = int(root[2])
        yield from (f"\\sqrt{{{factor * factor * under}}}", f"{factor}√{under}")
        yield from (f"{factor} \\cdot \\sqrt{{{under}}}", f"{factor}*sqrt({under})")
        yield from (f"\\sqrt{{{under}}}\\times {factor}", f"{factor}\\,\\sqrt {under}")


def units(gold: str) -> Iterator[str]:
    match = re.fullmatch(r"(.*?)\s*\\(?:text|mbox)\s*\{\s*(\w+)\}(\^2)?", gold)
    if match and match[1]:
        number = match[1]
        unit = match[2]
        power = match[3] or ""
        yield from (number, f"{number} {unit}{power}", f"{number}\\text{{ {unit}}}{power}")
        yield f"{number}\\,\\mathrm{{{unit}}}{power}"
        if power:
            yield from (f"{number} \\text{{ square {unit}}}", f"{number} \\text{{ {unit}²}}")
    if gold.endswith("^\\circ"):
        number = gold.removesuffix("^\\circ")
        for degrees in DEGREE_SIGNS:
            yield number + degrees
    if gold.startswith("\\$"):
        number = gold.removeprefix("\\$")
        yield from (number, f"\\$ {number}", f"{number} \\text{{ dollars}}", f"{number} dollars")
    word = re.fullmatch(r"\\text\{(.*)\}", gold)
    if word:
        yield from (word[1], f"\\textbf{{{word[1]}}}", f"\\mathrm{{{word[1]}}}", word[1].upper())
        yield from (f"\\text{{ {word[1].strip('()')} }}", f"{word[1]}.")


def thousands(gold: str) -> Iterator[str]:
    number = re.sub(r"\\!|\s", "", gold.removeprefix("\\$"))
    if re.fullmatch(r"\d{1,3}(,\d{3})+|\d{4,}", number):
        joined = f"{int(number.replace(',', '')):,}"
        for mark in (",", "", "{,}", ",\\!", "\\,", " "):
            yield joined.replace(",", mark)


def lists(gold: str) -> Iterator[str]:
    if re.fullmatch(r"-?\d,\s?-?\d(,\s?-?\d)?", gold):
        turned = [item.strip() for item in gold.split(",")][::-1]
        yield from (", ".join(turned), "\\{" + ",".join(turned) + "\\}", " and ".join(turned))
        yield from (" \\text{ or } ".join(f"x = {x}" for x in turned), "; ".join(turned))
    if "\\pm" in gold and "\\{" not in gold:
        both = [gold.replace("\\pm", sign) for sign in "-+"]
        yield from (", ".join(both), " \\text{ and } ".join(both), f"x = {gold}")
    based = re.fullmatch(r"(\d+)_\{?(\d+)\}?", gold)
    if based:
        digits = based[1]
        base = based[2]
        yield from (f"{digits}_{{{base}}}", f"({digits})_{base}", f"{digits}_{{\\text{{{base}}}}}")
    if "pmatrix" in gold:
        yield gold.replace("pmatrix", "bmatrix")
        yield re.sub(r"(-?)(\d+)/(\d+)", r"\1\\dfrac{\2}{\3}", gold)
        yield gold.replace("\\begin{pmatrix}", "\\left[\\begin{array}{cc}").replace(
            "\\end{pmatrix}", "\\end{array}\\right]"
        )
    yield gold.replace("\\infty", "∞").replace("\\cup", "∪").replace("\\pi", " π").strip()


def integer_forms(gold: str) -> Iterator[str]:
    yield from (f"{gold}.0", f"x = {gold}", f"n={gold}", f"= {gold}", f"\\approx {gold}")
    yield from (gold.replace("-", "−"), f"\\mathbf{{{gold}}}", f"\\text{{{gold}}}", f"{gold}\\\\")
    yield from (f"\\frac{{{2 * int(gold)}}}{{2}}", f"{gold} \\text{{ units}}", f"{gold} people")


def forms(gold: str) -> list[str]:
    rewritten = []
    for rewrite in (wrapped, fractions, units, thousands, lists):
        rewritten += rewrite(gold)
    return [form for form in dict.fromkeys(rewritten) if form != gold]


def test_check_gold_answers_are_right_against_themselves() -> None:
    assert len(MATH500_GOLDS) == 500
    assert misjudged([(gold, gold) for gold in DISTINCT], "right") == []


def test_check_rewritten_gold_answers_are_right() -> None:
    pairs = []
    for gold in OTHERS + WHOLE[::8]:
        pairs += [(gold, form) for form in forms(gold)]
    for gold in WHOLE[::8]:
        pairs += [(gold, form) for form in integer_forms(gold)]
    assert len(pairs) > 2000
    assert misjudged(pairs, "right") == []


EQUAL = {
    r"\left( 3, \frac{\pi}{2} \right)": [r"(3,\pi/2)", r"(3, 0.5\pi)", r"(r,\theta)=(3,\frac\pi2)"],
    "p - q": ["-q+p", "-(q-p)"],
    "6 - 5i": ["-5i+6", r"6 - 5 i", r"6-5\mathrm{i}", "6+(-5)i"],
    "y = 2x + 3": ["y=3+2x", "2x+3", "y-2x-3=0", "y=2(x+1.5)"],
    "5x - 7y + 11z + 4 = 0": ["5x-7y+11z=-4", "0=5x-7y+11z+4", "10x-14y+22z+8=0"],
    r"1\frac{4}{5}": ["9/5", "1.8", r"\frac95", "1 4/5", r"1+\frac45"],
    r"x \in [-2,7]": ["[-2,7]", r"-2\le x\le 7", r"-2 \leq x \leq 7", r"\{x \mid -2\le x\le 7\}"],
    r"(2,\infty)": ["x>2", "2<x", r"x\in(2,+\infty)"],
    "(3,4]": [r"3 < x \leqslant 4", r"x \in (3, 4]"],
    r"(-\infty, 2) \cup (3, \infty)": [r"x<2 \text{ or } x>3", r"(3,\infty)\cup(-\infty,2)"],
    r"\{1\pm\sqrt{5},-2\}": [r"-2, 1+\sqrt5, 1-\sqrt5", r"-2,1\pm\sqrt5"],
    r"\frac{11+9a}{20}": [r"\frac{9a+11}{20}", "(9a+11)/20", "0.45a+0.55"],
    "(a+5)(b+2)": ["(2+b)(5+a)", "ab+2a+5b+10"],
    r"\frac{\sqrt{3}}{3}": [r"\frac{1}{\sqrt3}", r"\sqrt{3}/3"],
    r"\cot x": [r"\cot(x)", r"\frac{\cos x}{\sin x}", r"\frac{1}{\tan x}"],
    ".0000672": ["0.0000672", r"6.72\times 10^{-5}", "6.72e-5"],
    r"\frac{270}7\text{ degrees}": [r"\frac{270}{7}^\circ", "270/7", r"38\frac{4}{7}"],
    r"\text{(C)}": ["C", "(c)", r"\mathbf{(C)}", r"\text{C}", "(C) 12"],
    "(1,-16,-4,43)": ["(A,B,C,D)=(1,-16,-4,43)"],
    "3, 5, 7": ["5, 3, 7", "3, 5, and 7"],
    "(-2,1)": ["x=-2, y=1"],
    "x^5 - x^4 + x^3 - x^2 + x - 1": ["(x-1)(x^4+x^2+1)"],
}


def test_check_equal_expressions_are_right() -> None:
    assert set(EQUAL) <= set(MATH500_GOLDS)
    pairs = []
    for gold, equal_forms in EQUAL.items():
        pairs += [(gold, form) for form in equal_forms]
    assert misjudged(pairs, "right") == []


def near(gold: str) -> Iterator[str]:
    """Answers that differ in one digit, one sign or one bracket."""
    bare = re.sub(r"\}\^\d$", "}", gold)  # the power of a unit is dropped with it
    for match in re.finditer(r"\d", bare):
        yield f"{bare[: match.start()]}{(int(match[0]) + 1) % 10}{bare[match.end() :]}"
    if gold.startswith("-"):
        yield gold[1:]
    for old, new in (("(", "["), ("]", ")"), ("cup", "cap"), ("\\sqrt", "\\sin"), (" + ", " - ")):
        if not gold.startswith(("(-\\infty", "\\text")):
            yield gold.replace(old, new, 1)
    for old, new in (("R", "r"), ("\\cot", "\\tan"), ("\\text{", "\\text{not "), ("\\pi", "e")):
        if not re.search(r"\d ?\\text", gold):
            yield gold.replace(old, new, 1)


@pytest.mark.parametrize("start", range(4))
def test_check_answers_near_a_gold_answer_are_wrong(start: int) -> None:
    golds = [gold for gold in OTHERS + WHOLE[::8] if not re.search(r"\}7\\text", gold)]
    pairs = []
    for gold in golds[start::4]:
        pairs += [(gold, form) for form in dict.fromkeys(near(gold)) if form != gold]
    assert len(pairs) > 140
    assert misjudged(pairs, "wrong") == []
