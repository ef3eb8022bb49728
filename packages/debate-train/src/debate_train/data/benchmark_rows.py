"""Rows of published benchmarks, read as rows with question, answer, kind and solution.

Each function takes a row as the hub has it. Rows of a file in our own form pass
unchanged.
"""

import random
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from string import ascii_uppercase

from debate_protocol.parsing import final_box

Row = Mapping[str, object]
ReadRow = Callable[[Row], Row]

DAPO_BEFORE = re.compile(r"\ASolve the following math problem step by step\..*?\n\n", re.DOTALL)
DAPO_AFTER = re.compile(
    r"\n\nRemember to put your answer on its own line after \"Answer:\"\.?\s*\Z"
)
OPTIONS = re.compile(r"(?<!\s)\s*\nOptions:\s*\n(?=\(A\))(.*)\Z", re.DOTALL)
OPTION = re.compile(r"^\(([A-Z])\)[ \t]*(.*)$", re.MULTILINE)
INTEGER = re.compile(r"-?\d+")
YES_NO = {"yes", "no", "true", "false"}
LETTER = re.compile(r"\(([A-Z])\)")


def contest(row: Row) -> Row:
    """Read a problem with an integer answer; leading zeros and the `.0` of 27.0 go."""
    read = {**row, "kind": "math"}
    answer = str(row.get("answer", "")).strip().removesuffix(".0")
    if INTEGER.fullmatch(answer):
        read["answer"] = str(int(answer))
    return read


def gsm8k(row: Row) -> Row:
    """Read the number after the four hashes as the answer, the text before as the solution."""
    solution, hashes, answer = str(row.get("answer", "")).rpartition("####")
    if not hashes:
        return row
    return {**row, "answer": answer.strip().replace(",", ""), "solution": solution.strip()}


def hendrycks_math(row: Row) -> Row:
    """Read the content of the last box of the solution as the answer."""
    read = {**row, "subject": row.get("subject", row.get("type")), "kind": "math"}
    solution = str(row.get("solution", ""))
    # MATH-500 has a column for the answer; other copies have only the solution's box.
    answer_range = None if "answer" in row else final_box(solution)
    if answer_range is not None:
        start, end = answer_range
        read["answer"] = solution[start:end]
    return read


def dapo_math(row: Row) -> Row:
    """Read the problem without the instructions around it."""
    prompt = row.get("prompt")
    if isinstance(prompt, list):
        prompt = "".join(str(message["content"]) for message in prompt)
    if not isinstance(prompt, str) or "question" in row:
        return {**row, "kind": "math"}

    # The original has the answer in an object, where copies have a plain label.
    answer = row.get("label")
    grading = row.get("reward_model")
    if isinstance(grading, Mapping):
        answer = grading.get("ground_truth")
    problem_id = None
    extra = row.get("extra_info")
    if isinstance(extra, Mapping):
        problem_id = extra.get("index")
    problem = DAPO_AFTER.sub("", DAPO_BEFORE.sub("", prompt))
    return {"question": problem.strip(), "answer": answer, "kind": "math", "id": problem_id}


def boolq(row: Row) -> Row:
    """Read the answer as yes or no."""
    answer = row.get("answer")
    if isinstance(answer, bool):
        answer = "yes" if answer else "no"
    return {**row, "answer": answer, "kind": "yes_no"}


def multiple_choice(row: Row) -> Row:
    """Read a row of MMLU (answers count choices from 0) or of ARC (`answerKey`)."""
    answer = row.get("answerKey", row.get("answer"))
    choices = row.get("choices")
    if isinstance(answer, int) and isinstance(choices, list) and 0 <= answer < len(choices):
        answer = ascii_uppercase[answer]
    return {**row, "answer": answer, "kind": "choice"}


def sciq(row: Row) -> Row:
    """Put the right answer among the distractors, at a position drawn by the question's text."""
    if "correct_answer" not in row:
        return multiple_choice(row)
    right = row["correct_answer"]
    # In the published order the right answer would always be first.
    choices = [right, row["distractor1"], row["distractor2"], row["distractor3"]]
    random.Random(str(row["question"])).shuffle(choices)
    return {
        "question": row["question"],
        "choices": choices,
        "answer": ascii_uppercase[choices.index(right)],
        "kind": "choice",
        "subject": "science",
    }


def big_bench_hard(row: Row) -> Row:
    """Read the options inside a question as choices, and infer the kind of answer."""
    text = str(row.get("question", row.get("input", "")))
    answer = str(row.get("answer", row.get("target", ""))).strip()
    read: dict[str, object] = {
        "question": text,
        "answer": answer,
        "subject": row.get("subject"),
        "id": row.get("id"),
    }
    options = OPTIONS.search(text)
    letter = LETTER.fullmatch(answer)
    # Some tasks list options and answer in words: they stay free text.
    if options and letter:
        text_by_letter = dict(OPTION.findall(options[1]))
        if letter[1] in text_by_letter:
            read["question"] = text[: options.start()].rstrip()
            read["choices"] = text_by_letter
            read["answer"] = letter[1]
            read["kind"] = "choice"
            return read

    wrong_answers: list[str] = []
    if answer.lower() in YES_NO:
        read["kind"] = "yes_no"
    elif INTEGER.fullmatch(answer):
        read["kind"] = "number"
    else:
        read["kind"] = "text"
        # Free text is a list of words or of brackets: another order of them is a plausible slip.
        words = answer.split()
        for index, (first, second) in enumerate(pairwise(words)):
            if first != second:
                exchanged = [*words[:index], second, first, *words[index + 2 :]]
                wrong_answers.append(" ".join(exchanged))
    read["wrong_answers"] = wrong_answers
    return read


def open_prompt(row: Row) -> Row:
    """Read a writing task, without an answer."""
    messages = row.get("messages")
    text = row.get("question", row.get("prompt"))
    if isinstance(messages, list) and messages:
        text = messages[0]["content"]
    return {**row, "question": text, "answer": None, "kind": "text"}
