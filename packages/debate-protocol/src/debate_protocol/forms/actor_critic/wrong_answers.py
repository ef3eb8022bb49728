"""The answer that a debate is guided to when it is guided away from the right one."""

import random
import re
from collections.abc import Callable, Sequence

from debate_protocol.prompts.questions import labelled_choices
from debate_protocol.types import Question

_OPPOSITES = (("yes", "no"), ("true", "false"), ("valid", "invalid"))
_OPPOSITE = {a: b for pair in _OPPOSITES for a, b in (pair, pair[::-1])}
_LETTER = re.compile(r"\W*[A-Za-z]\W*\Z")


def wrong_answer(
    question: Question,
    own: Sequence[str],
    same_answer: Callable[[str, str], bool],
    chance: random.Random,
) -> str | None:
    """Return an answer that is not the question's.

    The first of these that there is: another of the choices, drawn, as a label or written out as
    the right one is; the other of yes and no, true and false, or valid and invalid; the first wrong
    answer among `own`; one of `meta["wrong_answers"]`, drawn, which the source of the questions
    names; a change of the right one. That is, for the letter of a choice, A, or B for A; else the
    last digit one higher, 0 for 9; else, in mathematics, the right answer `+ 1`.

    Args:
        question: With its answer; without one there is no wrong answer either.
        own: Answers that the model gave itself.
        same_answer: Decides whether an answer is right after all.
        chance: Draws among choices.

    Returns:
        None when none of these is known to be wrong.

    Source: ACC-Debate (paper), Algorithm 1, `!y`, which it leaves open.
    """
    right = question.answer
    if right is None:
        return None
    accepted = (right, *question.meta.get("accept", ()))

    def wrong(answers: Sequence[str]) -> list[str]:
        return [one for one in answers if not any(same_answer(one, other) for other in accepted)]

    others = _other_choices(question, right, same_answer)
    if others:
        return chance.choice(others)
    opposite = _OPPOSITE.get(right.strip().casefold())
    if opposite is not None:
        return opposite.capitalize() if right.strip()[0].isupper() else opposite
    if of_model := wrong(own):
        return of_model[0]
    if named := wrong(question.meta.get("wrong_answers", ())):
        return chance.choice(named)
    return next(iter(wrong(_changed(question, right))), None)


def _other_choices(
    question: Question, right: str, same_answer: Callable[[str, str], bool]
) -> list[str]:
    labelled = labelled_choices(question)
    wrong = [
        (label, text)
        for label, text in labelled
        if not same_answer(label, right) and not same_answer(text, right)
    ]
    if len(wrong) == len(labelled):
        return []  # the right answer is none of the choices, so nothing is known about them
    written_out = right.strip() in [text.strip() for _, text in labelled]
    return [text if written_out else label for label, text in wrong]


def _changed(question: Question, right: str) -> list[str]:
    kind = question.meta.get("kind") or "math"
    if kind == "choice" and _LETTER.match(right):
        return ["B" if "A" in right.upper() else "A"]
    digits = list(re.finditer("[0-9]", right))
    if digits:
        last = digits[-1]
        higher = str((int(last.group()) + 1) % 10)
        return [right[: last.start()] + higher + right[last.end() :]]
    return [f"{right} + 1"] if kind == "math" and right.strip() else []
