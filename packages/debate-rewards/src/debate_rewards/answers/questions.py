"""What type of answer a question asks for, and reading replies against it.

The question's gold answer is read once, and says for all answers alike what their forms mean:
whether a number without a sign is a percentage, what a number without a unit or base is in, whether
two numbers are a point or a list, and whether an equation is meant or the value it names. So
answers that mean the same to the question have the same key.
"""

import functools
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from string import ascii_uppercase
from typing import NamedTuple

from debate_protocol.types import Question
from debate_rewards.answers.amounts import number_in_words
from debate_rewards.answers.folding import plain_text, text_form
from debate_rewards.answers.labels import USUAL_LABELS, choice_texts, chosen_label
from debate_rewards.answers.numbers import read_number
from debate_rewards.answers.polynomials import polynomial
from debate_rewards.answers.reply import FinalAnswer, Kind, Unreadable, final_answer
from debate_rewards.answers.sentences import (
    BOLD,
    SENTENCE_END,
    bare_formula,
    formulas,
    is_formula,
    listed_numbers,
    settled_number,
)
from debate_rewards.answers.spelling import MAX_MATH_CHARS
from debate_rewards.answers.truth import yes_or_no
from debate_rewards.answers.types import (
    NO_BASE,
    Answer,
    Equation,
    Expression,
    Interval,
    Label,
    List,
    Matrix,
    Number,
    Point,
    Set,
    Text,
    YesNo,
    read_element,
    read_mathematics,
)
from debate_rewards.answers.units import LETTER_UNITS, unit_of

_ABOUT_PERCENT = re.compile(r"percent|\bper cent\b|%", re.IGNORECASE)
_ONE_NAME = re.compile(r"\s*(\\?[a-zA-Z]+)\s*=(?!=)")
_BEFORE_WORD = re.compile(r"^(?:(?:it|this|that) (?:is|was|will be) )?(?:(?:on|in|at|a|an|the) )*")
_DENIED_BOLD = re.compile(r"(?:\bnot|n['’]t|\bnever|\bthan|\bof)\s+(?:\w+\s+)?\*\*", re.IGNORECASE)
_WORD_CHARACTER = re.compile(r"\w")
_CACHE_SIZE = 1 << 14
MAX_COMPARED_FORMULAS = 8
"""More formulas of one sentence are several answers without a look at their values."""
_PERCENT_RANGE = 10
"""How many times the gold percentage a number may be and still be one, not a fraction of 1."""


