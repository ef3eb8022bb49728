"""A response's own final answer, and the form in which answers of each kind are compared."""

import itertools
import re
import unicodedata
from collections.abc import Mapping, Sequence
from fractions import Fraction
from string import ascii_uppercase
from typing import Literal, NamedTuple

from debate_protocol.parsing import answer_line, final_box, parse
from debate_protocol.types import Question
from debate_rewards.answers.math_text import read_number, spelling

Kind = Literal["math", "choice", "yes_no", "number", "text"]
KINDS: tuple[Kind, ...] = ("math", "choice", "yes_no", "number", "text")

_SOLUTION = re.compile(r"<\s*solution\s*>", re.IGNORECASE)
_ANSWER_IS = re.compile(r"\b(?:answer|result)\s++is\b:?", re.IGNORECASE)
_MAX_UNMARKED_CHARS = 4096
_MAX_FOLDED_CHARS = 4096
_THINKING_ENDS = re.compile(r"</\s*think\s*>", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?:\s*+/\s*+\d+)?")
_LETTER = re.compile(r"(?<![A-Za-z'’])\(?([A-Za-z])\)?(?![A-Za-z'’])")
_YES_NO = re.compile(r"\b(yes|no|true|false)\b", re.IGNORECASE)
_FORMULA = re.compile(r"\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]")
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textit)\s*\{([^{}]*)\}")


class FinalAnswer(NamedTuple):
    """The answer's text, and whether the response marked it as its answer."""

    text: str
    marked: bool


def final_answer(response: str, kind: Kind) -> FinalAnswer | None:
    r"""Return a response's own final answer, or None when there is none.

    Read are the solution section when there are sections, and what follows the thinking when it
    has an end. There, the later of the last `\boxed{…}` and the last line `Answer: …` counts, else
    (except for free text) what follows `####` or `the answer is`; without any mark it is the last
    line, or for free text all of it. So no earlier box, quoted or not, matters.
    """
    text: str | None = response
    if _SOLUTION.search(response):
        text = parse(response, "three_section").answer
    text = _after_thinking(text or "")
    if not text.strip():
        return None
    place = _marked_place(text)
    if place is not None:
        inner = text[place[0] : place[1]]
        if not inner:
            return None
        is_box = text[: place[0]].rstrip().endswith("{")
        return FinalAnswer(inner, True) if is_box else _stated(inner, kind)
    if kind == "text":
        return FinalAnswer(text.strip(), False)
    lines = text.strip().splitlines()
    stated = _after_hashes(lines) or _after_answer_is(lines)
    if stated:
        return _stated(stated, kind)
    return FinalAnswer(lines[-1].strip()[-_MAX_UNMARKED_CHARS:], False)


def _stated(text: str, kind: Kind) -> FinalAnswer:
    """Return what a line states; a sentence around one formula or number is read for that."""
    marked = True
    if kind == "math" and len(text) <= _MAX_UNMARKED_CHARS and not _is_expression(text):
        marked = len(_FORMULA.findall(text) or _NUMBER.findall(text)) != 1
    return FinalAnswer(text, marked)


def _after_thinking(text: str) -> str:
    ends = [found.end() for found in _THINKING_ENDS.finditer(text)]
    after = text[ends[-1] :] if ends else ""
    return after if after.strip() else text


def _marked_place(text: str) -> tuple[int, int] | None:
    box, line = final_box(text), answer_line(text)
    if line is None or line[0] == line[1] or (box is not None and box[1] > line[0]):
        return box
    return line


def _after_hashes(lines: Sequence[str]) -> str | None:
    marked = [line.strip()[4:].strip() for line in lines if line.lstrip().startswith("####")]
    return marked[-1] if marked else None


def _after_answer_is(lines: Sequence[str]) -> str | None:
    for line in reversed(lines):
        places = list(_ANSWER_IS.finditer(line))
        if places:
            return line[places[-1].end() :].strip().removesuffix(".").strip()
    return None


def canonical(question: Question, kind: Kind, answer: FinalAnswer) -> str | None:
    """Return the form in which answers are equal as text, None when the answer cannot be read.

    For `math` it is the expression to compare; equal forms are equal answers but unequal forms
    may be equal answers too.
    """
    if kind == "math":
        return math_form(answer)
    if kind == "choice":
        return choice_form(answer, question.meta.get("choices"))
    if kind == "yes_no":
        return yes_no_form(answer)
    if kind == "number":
        value = number_value(answer)
        return None if value is None else str(value)
    return text_form(answer.text) or None


