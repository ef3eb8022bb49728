"""The type of answer to a question, and reading replies against it.

The question's gold answer is read first, and all other answers in the same form (`gold_form.py`),
so answers with the same meaning for the question have the same key.
"""

import functools
import re
import reprlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from string import ascii_uppercase
from typing import Any, NamedTuple

from debate_protocol.types import Question
from debate_rewards.answers.amounts import number_in_words
from debate_rewards.answers.folding import plain_text, text_form
from debate_rewards.answers.gold_form import in_form_of
from debate_rewards.answers.labels import USUAL_LABELS, choice_texts, chosen_label
from debate_rewards.answers.reply import FinalAnswer, Kind, Unreadable, final_answer
from debate_rewards.answers.sentences import (
    BOLD,
    SENTENCE_END,
    bare_formula,
    bracketed_end,
    equation_at_end,
    formulas,
    is_formula,
    listed_numbers,
    settled_number,
    share_in_words,
)
from debate_rewards.answers.spelling import MAX_MATH_CHARS
from debate_rewards.answers.truth import yes_or_no
from debate_rewards.answers.types import (
    Answer,
    Equation,
    Expression,
    Label,
    List,
    Number,
    Point,
    Text,
    YesNo,
    read_element,
    read_mathematics,
)
from debate_rewards.answers.units import unit_of

__all__ = [
    "Answer",
    "AnswerForm",
    "Unreadable",
    "answer_id",
    "form_of",
    "read_accepted",
    "read_answer",
    "read_element",
    "read_gold",
    "stated_kind",
]

MAX_COMPARED_FORMULAS = 8
"""More formulas of one sentence are several answers without a look at their values."""
_CACHE_SIZE = 1 << 14
_ABOUT_PERCENT = re.compile(r"percent|\bper cent\b|%", re.IGNORECASE)
_BEFORE_WORD = re.compile(r"^(?:(?:it|this|that) (?:is|was|will be) )?(?:(?:on|in|at|a|an|the) )*")
_LEAD_IN = re.compile(
    r"(?:(?:it|this|that|he|she)(?:['’]s| is| was| happened in| happened on)|in(?= \d{3,4}$)) "
    r"(?!not\b)(?=\S)"
)
_REMARK = re.compile(r", (?:in|at|on|near|located|born|who|which|because|since) ")
# "The final answer is $\text{Evelyn}$. I hope it is correct."
_WORDS_IN_DOLLARS = re.compile(
    r"(?:^|\bis:?\s)\s*\$(\\text\s*\{[^{}$]+\}|[A-Za-z][A-Za-z ]*)\$(?=\s*(?:[.!]|$))"
)
_DENIED_PART = re.compile(
    r"(?:\bnot|n['’]t|\bnever|\bthan|\bof)\s+(?:\w+\s+)?(?:\*\*|\$)", re.IGNORECASE
)
_CORRECTION = re.compile(
    r"(?:(?<=[.?!…,;–—])\s*|\b(?:hmm+|oh|oops|sorry)\b[\s,.…!]+)(?:no\b[\s,.]*)?"
    r"(?:wait|actually|scratch\s+that|correction|on\s+second\s+thought)\b(?=\W+\w)[\s,.:…!–—]*"
    r"(?:(?:no|actually)\b[\s,.]*)?(?!\w*ly\b)",
    re.IGNORECASE,
)
_WORD_CHARACTER = re.compile(r"\w")
_DIGIT = re.compile(r"\d")