@dataclass(frozen=True)
class AnswerForm:
    """How answers to a question are read."""

    kind: Kind
    choices: Mapping[str, str] = field(default_factory=dict)
    gold: Answer | None = None
    asks_percent: bool = False
    """Whether the question's text speaks of percent."""
    holds_braces: bool = False
    labels: tuple[str, ...] = USUAL_LABELS
    """Labels where no choices are listed."""

    def read_reply(self, reply: str) -> Answer | Unreadable:
        """Return the final answer of a whole reply."""
        statement = final_answer(reply, self.kind, holds_braces=self.holds_braces)
        if statement is None:
            return Unreadable("no answer")
        return self.read(statement)

    def read(self, statement: FinalAnswer) -> Answer | Unreadable:
        """Return the answer that a final answer states."""
        if self.kind == "choice":
            label = chosen_label(statement.text, self.choices, self.labels)
            return Label(label, label) if isinstance(label, str) else label
        if self.kind == "yes_no":
            is_yes = yes_or_no(statement.text)
            if isinstance(is_yes, Unreadable):
                return is_yes
            return YesNo("yes" if is_yes else "no", is_yes)
        if self.kind == "text":
            form = text_form(statement.text)
            return Text(form) if form else Unreadable("no answer")
        if self.kind == "number":
            answer = self._read_number(statement)
        else:
            answer = self._read_mathematics(statement)
        return answer if isinstance(answer, Unreadable) else self._adapted(answer)

    def _read_number(self, statement: FinalAnswer) -> Answer | Unreadable:
        text = statement.text
        if len(text) <= MAX_MATH_CHARS:
            answer = _valued(_with_unit(read_mathematics(text), text))
            if isinstance(answer, Number):
                return answer
        return _number_in(text)

    def _read_mathematics(self, statement: FinalAnswer) -> Answer | Unreadable:
        text = statement.text
        if isinstance(self.gold, Label):
            label = chosen_label(text, {})
            return Label(text, label) if isinstance(label, str) else label
        if len(text) > MAX_MATH_CHARS and statement.marked:
            return Text(" ".join(text.split()))
        if isinstance(self.gold, Text):
            return _worded(text)
        in_words = number_in_words(text) if isinstance(self.gold, Number) else None
        return self._read_formula(statement) if in_words is None else read_mathematics(in_words)

    def _read_formula(self, statement: FinalAnswer) -> Answer | Unreadable:
        text = statement.text
        whole = _with_unit(read_mathematics(text), text)
        if not whole.text:
            return Unreadable("no answer")
        is_prose = not is_formula(text)
        if isinstance(whole, Number) or not is_prose:
            return whole
        if statement.in_box and not isinstance(whole, Expression | Text):
            return whole
        if isinstance(self.gold, List) and (listed := listed_numbers(text)) is not None:
            return read_mathematics(listed)
        inner = formulas(text) if isinstance(self.gold, List) else []
        if len(inner) > 1:
            return read_mathematics(",".join(inner))
        in_prose = _formula_in(text)
        if not isinstance(in_prose, Unreadable):
            return in_prose
        # Words are an answer where they are marked as one, never a sentence around numbers.
        if statement.marked and not re.search(r"\d", text):
            return whole
        if statement.marked and _is_structured(whole):
            return whole
        return in_prose

    def _adapted(self, answer: Answer) -> Answer:
        """Return the answer in the form that the question's gold answer has."""
        gold = self.gold
        if isinstance(answer, Equation):
            answer = self._equation(answer)
        elif isinstance(gold, Equation) and type(answer) in (Expression, Number):
            answer = _equation_for(gold, answer)
        if isinstance(gold, Number) and isinstance(answer, Expression):
            answer = _in_letter_unit(answer, gold.unit)
        if isinstance(answer, Number):
            return self._number(answer)
        if isinstance(gold, Point | Matrix):
            return _ordered(gold, answer)
        if isinstance(gold, List):
            return _unordered(gold, answer)
        return answer

    def _equation(self, answer: Equation) -> Answer:
        if not isinstance(self.gold, Equation):
            return answer if answer.named is None else answer.named
        return _renamed(self.gold, answer)

    def _number(self, answer: Number) -> Number:
        gold = self.gold if isinstance(self.gold, Number) else None
        value: Fraction | None = self._percentage(answer, gold)
        unit = answer.unit if gold is not None and gold.unit is not None else None
        unit = unit or (None if gold is None else gold.unit)
        base = None if gold is None else gold.base
        if answer.base is not None and (base is not None or answer.base == NO_BASE):
            base = answer.base
        if answer.base != base:
            value = _digits_in_base(answer, base or 10)
            base = base if value is not None else NO_BASE
        if value is None:
            value = answer.value
        return Number(answer.text, value, unit=unit, base=base)

    def _percentage(self, answer: Number, gold: Number | None) -> Fraction:
        """Return the value in percent, or as a fraction of 1, whichever the question's gold is.

        Where the gold is no percentage a sign is ignored, unless the gold is at most 1, or the
        value so much greater that only its hundredth can be meant; the other way round without a
        sign.
        """
        value = answer.value
        if gold is None or not gold.value:
            return value
        limit = abs(gold.value)
        size = abs(value)
        if gold.percent or self.asks_percent:
            is_fraction = not answer.percent and size * _PERCENT_RANGE <= limit
            return value * 100 if is_fraction else value
        is_share = limit <= 1
        is_hundredth = answer.percent and (is_share or size > limit * _PERCENT_RANGE)
        return value / 100 if is_hundredth else value


def read_answer(question: Question, reply: str) -> Answer | Unreadable:
    """Return the final answer of a reply, read against the question's own type."""
    return form_of(question).read_reply(reply)


def read_gold(question: Question) -> Answer | Unreadable | None:
    """Return the question's own answer, None where it has none."""
    if question.answer is None:
        return None
    return read_accepted(question, question.answer)