def text_form(text: str) -> str:
    """Return the text without differences of case, white space, quotes and final full stops.

    Braces may be escaped, as they must be inside of a box that they do not balance.
    Compatible characters such as `ﬁ` and `fi` count as one (NFKC) in texts of at most 4,096
    characters: sorting a run of combining marks takes time that grows with its square.
    """
    plain = _TEXT_COMMAND.sub(r"\1", text).replace("\\{", "{").replace("\\}", "}")
    if len(plain) <= _MAX_FOLDED_CHARS:
        plain = unicodedata.normalize("NFKC", plain)
    return " ".join(plain.casefold().split()).strip("\"'`.“”‘’ ")


def yes_no_form(answer: FinalAnswer) -> str | None:
    """Return `yes` or `no`: what the answer begins with, else the last such word in it."""
    words = _YES_NO.findall(answer.text)
    if not words:
        return None
    leading = re.match(r"\W*(yes|no|true|false)\b", answer.text, re.IGNORECASE)
    word = (leading[1] if leading else words[-1]).lower()
    return "yes" if word in ("yes", "true") else "no"


def choice_form(answer: FinalAnswer, choices: object) -> str | None:
    """Return the chosen label; an answer that repeats a choice's text has its label."""
    texts = _choice_texts(choices)
    whole = text_form(answer.text)
    for letter, text in texts.items():
        if whole == text_form(text):
            return letter
    text = _TEXT_COMMAND.sub(r"\1", answer.text)
    bare = text.strip(" ().:[]").upper()
    if bare in texts:
        return bare  # A label may be no letter: 1, 2, 3, 4.
    allowed = {letter.upper() for letter in texts} or set("ABCDEFGHIJ")
    leading = re.match(r"\W*([A-Za-z])(?![A-Za-z'’])", text)
    # "A" and "I" are words too, so a letter inside a sentence must be a capital.
    letters = [leading[1].upper()] if leading and _is_option(leading, text) else []
    letters += [found.upper() for found in _LETTER.findall(text) if found.isupper()][::-1]
    return next((letter for letter in letters if letter in allowed), None)


def _is_option(match: re.Match[str], text: str) -> bool:
    rest = text[match.end() :].strip()
    return not rest or not rest[0].isalnum()


def _choice_texts(choices: object) -> dict[str, str]:
    if isinstance(choices, Mapping):
        return {str(letter).upper(): str(text) for letter, text in choices.items()}
    if isinstance(choices, Sequence) and not isinstance(choices, str):
        letters = itertools.chain(ascii_uppercase, map(str, itertools.count(27)))
        return {letter: str(text) for letter, text in zip(letters, choices, strict=False)}
    return {}


def number_value(answer: FinalAnswer) -> Fraction | None:
    """Return the number that the answer states, with thousands separators and fractions read.

    In a marked answer this is the first number after the last `=`, otherwise the last one.
    """
    text = answer.text.rsplit("=", 1)[-1] if answer.marked else answer.text
    text = spelling(text[:_MAX_UNMARKED_CHARS])
    whole = read_number(text)
    if whole is not None:
        return whole.value
    text = re.sub(r"\\frac\{(-?\d+)\}\{(\d+)\}", r"\1/\2", text).replace("\\", " ")
    found = _NUMBER.findall(text)
    number = read_number(found[0] if answer.marked else found[-1]) if found else None
    return None if number is None else number.value


def math_form(answer: FinalAnswer) -> str | None:
    """Return the expression of a mathematical answer in one spelling, None when there is none."""
    text = answer.text.strip()
    if not answer.marked and not _is_expression(text):
        formulas = _FORMULA.findall(text)
        if not formulas:
            value = number_value(answer)
            return None if value is None else str(value)
        text = "".join(formulas[-1])
    return spelling(text) or None


def _is_expression(text: str) -> bool:
    """Return whether a text without a mark is a formula rather than a sentence."""
    bare = re.sub(r"\\[a-zA-Z]+(?:\s*\{[a-zA-Z\s]*\})?", " ", text)
    bare = re.sub(r"(?i)\b(?:sin|cos|tan|log|sqrt|exp)\b", " ", bare)
    return not re.search(r"[A-Za-z]{3,}", bare) and len(re.findall(r"[A-Za-z]{2,}", bare)) < 2