@dataclass(frozen=True)
class AnswerForm:
    """How answers to a question are read.

    Attributes:
        kind: How the question's answers are compared.
        choices: Texts of the choices by label.
        gold: The question's own mathematical answer.
        asks_percent: Whether the question's text speaks of percent.
        holds_braces: Whether answers may have unbalanced braces.
        labels: Labels where no choices are listed.
    """

    kind: Kind
    choices: Mapping[str, str] = field(default_factory=dict)
    gold: Answer | None = None
    asks_percent: bool = False
    holds_braces: bool = False
    labels: tuple[str, ...] = USUAL_LABELS

    def read_reply(self, reply: str) -> Answer | Unreadable:
        """Read the final answer of a whole reply."""
        statement = final_answer(reply, self.kind, holds_braces=self.holds_braces)
        if statement is None:
            return Unreadable("no answer")
        return self.read(statement)

    def read(self, statement: FinalAnswer) -> Answer | Unreadable:
        """Read the text of a final answer."""
        text = statement.text
        if self.kind != "text" and not statement.in_box:
            text = _last_word(text)
            if not text:
                return Unreadable("taken back")
            statement = replace(statement, text=text)
        if self.kind == "choice":
            label = chosen_label(text, self.choices, self.labels)
            return Label(text=label, label=label) if isinstance(label, str) else label
        if self.kind == "yes_no":
            is_yes = yes_or_no(text)
            if isinstance(is_yes, Unreadable):
                return is_yes
            return YesNo(text="yes" if is_yes else "no", is_yes=is_yes)
        if self.kind == "text":
            form = _without_lead_in(text_form(text))
            return Text(form) if form else Unreadable("no answer")
        is_number = self.kind == "number"
        answer = _read_number(text) if is_number else self._read_mathematics(statement)
        if isinstance(answer, Unreadable):
            return answer
        return in_form_of(self.gold, answer, asks_percent=self.asks_percent)

    def _read_mathematics(self, statement: FinalAnswer) -> Answer | Unreadable:
        text = statement.text
        if isinstance(self.gold, Label):
            label = chosen_label(text, {})
            return Label(text=text, label=label) if isinstance(label, str) else label
        if len(text) > MAX_MATH_CHARS and statement.marked:
            return Text(" ".join(text.split()))
        if isinstance(self.gold, Text):
            return _read_words(text)
        if isinstance(self.gold, Number):
            written = share_in_words(text) or number_in_words(text)
            if written is not None:
                return read_mathematics(written)
        return self._read_formula(statement)

    def _read_formula(self, statement: FinalAnswer) -> Answer | Unreadable:
        text = statement.text
        whole_answer = _read_with_unit(text)
        if not whole_answer.text:
            return Unreadable("no answer")
        if isinstance(whole_answer, Number) or is_formula(text):
            return whole_answer
        # A box around words and mathematics is its author's formula, unless nothing of it is read.
        if statement.in_box and not isinstance(whole_answer, Expression | Text):
            return whole_answer

        # From here on the text is a sentence.
        structured = self._structured_end(text)
        if structured is not None:
            return read_mathematics(structured)
        in_sentence = _formula_of_sentence(text)
        if not isinstance(in_sentence, Unreadable):
            return in_sentence
        # Words are an answer where they are marked as one, never a sentence around numbers.
        is_structured = not isinstance(whole_answer, Text | Expression | List)
        if statement.marked and (is_structured or not _DIGIT.search(text)):
            return whole_answer
        return in_sentence

    def _structured_end(self, text: str) -> str | None:
        """Find brackets, an equation or a list at the end of a sentence, as the gold answer is."""
        if isinstance(self.gold, Number | Expression):
            return None
        brackets = bracketed_end(text)
        if brackets is not None:
            return brackets
        if isinstance(self.gold, Equation):
            return equation_at_end(text)
        if not isinstance(self.gold, List | Point):
            return None
        listed = listed_numbers(text)
        if isinstance(self.gold, Point):
            has_names = listed is not None and "=" in listed
            return listed if has_names else None
        inner_formulas = formulas(text)
        if listed is None and len(inner_formulas) > 1:
            return ",".join(inner_formulas)
        return listed


def read_answer(question: Question, reply: str) -> Answer | Unreadable:
    """Read the final answer of a reply against the question's own type."""
    return form_of(question).read_reply(reply)


def read_gold(question: Question) -> Answer | Unreadable | None:
    """Read the question's own answer, if any."""
    if question.answer is None:
        return None
    return read_accepted(question, question.answer)


def read_accepted(question: Question, gold: str) -> Answer | Unreadable:
    """Read a right answer like a reply to the question.

    Without a mark it is taken whole rather than by the last line.
    """
    return _accepted(_form_key(question), gold)


def form_of(question: Question) -> AnswerForm:
    """Build the form of answers to a question; the same object for the same kind and gold."""
    return _form(_form_key(question))


def answer_id(answer: Answer) -> Hashable:
    """Identify an answer by key, or by spelling where it has no key."""
    return answer.text if answer.key is None else answer.key


class _FormKey(NamedTuple):
    """The parts of a question with an influence on reading answers."""

    kind: Kind
    gold: str | None
    choices: tuple[tuple[str, str], ...]
    asks_percent: bool


def stated_kind(question: Question) -> Any:
    """Read `meta["kind"]`; by default `choice` for a question with choices, else `math`."""
    default = "choice" if question.meta.get("choices") else "math"
    return question.meta.get("kind") or default


def _form_key(question: Question) -> _FormKey:
    kind: Kind = stated_kind(question)
    choices = question.meta.get("choices") if kind == "choice" else None
    is_list = isinstance(choices, Sequence) and not isinstance(choices, str)
    if choices is not None and not is_list and not isinstance(choices, Mapping):
        raise ValueError(
            f"question {question.id!r}, meta.choices: found {reprlib.repr(choices)}, expected a "
            "list of texts, or an object of label and text"
        )
    is_mathematical = kind in ("math", "number")
    return _FormKey(
        kind=kind,
        gold=question.answer,
        choices=tuple(choice_texts(choices).items()) if choices else (),
        asks_percent=is_mathematical and bool(_ABOUT_PERCENT.search(question.text)),
    )


