"""What an agent reads before it speaks: its view, the question, its persona."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from debate_protocol.contract import Contract
from debate_protocol.plugins import Config
from debate_protocol.tags import neutralised
from debate_protocol.types import Question


class Persona(Config):
    """A manner of thinking. `style` completes the prompt; `temperature` is the sampler's."""

    name: str = Field(min_length=1)
    """What it is called."""
    style: str = ""
    """Text that completes the prompt."""
    temperature: float = Field(default=1.0, ge=0.0)
    """Sampling temperature; 0 is greedy."""


DEFAULT_PERSONAS: tuple[Persona, ...] = (
    Persona(
        name="Methodical Analyst",
        style="Work systematically, one justified step at a time, and check each step.",
        temperature=0.6,
    ),
    Persona(
        name="Creative Problem-Solver",
        style="Look for unconventional approaches that others are likely to miss.",
        temperature=1.0,
    ),
    Persona(
        name="Devil's Advocate",
        style="Be sceptical: look for counterexamples and for the weakest step of every argument.",
        temperature=0.9,
    ),
    Persona(
        name="Synthesizer",
        style="Bring the strongest parts of different viewpoints together.",
        temperature=1.0,
    ),
    Persona(
        name="First Principles Thinker",
        style="Go back to definitions and fundamentals, and build the answer up from them.",
        temperature=0.8,
    ),
)
"""The five personas of the Tinker debate note, section 2.4; agent i takes number i mod 5."""


StyleName = Literal["full", "compact"]
NO_RESPONSE = "no valid response"
_MISSPELT_COMPARISON = re.compile(r"<\s*+(?ai:comparison)(?![A-Za-z0-9_])")


@dataclass(frozen=True, slots=True)
class SeenTurn:
    """A turn as its readers see it: fields ready for insertion, None for a failed turn."""

    agent: int
    round: int
    fields: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class View:
    """All that goes into one agent's prompt.

    `turns` are the turns to insert now, by round and agent; the reader's own earlier turns are
    among them when the whole debate is restated. `peers` are the other agents of whom the
    reader has been given a valid turn, now or before. `central` says that the others read only
    the reader's turns. Who does not `answers` says what it thinks of the others' turns.
    """

    question: Question
    contract: Contract
    agent: int
    round: int
    persona: Persona | None
    turns: tuple[SeenTurn, ...]
    peers: tuple[int, ...]
    own_turn_failed: bool = False
    central: bool = False
    answers: bool = True

    def inserted(self, text: str) -> str:
        """Return foreign text with every tag disarmed."""
        return neutralised(text.strip(), self.contract)


def clipped(text: str, max_chars: int | None) -> str:
    """Cut a text to `max_chars` characters; a marker says how much is missing."""
    if max_chars is None or len(text) <= max_chars:
        return text
    return f"{text[:max_chars]} [… {len(text) - max_chars} characters cut]"


def insertable(text: str, contract: Contract, max_chars: int | None) -> str:
    """Return foreign text cut to `max_chars` characters and with every tag disarmed.

    A cut can make a known name of a longer one and half a mark of a whole one, so that tags are
    disarmed before it and after it.
    """
    return neutralised(clipped(neutralised(text, contract), max_chars), contract)


def without_comparison(text: str) -> str:
    """Cut a text where a comparison begins under a tag that no parser knows, as in `< comparison>`.

    What follows was meant for the section that a blind review hides.
    """
    found = _MISSPELT_COMPARISON.search(text)
    return text if found is None else text[: found.start()].rstrip()


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