def read_accepted(question: Question, gold: str) -> Answer | Unreadable:
    """Return an answer that is right, read as replies to the question are.

    One without a mark is taken whole rather than by its last line.
    """
    return _accepted(_asked(question), gold)


def form_of(question: Question) -> AnswerForm:
    """Return how answers to a question are read; the same object for the same kind and gold."""
    return _form(_asked(question))


class _Asked(NamedTuple):
    """What of a question decides how its answers are read."""

    kind: Kind
    gold: str | None
    choices: tuple[tuple[str, str], ...]
    asks_percent: bool


def _asked(question: Question) -> _Asked:
    meta = question.meta
    kind: Kind = meta.get("kind", "math")
    choices = meta.get("choices") if kind == "choice" else None
    return _Asked(
        kind=kind,
        gold=question.answer,
        choices=tuple(choice_texts(choices).items()) if choices else (),
        asks_percent=kind in ("math", "number") and bool(_ABOUT_PERCENT.search(question.text)),
    )


@functools.lru_cache(maxsize=_CACHE_SIZE)
def _form(asked: _Asked) -> AnswerForm:
    gold = asked.gold
    bare = AnswerForm(
        kind=asked.kind,
        choices=dict(asked.choices),
        asks_percent=asked.asks_percent,
        labels=_usual_labels(gold),
        holds_braces=asked.kind == "text" and _holds_braces(gold),
    )
    if gold is None or asked.kind not in ("math", "number"):
        return bare
    answer = _read_gold(bare, gold)
    return bare if isinstance(answer, Unreadable) else replace(bare, gold=answer)


def _holds_braces(gold: str | None) -> bool:
    """Return whether answers may hold braces, as where the gold does or consists of signs."""
    return gold is None or "{" in gold or "}" in gold or _WORD_CHARACTER.search(gold) is None


def _usual_labels(gold: str | None) -> tuple[str, ...]:
    """Return A to J, or the whole alphabet where the gold answer is a later letter."""
    letter = "" if gold is None else gold.strip(" ().")
    is_later = len(letter) == 1 and letter in ascii_uppercase and letter not in USUAL_LABELS
    return tuple(ascii_uppercase) if is_later else USUAL_LABELS


@functools.lru_cache(maxsize=_CACHE_SIZE)
def _accepted(asked: _Asked, gold: str) -> Answer | Unreadable:
    return _read_gold(_form(asked), gold)


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
    """Return what a mathematical gold answer is before anything is known of its question."""
    if len(text) > MAX_MATH_CHARS:
        return Text(" ".join(text.split()))
    answer = Label.read(text.strip()) or _with_unit(read_mathematics(text), text)
    if not answer.text:
        return Unreadable("no answer")
    if isinstance(answer, Equation) and answer.named is not None:
        return answer if _has_symbols(answer.named) else answer.named
    return answer


def _has_symbols(answer: Answer) -> bool:
    """Return whether `y=…` is an equation in the right side's symbols rather than a value."""
    known = answer.polynomial if isinstance(answer, Expression) else None
    return known is not None and bool(known.symbols)


def _with_unit(answer: Answer, text: str) -> Answer:
    return replace(answer, unit=unit_of(text)) if isinstance(answer, Number) else answer


def _in_letter_unit(answer: Expression, unit: str | None) -> Answer:
    """Read `17 m` as meters where the question's answer is in meters."""
    if unit is None or LETTER_UNITS.get(answer.text[-1:]) != unit:
        return answer
    value = read_number(answer.text[:-1])
    return answer if value is None else Number(answer.text, value, unit=unit)


def _valued(answer: Answer) -> Answer:
    """Return the value that an equation names."""
    if isinstance(answer, Equation) and answer.named is not None:
        return answer.named
    return answer


def _number_in(text: str) -> Answer | Unreadable:
    first_sentence = SENTENCE_END.split(text, maxsplit=1)[0]
    in_words = number_in_words(text)
    if in_words is None and not re.search(r"\d", text):
        in_words = number_in_words(first_sentence)
    written = in_words or settled_number(text)
    if isinstance(written, Unreadable):
        return written
    number = read_mathematics(written)
    return number if isinstance(number, Number) else Unreadable("no number")


