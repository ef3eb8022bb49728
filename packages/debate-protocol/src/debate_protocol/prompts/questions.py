r"""How a question is written in a prompt, and in which form its answer is asked for."""

from collections.abc import Mapping, Sequence

from debate_protocol.prompts.view import View
from debate_protocol.types import Question


def question_kind(question: Question) -> str:
    """Return what `meta["kind"]` says; by default math with a known answer, text without."""
    return str(question.meta.get("kind") or ("text" if question.answer is None else "math"))


def question_text(view: View) -> str:
    """Return passage, question and choices, with tags disarmed."""
    question = view.question
    parts = []
    passage = question.meta.get("passage")
    if passage:
        parts.append(f"Passage:\n{view.inserted(str(passage))}")
    parts.append(f"Question:\n{view.inserted(question.text)}")
    choices = labelled_choices(question)
    if choices:
        listed = "\n".join(view.inserted(f"{label}. {choice}") for label, choice in choices)
        parts.append(f"Choices:\n{listed}")
    return "\n\n".join(parts)


QUESTION_PLACES = ("question", "text", "passage", "choices", "answer_form")
"""Places of templates that a question alone fills."""


def question_values(view: View) -> dict[str, str]:
    """Return what stands at the places of templates that a question alone fills."""
    question = view.question
    choices = (f"{label}. {choice}" for label, choice in labelled_choices(question))
    return {
        "question": question_text(view),
        "text": view.inserted(question.text),
        "passage": view.inserted(str(question.meta.get("passage") or "")),
        "choices": "\n".join(map(view.inserted, choices)),
        "answer_form": answer_form(question, view.contract.kind),
    }


def labelled_choices(question: Question) -> list[tuple[str, str]]:
    """Return the choices with their labels, as they are; letters where they bring no labels."""
    choices = question.meta.get("choices")
    if isinstance(choices, Mapping):
        return [(str(label), str(choice)) for label, choice in choices.items()]
    if isinstance(choices, Sequence) and not isinstance(choices, str):
        return [(_letter(i), str(choice)) for i, choice in enumerate(choices)]
    return []


def answer_form(question: Question, kind_of_contract: str) -> str:
    """Return the sentence that fixes how the final answer is written; empty for open questions.

    Of a text, a mark is asked for where there is an answer to compare it with, known or withheld.
    """
    kind = question_kind(question)
    labels = [label for label, _ in labelled_choices(question)]
    content = {
        "choice": f"the {'letter' if ''.join(labels or 'A').isalpha() else 'label'} of your choice",
        "yes_no": "yes or no",
        "number": "the number",
    }.get(kind, "the final answer")
    if kind_of_contract == "answer_line":
        return f"End with a last line of the form `Answer: …` that holds only {content}."
    compared = question.answer is not None or question.meta.get("labelled") is False
    if kind_of_contract == "boxed" or kind != "text" or compared:
        return f"Put only {content} inside \\boxed{{…}} at the end."
    return ""


def _letter(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else str(index + 1)