@functools.lru_cache(maxsize=_CACHE_SIZE)
def _form(key: _FormKey) -> AnswerForm:
    gold = key.gold
    letter = "" if gold is None else gold.strip(" ().")
    is_late_letter = len(letter) == 1 and letter in ascii_uppercase and letter not in USUAL_LABELS
    has_braces = gold is None or "{" in gold or "}" in gold
    form = AnswerForm(
        kind=key.kind,
        choices=dict(key.choices),
        asks_percent=key.asks_percent,
        labels=tuple(ascii_uppercase) if is_late_letter else USUAL_LABELS,
        # A gold of signs alone, such as closing brackets, may have braces for other answers.
        holds_braces=key.kind == "text"
        and (has_braces or _WORD_CHARACTER.search(gold or "") is None),
    )
    if gold is None or key.kind not in ("math", "number"):
        return form
    gold_answer = _read_gold(form, gold)
    return form if isinstance(gold_answer, Unreadable) else replace(form, gold=gold_answer)


@functools.lru_cache(maxsize=_CACHE_SIZE)
def _accepted(key: _FormKey, gold: str) -> Answer | Unreadable:
    return _read_gold(_form(key), gold)


def _read_gold(form: AnswerForm, gold: str) -> Answer | Unreadable:
    statement = final_answer(gold, form.kind)
    if statement is None:
        return Unreadable("no answer")
    if not statement.marked:
        statement = FinalAnswer(gold.strip(), marked=True, in_box=True)
    if form.kind == "math" and form.gold is None:
        return _gold_type(statement.text)
    return form.read(statement)


def _gold_type(text: str) -> Answer | Unreadable:
    """Read a mathematical gold answer, before anything is known of the question."""
    if len(text) > MAX_MATH_CHARS:
        return Text(" ".join(text.split()))
    answer = Label.read(text.strip()) or _read_with_unit(text)
    if not answer.text:
        return Unreadable("no answer")
    if not isinstance(answer, Equation) or answer.named is None:
        return answer
    # `y=2x+3` is an equation in the right side's symbols, `y=3` the value 3.
    named_formula = answer.named.polynomial if isinstance(answer.named, Expression) else None
    is_equation = named_formula is not None and bool(named_formula.symbols)
    return answer if is_equation else answer.named


def _without_lead_in(form: str) -> str:
    """Drop words around a text that are no part of it: `It was Marie Curie, in 1903`."""
    lead_in = _LEAD_IN.match(form)
    if lead_in is None:
        return form
    inner = form[lead_in.end() :]
    # Behind "it is" such a remark is no part of the text; alone it may be.
    remark = _REMARK.search(inner)
    return inner if remark is None else inner[: remark.start()]


def _last_word(text: str) -> str:
    """Drop what a reply takes back: `69? No wait, 96.` is 96."""
    corrections = list(_CORRECTION.finditer(text))
    return text[corrections[-1].end() :].strip() if corrections else text


def _read_with_unit(text: str) -> Answer:
    answer = read_mathematics(text)
    return replace(answer, unit=unit_of(text)) if isinstance(answer, Number) else answer


def _read_number(text: str) -> Answer | Unreadable:
    if len(text) <= MAX_MATH_CHARS:
        answer = _read_with_unit(text)
        if isinstance(answer, Equation) and answer.named is not None:
            answer = answer.named
        if isinstance(answer, Number):
            return answer
    return _number_of_sentence(text)


def _number_of_sentence(text: str) -> Answer | Unreadable:
    in_words = number_in_words(text)
    if in_words is None and not _DIGIT.search(text):
        # "Zero! She has none left."
        in_words = number_in_words(SENTENCE_END.split(text, maxsplit=1)[0])
    written = in_words or settled_number(text)
    if isinstance(written, Unreadable):
        return written
    number = read_mathematics(written)
    return number if isinstance(number, Number) else Unreadable("no number")


def _formula_of_sentence(text: str) -> Answer | Unreadable:
    """Read the only formula of a sentence, or the settled number."""
    inner = list(dict.fromkeys(formulas(text)))
    if not inner:
        bare = bare_formula(text)
        return _number_of_sentence(text) if bare is None else _read_with_unit(bare)
    if len(inner) == 1:
        return _read_with_unit(inner[0])

    equations = [formula for formula in inner if "=" in formula]
    if len(equations) == 1 and inner[-1] == equations[0]:
        return _read_with_unit(inner[-1])
    # Steps of one transformation, such as an expanded product, are all the same answer.
    if len(inner) <= MAX_COMPARED_FORMULAS:
        answers = list(map(_read_with_unit, inner))
        keys = {answer.key for answer in answers}
        if len(keys) == 1 and None not in keys:
            return answers[0]
    return Unreadable("several formulas")


def _read_words(text: str) -> Text:
    marked_parts = BOLD.findall(text) or _WORDS_IN_DOLLARS.findall(text)
    if len(marked_parts) == 1 and not _DENIED_PART.search(text):
        text = marked_parts[0]
    spelled = read_mathematics(text)
    words = spelled.text if isinstance(spelled, Text) else plain_text(text)
    return Text(_BEFORE_WORD.sub("", text_form(words).strip("()., ")))
