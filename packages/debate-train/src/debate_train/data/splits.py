"""Splits of questions: held out, sampled, without answers.

The text of a question and a salt decide the side, never the line in a file: files in another
order or with more rows hold out the same questions.
"""

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace

from debate_protocol.types import Question

LOOSE_CHARACTERS = re.compile(r"[\s.,;:!?'\"`“”‘’]+")


def identity(question: Question) -> str:
    """Write the full question: the text, with the passage and the choices if there are any.

    "Which of these is true?" is another question with other choices.
    """
    parts = [question.text]
    for key in ("passage", "choices"):
        if question.meta.get(key):
            parts.append(question.meta[key])
    # A lone text stays as it is: the splits of files without choices never change.
    return json.dumps(parts) if len(parts) > 1 else question.text


def position(salt: str, text: str) -> float:
    """Draw a number in [0, 1) from a text, independent for each salt.

    By a digest, no checksum: crc32 is linear, so that numbered texts fall together, and another
    salt only moves them all by one constant.
    """
    digest = hashlib.sha256(f"{salt}/{text}".encode()).digest()
    # 48 bits fit into a float's 53 without rounding, so the number is below 1.
    return int.from_bytes(digest[:6], "big") / 2**48


def hold_out(
    questions: Sequence[Question], share: float, salt: int
) -> tuple[list[Question], list[Question]]:
    """Split into (held out, rest); the text of a question decides the side."""
    held_out: list[Question] = []
    rest: list[Question] = []
    for question in questions:
        # Each question is drawn on its own: a file that grows moves none to the other side.
        if position(f"holdout/{salt}", identity(question)) < share:
            held_out.append(question)
        else:
            rest.append(question)
    return held_out, rest


def divide(
    questions: Sequence[Question], shares: Sequence[float], group: Callable[[Question], str]
) -> list[list[Question]]:
    """Divide into parts that hold these shares of every group, and last the rest.

    A question's part follows from the texts of all questions.
    """
    # By digest, not in the file's order: the same questions in another order are divided alike.
    groups: dict[str, list[Question]] = {}
    for question in sorted(questions, key=lambda question: _digest("share", question)):
        groups.setdefault(group(question), []).append(question)
    part_of: dict[str, int] = {}
    # Rounding one group leaves a remainder for the next, so that the shares also hold over many
    # groups that are each too small for them.
    expected = [0.0] * len(shares)
    for _, members in sorted(groups.items()):
        start = 0
        for part, share in enumerate(shares):
            expected[part] += share * len(members)
            # Half a question or more is due as a whole one, and less is carried on.
            count = min(math.floor(expected[part] + 0.5), len(members) - start)
            expected[part] -= count
            for question in members[start : start + count]:
                part_of[identity(question)] = part
            start += count
    parts: list[list[Question]] = [[] for _ in range(len(shares) + 1)]
    for question in questions:
        part = part_of.get(identity(question), len(shares))
        parts[part].append(question)
    return parts


def sample(questions: list[Question], count: int | None, seed: int, purpose: str) -> list[Question]:
    """Sample by the questions' texts, the seed and a purpose; the order in the file stays."""
    if count is None or count >= len(questions):
        return questions
    # The purpose keeps two samples of the same seed independent.
    salt = f"{purpose}/{seed}"
    shuffled = sorted(questions, key=lambda question: _digest(salt, question))
    sampled = {identity(question) for question in shuffled[:count]}
    return [question for question in questions if identity(question) in sampled]


def _digest(salt: str, question: Question) -> bytes:
    return hashlib.sha256(f"{salt}/{identity(question)}".encode()).digest()


def without_overlap(
    train: Sequence[Question], held_out: Sequence[Question]
) -> tuple[list[Question], int]:
    """Remove held-out questions from the training questions; count how many there were.

    Two texts are the same question if they differ only in case, white space, punctuation and
    compatible characters.
    """
    held_out_texts = {normalized(identity(question)) for question in held_out}
    disjoint = [q for q in train if normalized(identity(q)) not in held_out_texts]
    return disjoint, len(train) - len(disjoint)


def normalized(text: str) -> str:
    """Remove differences of case, white space, quotes and punctuation."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(LOOSE_CHARACTERS.sub(" ", folded).split())


def unlabelled(questions: Sequence[Question], labelled: Sequence[Question]) -> list[Question]:
    """Remove the answers of all but the labelled questions.

    The kind of answer stays as it was, or prompts would distinguish labelled questions;
    `meta["labelled"]` is false.
    """
    labelled_identities = {identity(question) for question in labelled}
    hidden = []
    for question in questions:
        if question.answer is not None and identity(question) not in labelled_identities:
            meta = {"kind": "math", **question.meta, "labelled": False}
            # What is known of right and wrong answers would give the answer away.
            for key in ("solution", "wrong_answers", "worked_checks"):
                meta.pop(key, None)
            question = replace(question, answer=None, meta=meta)
        hidden.append(question)
    return hidden