def _formula_in(text: str) -> Answer | Unreadable:
    """Return the only formula of a sentence, else the number that it settles on."""
    inner = list(dict.fromkeys(formulas(text)))
    if len(inner) == 1:
        return _with_unit(read_mathematics(inner[0]), inner[0])
    if inner:
        equations = [one for one in inner if "=" in one]
        if len(equations) == 1 and inner[-1] == equations[0]:
            return _with_unit(read_mathematics(inner[-1]), inner[-1])
        # Steps of one transformation, such as an expanded product, are all the same answer.
        answers = [_with_unit(read_mathematics(one), one) for one in inner[:MAX_COMPARED_FORMULAS]]
        keys = {answer.key for answer in answers}
        if len(inner) == len(answers) and len(keys) == 1 and None not in keys:
            return answers[0]
        return Unreadable("several formulas")
    bare = bare_formula(text)
    return _number_in(text) if bare is None else _with_unit(read_mathematics(bare), bare)


def _is_structured(answer: Answer) -> bool:
    """Return whether an answer with words in it is still written as mathematics."""
    return not isinstance(answer, Text | Expression | List)


def _worded(text: str) -> Text:
    in_bold = BOLD.findall(text)
    if len(in_bold) == 1 and not _DENIED_BOLD.search(text):
        text = in_bold[0]
    spelled = read_mathematics(text)
    words = spelled.text if isinstance(spelled, Text) else plain_text(text)
    return Text(_BEFORE_WORD.sub("", text_form(words).strip("()., ")))


def _equation_for(gold: Equation, answer: Answer) -> Answer:
    """Read `2x+3` as `y=2x+3` where the question asks for such an equation."""
    name = _ONE_NAME.match(gold.text)
    if name is None or gold.named is None:
        return answer
    return read_mathematics(f"{name[1]}={answer.text}")


def _renamed(gold: Equation, answer: Equation) -> Answer:
    """Return the equation with the gold's name for the value, which is not checked."""
    name, other = _ONE_NAME.match(gold.text), _ONE_NAME.match(answer.text)
    if name is None or gold.named is None or answer.named is None:
        return answer
    known = polynomial(gold.named.text)
    if other is not None and known is not None and other[1] in known.symbols:
        return answer
    return read_mathematics(f"{name[1]}={answer.named.text}")


def _digits_in_base(answer: Number, base: int) -> Fraction | None:
    """Return the value that an answer's digits have in another base, None where they have none."""
    digits = re.match(r"\(?([0-9A-Za-z]+)", answer.text)
    try:
        return None if digits is None else Fraction(int(digits[1], base))
    except ValueError:
        return None


def _ordered(gold: Answer, answer: Answer) -> Answer:
    """Read a list as the point or vector that the question asks for: its brackets are missing."""
    is_bare_list = isinstance(answer, List) and not isinstance(answer, Set)
    if isinstance(gold, Point) and (is_bare_list or _is_column(answer)):
        return Point(answer.text, answer.parts)
    is_vector = isinstance(gold, Matrix) and gold.rows in (1, len(gold.elements))
    if is_vector and isinstance(gold, Matrix) and (is_bare_list or isinstance(answer, Point)):
        return Matrix(answer.text, answer.parts, gold.rows if gold.rows == 1 else len(answer.parts))
    return answer


def _is_column(answer: Answer) -> bool:
    return isinstance(answer, Matrix) and answer.rows == len(answer.elements)


def _unordered(gold: List, answer: Answer) -> Answer:
    """Read brackets around a list: `[1, 2]`, or parentheses in the gold's own order."""
    if isinstance(answer, Interval) and answer.brackets == ("[]",):
        return List(answer.text, answer.parts)
    same_order = Point("", gold.parts).key == answer.key is not None
    if isinstance(answer, Point) and same_order and not isinstance(gold, Set):
        return List(answer.text, answer.parts)
    return answer


def answer_id(answer: Answer) -> Hashable:
    """Return the key of an answer, or its spelling where it has none."""
    return answer.text if answer.key is None else answer.key


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
]
