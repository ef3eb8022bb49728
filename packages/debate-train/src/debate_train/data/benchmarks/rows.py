"""Rows of published benchmarks, brought into one form: question, answer, choices, passage, kind.

Each function takes a row as its authors publish it, or one that has this form already.
"""

import random
import re
from collections.abc import Callable, Mapping
from itertools import pairwise

from debate_protocol.parsing.final_answer import final_box

Row = Mapping[str, object]
ReadRow = Callable[[Row], Row]

_DAPO_BEFORE = re.compile(r"\ASolve the following math problem step by step\..*?\n\n", re.DOTALL)
_DAPO_AFTER = re.compile(
    r"\n\nRemember to put your answer on its own line after \"Answer:\"\.?\s*\Z"
)
_OPTIONS = re.compile(r"\s*\nOptions:\s*\n(?=\(A\))(.*)\Z", re.DOTALL)
_OPTION = re.compile(r"^\(([A-Z])\)[ \t]*(.*)$", re.MULTILINE)
_INTEGER = re.compile(r"-?\d+")
_YES_NO = {"yes", "no", "true", "false"}
_LETTER = re.compile(r"\(([A-Z])\)")


def plain(row: Row) -> Row:
    """Return the row; a number such as `27.0` is written as an integer."""
    answer = row.get("answer")
    if isinstance(answer, float) and answer.is_integer():
        return {**row, "answer": str(int(answer))}
    return row


def contest(row: Row) -> Row:
    """Return a problem whose answer is an integer; leading zeros are dropped."""
    answer = str(plain(row).get("answer", "")).strip()
    read = {**row, "kind": "math"}
    return {**read, "answer": str(int(answer))} if _INTEGER.fullmatch(answer) else read


def gsm8k(row: Row) -> Row:
    """Return the number after the four hashes as the answer, what stands before as the solution."""
    solution, marked, answer = str(row.get("answer", "")).rpartition("####")
    if not marked:
        return row
    return {**row, "answer": answer.strip().replace(",", ""), "solution": solution.strip()}


def hendrycks_math(row: Row) -> Row:
    """Return the content of the last box of the solution as the answer."""
    solution = str(row.get("solution", ""))
    place = None if "answer" in row else final_box(solution)
    read = {**row, "subject": row.get("subject", row.get("type")), "kind": "math"}
    return read if place is None else read | {"answer": solution[place[0] : place[1]]}


def dapo_math(row: Row) -> Row:
    """Return the problem without the instructions around it."""
    prompt = row.get("prompt")
    if isinstance(prompt, list):
        prompt = "".join(str(one["content"]) for one in prompt)
    if not isinstance(prompt, str) or "question" in row:
        return {**row, "kind": "math"}
    text = _DAPO_AFTER.sub("", _DAPO_BEFORE.sub("", prompt)).strip()
    graded, info = row.get("reward_model"), row.get("extra_info")
    answer = graded.get("ground_truth") if isinstance(graded, Mapping) else row.get("label")
    identity = info.get("index") if isinstance(info, Mapping) else None
    return {"question": text, "answer": answer, "kind": "math", "id": identity}


def boolq(row: Row) -> Row:
    """Return the answer as yes or no."""
    answer = row.get("answer")
    said = ("no", "yes")[answer] if isinstance(answer, bool) else answer
    return {**row, "answer": said, "kind": "yes_no"}


def multiple_choice(row: Row) -> Row:
    """Return a row of MMLU, or of ARC with its `answerKey`."""
    answer = row.get("answerKey", row.get("answer"))
    return {**row, "answer": answer, "kind": "choice"}


def sciq(row: Row) -> Row:
    """Return the right answer among the distractors, at a place that follows from the question."""
    if "correct_answer" not in row:
        return multiple_choice(row)
    choices = [row["correct_answer"], *(row[f"distractor{n}"] for n in (1, 2, 3))]
    random.Random(str(row["question"])).shuffle(choices)
    answer = chr(ord("A") + choices.index(row["correct_answer"]))
    read = {"question": row["question"], "choices": choices, "answer": answer}
    return {**read, "kind": "choice", "subject": "science"}


def big_bench_hard(row: Row) -> Row:
    """Return the options that stand in a question as its choices, and the kind of its answer."""
    text = str(row.get("question", row.get("input", "")))
    answer = str(row.get("answer", row.get("target", ""))).strip()
    read: dict[str, object] = {
        "question": text,
        "answer": answer,
        "subject": row.get("subject"),
        "id": row.get("id"),
    }
    listed = _OPTIONS.search(text)
    options = dict(_OPTION.findall(listed[1])) if listed else {}
    letter = _LETTER.fullmatch(answer)
    if listed and letter and letter[1] in options:
        question = text[: listed.start()].rstrip()
        chosen = {"question": question, "choices": options, "answer": letter[1]}
        return {**read, **chosen, "kind": "choice"}
    is_number = _INTEGER.fullmatch(answer) is not None
    kind = "yes_no" if answer.lower() in _YES_NO else "number" if is_number else "text"
    wrong = _exchanged(answer.split()) if kind == "text" else []
    return {**read, "kind": kind, "wrong_answers": wrong}


def _exchanged(words: list[str]) -> list[str]:
    """Return an order of words, or of brackets, with each two different neighbours exchanged."""
    return [
        " ".join((*words[:n], second, first, *words[n + 2 :]))
        for n, (first, second) in enumerate(pairwise(words))
        if first != second
    ]


def open_prompt(row: Row) -> Row:
    """Return a writing task, which has no answer."""
    messages = row.get("messages")
    text = row.get("question", row.get("prompt"))
    if isinstance(messages, list) and messages:
        text = messages[0]["content"]
    return {**row, "question": text, "answer": None, "kind": "text"}
