"""Gold answers of benchmarks, and replies that people have labelled."""

import json
from collections import defaultdict
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
