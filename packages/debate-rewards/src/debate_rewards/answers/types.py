r"""The types of answers, one class each: how it is written, what it holds and when two are equal.

`key` is what verdicts, votes, classes and majorities compare, and nothing else: two answers of a
question are equal exactly if their keys are. A type whose parts have no key has none, and then
Math-Verify compares those parts (`Expression`) in a worker.

A new type is one class here: `read` returns it, or None for a text that is written otherwise; `key`
follows from its fields; EXAMPLES says what is read and what it equals. `READING_ORDER` has the
types of mathematical answers in the order in which they are tried.
"""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

from debate_rewards.answers.brackets import enclosed, split_outside
from debate_rewards.answers.folding import text_form
from debate_rewards.answers.numbers import decimal_value, read_number, rounded_value
from debate_rewards.answers.polynomials import NotPolynomial, Polynomial, difference, polynomial
from debate_rewards.answers.spelling import FONT, spelling, without_units

Key = tuple[Hashable, ...]
Examples = Sequence[tuple[str, str, bool]]
"""Pairs of spellings, and whether they are one answer."""

NO_BASE = -1
"""Base of a number whose index is no base of its digits."""


_MAX_SIDES = 20
_WORDS = re.compile(r"[A-Za-z][A-Za-z .'’-]*|[A-Z][a-z]{2,} \d{1,4}")
_LONG_WORD = re.compile(r"[A-Za-z]{3,}")
_BASED = re.compile(r"\(?((?=[A-Za-z]*\d)[0-9A-Za-z]+)\)?_\{?\(?(?:\\text\{)?(\w+)\}?\)?\}?")
_BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8}
_BASES |= {"nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "sixteen": 16}
_AND_OR = re.compile(
    r",?\s*(?:\\text\{\s*,?\s*(?:and|or)\s*\}|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])|\\(?:lor|land)"
    r"(?![a-zA-Z]))\s*,?"
)
_ALTERNATIVES = re.compile(
    r"\\text\{\s*or\s*\}|(?<![a-zA-Z\\])or(?![a-zA-Z])|\\(?:lor|vee)(?![a-zA-Z])"
)
_BOTH_HOLD = re.compile(r"\\text\{\s*and\s*\}|(?<![a-zA-Z\\])and(?![a-zA-Z])|\\(?:land|wedge)\b|,")
_ORDER = re.compile(r"(<=|>=|[<>]|\\(?:le|ge|lt|gt)(?![a-zA-Z]))")
_MEANS_LESS = {"<": "<", "\\lt": "<", "\\le": "<=", "<=": "<="}
_MEANS_MORE = {">": "<", "\\gt": "<", "\\ge": "<=", ">=": "<="}
_EQUALS = re.compile(r"(?<![<>\\:])(?:(?<!!)|(?<=\d!))=")
_SYMBOL = re.compile(r"\\?[a-zA-Z]+")
_VALUE_OF_SYMBOL = re.compile(r"\s*(\\?[a-zA-Z]+)(?:_(?:\w|\{\w+\}))?\s*=(?!=)")
_NAME = re.compile(
    r"\\?[a-zA-Z](?:_(?:\w|\{\w+\}))?'*|\\[a-zA-Z]+(?:_(?:\w|\{\w+\}))?|\\text\{[^{}]*\}"
    r"|[A-Z]{2,4}|[a-zA-Z]{3,}(?:\s[a-zA-Z]+)*|\\?[a-zA-Z]+'*\([^()=]{0,40}\)|\([^()=\d]{1,40}\)"
    r"|m?\\angle\s*[A-Z]+|\\overline\{[A-Z]+\}|\|[A-Z]+\||\[[A-Z]+\]"
)


@dataclass(frozen=True, slots=True)
class Answer(ABC):
    """An answer as it was read."""

    text: str
    """Its spelling."""

    EXAMPLES: ClassVar[Examples] = ()

    @property
    @abstractmethod
    def key(self) -> Key | None:
        """What equal answers share, None where only Math-Verify can decide."""

    @classmethod
    def read(cls, text: str) -> "Answer | None":
        """Return the answer that a text in one spelling is, None where it is of another type."""
        return None

    @property
    def parts(self) -> tuple["Answer", ...]:
        """What is compared part by part where there is no key."""
        return (self,)

    @property
    def shape(self) -> Hashable:
        """What answers must share to be compared part by part."""
        return type(self).__name__

    @property
    def formula(self) -> str:
        """What Math-Verify is given."""
        return self.text

    @property
    def canonical(self) -> str:
        """A spelling that equal answers of most types share."""
        return self.text


@dataclass(frozen=True, slots=True)
class Label(Answer):
    """A choice, by its label; `labels.py` reads it from replies."""

    label: str
    EXAMPLES: ClassVar[Examples] = (
        (r"\text{(C)}", r"\text{C}", True),
        (r"\text{(C)}", r"\text{(D)}", False),
    )
    _WRITTEN: ClassVar = re.compile(r"\\text\{\s*\(?([A-Za-z])\)?\.?\s*\}|\(([A-Z])\)")

    @property
    def key(self) -> Key:
        """Compare labels."""
        return ("label", self.label)

    @classmethod
    def read(cls, text: str) -> "Label | None":
        r"""Read a letter in text, such as `\text{(C)}`."""
        match = cls._WRITTEN.fullmatch(text)
        return None if match is None else cls(text, (match[1] or match[2]).upper())


@dataclass(frozen=True, slots=True)
class YesNo(Answer):
    """Yes or no; `truth.py` reads it from replies."""

    is_yes: bool

    @property
    def key(self) -> Key:
        """Compare yes and no."""
        return ("yes" if self.is_yes else "no",)


@dataclass(frozen=True, slots=True)
class Text(Answer):
    """Words: compared without case, white space, quotes and a final full stop."""

    EXAMPLES: ClassVar[Examples] = (
        (r"\text{no solution}", "No solution.", True),
        (r"\text{even}", r"\text{not even}", False),
        (r"\text{Row 3}", r"\text{Column 3}", False),
    )

    @property
    def key(self) -> Key:
        """Compare folded words."""
        return ("text", text_form(self.text))

    @classmethod
    def read(cls, text: str) -> "Text | None":
        """Read words without mathematics."""
        words = FONT.sub(r" \1 ", text).strip("()., ")
        if "\\" in words or not _WORDS.fullmatch(words):
            return None
        is_marked = text.startswith("\\text{") and len(words) > 1
        return cls(words) if is_marked or _LONG_WORD.search(words) else None


@dataclass(frozen=True, slots=True)
class Number(Answer):
    """A number with an exact value, and perhaps a percent sign, a unit or a base."""

    value: Fraction
    percent: bool = False
    unit: str | None = None
    base: int | None = None
    EXAMPLES: ClassVar[Examples] = (
        (r"\frac{1}{2}", "0.5", True),
        (r"1\frac{1}{2}", "3/2", True),
        ("0.333333", "1/3", True),
        ("0.3333", "1/3", False),
        ("1,234", "1234", True),
        (r"12.5\%", r"\frac{25}{2}\%", True),
        ("52_8", r"52_{\text{eight}}", True),
        ("52_8", "52_7", False),
        ("2^{-70}", r"\frac{1}{2^{70}}", True),
        ("2^{-70}", "2^{-71}", False),
    )

    @property
    def key(self) -> Key:
        """Compare exact values, with percent sign, unit and base as the question means them."""
        return ("number", self.value, self.percent, self.unit, self.base)

    @property
    def shape(self) -> Hashable:
        r"""Share the shape of expressions: Math-Verify may find `\log_2 8` equal to 3."""
        return "expression"

    @property
    def canonical(self) -> str:
        """Return the value."""
        return str(self.value)

    @property
    def formula(self) -> str:
        """Return the value where the spelling says more or less than it."""
        return str(self.value) if read_number(self.text) != self.value else self.text

    @classmethod
    def read(cls, text: str) -> "Number | None":
        """Read a number, a percentage, or digits with a base."""
        if text.endswith("\\%"):
            inner = Expression.read(text.removesuffix("\\%").strip())
            return cls(text, inner.value, percent=True) if isinstance(inner, Number) else None
        value = read_number(text)
        return cls._with_base(text) if value is None else cls(text, value)

    @classmethod
    def _with_base(cls, text: str) -> "Number | None":
        match = _BASED.fullmatch(text)
        if match is None:
            return None
        digits, name = match[1].upper(), match[2]
        base = int(name) if name.isdecimal() and len(name) < 3 else _BASES.get(name.lower(), 0)
        if not 2 <= base <= 36 or not all(int(digit, 36) < base for digit in digits):
            # A letter with an index is a symbol; a number with one that is no base is only itself.
            is_digits = digits.isdecimal()
            return cls(text, Fraction(int(digits)), base=NO_BASE) if is_digits else None
        return cls(text, Fraction(int(digits, base)), base=base)


@dataclass(frozen=True, slots=True)
class Ratio(Answer):
    """Numbers between colons. Two of them are their fraction, unless they may be a time of day."""

    numbers: tuple[Fraction, ...]
    EXAMPLES: ClassVar[Examples] = (
        ("3:4", "6:8", True),
        ("3:4", "4:3", False),
        ("1:2:3", "2:4:6", True),
        ("1:2:3", r"\frac{1}{6}", False),
        ("3:30", r"\frac{1}{10}", False),
        ("3:30", "1:10", False),
    )
    _WRITTEN: ClassVar = re.compile(r"\d{1,9}(?:\.\d{1,9})?(?::\d{1,9}(?:\.\d{1,9})?){1,9}")
    _TIME: ClassVar = re.compile(r"(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d)?")

    @property
    def key(self) -> Key:
        """Compare the numbers, as multiples of the first one that is not 0."""
        if self._TIME.fullmatch(self.text):
            return ("time", self.numbers)
        scale = next((number for number in self.numbers if number), Fraction(1))
        return ("ratio", tuple(number / scale for number in self.numbers))

    @classmethod
    def read(cls, text: str) -> "Ratio | Number | None":
        """Read numbers between colons."""
        if cls._WRITTEN.fullmatch(text) is None:
            return None
        numbers = tuple(map(Fraction, text.split(":")))
        if len(numbers) == 2 and numbers[1] and not cls._TIME.fullmatch(text):
            return Number(text, numbers[0] / numbers[1])
        return cls(text, numbers)


@dataclass(frozen=True, slots=True)
class Infinity(Answer):
    """An end of an interval, or a limit."""

    positive: bool
    EXAMPLES: ClassVar[Examples] = ((r"+\infty", r"\infty", True), (r"-\infty", r"\infty", False))
    _WRITTEN: ClassVar = re.compile(r"([-+]?)\\infty")

    @property
    def key(self) -> Key:
        """Compare signs."""
        return ("infinity", self.positive)

    @classmethod
    def read(cls, text: str) -> "Infinity | None":
        r"""Read `\infty` with a sign or without."""
        match = cls._WRITTEN.fullmatch(text)
        return None if match is None else cls(text, match[1] != "-")


@dataclass(frozen=True, slots=True)
class Expression(Answer):
    """A formula: a polynomial has a key, any other is left to Math-Verify."""

    polynomial: Polynomial | None
    EXAMPLES: ClassVar[Examples] = (
        ("(a+5)(b+2)", "ab+2a+5b+10", True),
        (r"\frac{\sqrt{3}}{3}", r"1/\sqrt{3}", True),
        (r"2\frac{1}{2}\pi", r"\frac{5\pi}{2}", True),
        ("6-5i", "-5i+6", True),
        ("x", "X", False),
        ("2m", "2s", False),
        ("f(2)", "2f", False),
        ("f(x+1)", "f(1+x)", True),
        (r"\cot x", r"\frac{\cos x}{\sin x}", True),
        (r"\sqrt{x^2}", "x", False),
    )

    @property
    def key(self) -> Key | None:
        """Compare monomials."""
        if self.polynomial is None:
            return None
        return ("polynomial", frozenset(self.polynomial.terms.items()))

    @classmethod
    def read(cls, text: str) -> "Answer":
        """Return a number where a formula has no symbols."""
        number = read_number(text)
        if number is not None:
            return Number(text, number)
        terms = polynomial(text)
        if terms is None or not terms.is_constant:
            return cls(text, terms)
        if terms.rational is not None:
            return Number(text, terms.rational)
        try:
            return Number(text, decimal_value(rounded_value(terms.value())))
        except NotPolynomial:
            return cls(text, None)

    @property
    def shape(self) -> Hashable:
        """Share the shape of numbers."""
        return "expression"


@dataclass(frozen=True, slots=True)
class _Compound(Answer):
    """Answers in an order."""

    elements: tuple[Answer, ...]

    @property
    def parts(self) -> tuple[Answer, ...]:
        return self.elements

    @property
    def key(self) -> Key | None:
        keys = [element.key for element in self.elements]
        return None if None in keys else (self.shape, self._arranged(keys))

    def _arranged(self, keys: list[Key | None]) -> Hashable:
        return tuple(keys)

    @property
    def shape(self) -> Hashable:
        return (type(self).__name__, len(self.elements))


@dataclass(frozen=True, slots=True)
class Point(_Compound):
    """Coordinates in parentheses, in order. An open interval is written the same way."""

    EXAMPLES: ClassVar[Examples] = (
        ("(1,2)", "(1, 2)", True),
        ("(1,2)", "(2,1)", False),
        ("(1,2)", r"\{1,2\}", False),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\langle 1,2\rangle", True),
        (r"(3,\frac{\pi}{2})", r"(3,0.5\pi)", True),
        ("(-2,3)", "-2<x<3", True),
    )

    @classmethod
    def read(cls, text: str) -> "Point | None":
        """Read coordinates in parentheses."""
        inner = enclosed(text, "(", ")")
        return None if inner is None else cls._of(text, split_outside(inner, ","))

    @classmethod
    def _of(cls, text: str, pieces: Sequence[str]) -> Self | None:
        if len(pieces) < 2 or not all(pieces):
            return None
        return cls(text, tuple(read_element(piece) for piece in pieces))


@dataclass(frozen=True, slots=True)
class List(_Compound):
    """Several answers, in any order: written with commas, `and`, `or`, `±`, or as a set."""

    EXAMPLES: ClassVar[Examples] = (
        ("1,2", r"2\text{ and }1", True),
        ("1,2", r"\{2,1\}", True),
        ("1,2", "1,2,3", False),
        ("1,1,2", "1,2,2", False),
        (r"1\pm\sqrt{2}", r"1-\sqrt{2},1+\sqrt{2}", True),
        ("x=1,x=2", "1,2", True),
        ("x=1,y=2", "y=2,x=1", True),
        ("x=1,y=2", "x=2,y=1", False),
        ("x=1,y=2", "(1,2)", True),
        (r"r=3,\theta=2", "(3,2)", True),
        ("x_1=1,x_2=2", "x_1=2,x_2=1", True),
    )

    @classmethod
    def read(cls, text: str) -> "List | Point | None":
        """Read several answers; values of different symbols are a point in the symbols' order."""
        listed = _listed(text)
        pieces = _in_order_of_names(listed)
        values = [value for piece in pieces for value in _both_signs(piece)]
        if len(values) < 2:
            return None
        elements = tuple(map(read_element, values))
        is_point = len(values) == len(listed) and _names_differ(listed)
        return Point(text, elements) if is_point else cls(text, elements)

    def _arranged(self, keys: list[Key | None]) -> Hashable:
        return frozenset(Counter(keys).items())

    @property
    def shape(self) -> Hashable:
        """Share one shape for all lists and sets."""
        return "list"


@dataclass(frozen=True, slots=True)
class Set(List):
    """A set in braces, equal to the list of its elements."""

    EXAMPLES: ClassVar[Examples] = (
        (r"\{1,2\}", "2,1", True),
        (r"\{1\pm\sqrt{5},-2\}", r"\{-2,1+\sqrt{5},1-\sqrt{5}\}", True),
        (r"\emptyset", r"\{\}", True),
        (r"\{1,1\}", r"\{1\}", True),
    )

    @classmethod
    def read(cls, text: str) -> "Set | None":
        """Read elements in braces."""
        if text == "\\emptyset":
            return cls(text, ())
        inner = enclosed(text, "\\{", "\\}")
        if inner is None:
            return None
        pieces = [piece for piece in split_outside(inner, ",") if piece]
        values = [value for piece in pieces for value in _both_signs(piece)]
        elements = {answer.key or answer.text: answer for answer in map(read_element, values)}
        return cls(text, tuple(elements.values()))


@dataclass(frozen=True, slots=True)
class Interval(_Compound):
    """Intervals and their union: four brackets and ends, or the inequality that describes them."""

    brackets: tuple[str, ...] = ()
    EXAMPLES: ClassVar[Examples] = (
        ("(2,5]", r"2<x\le 5", True),
        ("(2,5]", "[2,5)", False),
        (r"(2,\infty)", "x>2", True),
        (r"(-\infty,2)\cup(3,\infty)", r"x<2\text{ or }x>3", True),
        (r"(-\infty,2)\cup(3,\infty)", r"(3,\infty)\cup(-\infty,2)", True),
        ("[0,5)", r"x\ge 0\text{ and }x<5", True),
    )

    @property
    def key(self) -> Key | None:
        """Compare brackets and ends; an open interval is written as a point."""
        keys = [element.key for element in self.elements]
        if None in keys:
            return None
        if self.brackets == ("()",):
            return (("Point", 2), tuple(keys))
        ends = zip(self.brackets, keys[::2], keys[1::2], strict=True)
        return ("intervals", frozenset(ends))

    @property
    def shape(self) -> Hashable:
        """Share the shape of a point where the brackets are its."""
        return ("Point", 2) if self.brackets == ("()",) else ("intervals", self.brackets)

    @classmethod
    def read(cls, text: str) -> "Interval | None":
        """Read brackets, unions and inequalities."""
        overlap = _overlap(text)
        if overlap is not None:
            brackets, low, high = overlap
            return cls(text, (read_element(low), read_element(high)), (brackets,))
        pieces = split_outside(text, "\\cup")
        if len(pieces) == 1:
            pieces = _ALTERNATIVES.split(text)
        spans = [_bracketed_span(piece) or _inequality_span(piece) for piece in pieces]
        known = [span for span in spans if span is not None]
        if not known or len(known) < len(spans):
            return None
        if (
            len(known) == 1
            and known[0][0] == "()"
            and not _ORDER.search(text)
            and "\\infty" not in text
        ):
            return None  # A point.
        ends = tuple(read_element(end) for _, low, high in known for end in (low, high))
        return cls(text, ends, tuple(brackets for brackets, _, _ in known))


@dataclass(frozen=True, slots=True)
class Matrix(_Compound):
    """Rows of a matrix or vector, whatever its brackets."""

    rows: int = 1
    EXAMPLES: ClassVar[Examples] = (
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix}1\\2\end{bmatrix}", True),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}", False),
    )
    _WRITTEN: ClassVar = re.compile(r"\\begin\{[pbvV]?matrix\}(.*)\\end\{[pbvV]?matrix\}", re.S)

    @property
    def shape(self) -> Hashable:
        """Share the shape of matrices of the same size."""
        return ("matrix", self.rows, len(self.elements))

    @classmethod
    def read(cls, text: str) -> "Matrix | None":
        """Read rows and cells."""
        match = cls._WRITTEN.fullmatch(text)
        if match is None or "\\begin" in match[1]:
            return None
        rows = [row.split("&") for row in match[1].split("\\\\")]
        if any(len(row) != len(rows[0]) for row in rows):
            return None
        cells = tuple(read_element(cell.strip()) for row in rows for cell in row)
        return cls(text, cells, len(rows))


@dataclass(frozen=True, slots=True)
class Equation(Answer):
    """Two sides, equal to every multiple of itself. `SYMBOL = value` also names a value."""

    sides: Polynomial | None
    named: Answer | None = None
    """What stands right of a lone symbol."""
    EXAMPLES: ClassVar[Examples] = (
        ("y=2x+3", "y-2x-3=0", True),
        ("5x-7y=-4", "10x-14y+8=0", True),
        ("x^2+1=0", "x^2+2=0", False),
        ("x=5", "5", True),
        ("2x=5", "5", False),
        ("x+y=3", "3", False),
        ("30+20=50", "50", True),
    )

    @property
    def key(self) -> Key | None:
        """Compare the difference of both sides, up to a factor."""
        if self.sides is None:
            return None
        return ("equation", frozenset(self.sides.terms.items()))

    @classmethod
    def read(cls, text: str) -> "Answer | None":
        """Read two sides; a calculation is its last side."""
        if text.count("=") > _MAX_SIDES or not _EQUALS.search(text):
            return None
        sides = [side.strip() for side in _EQUALS.split(text)]
        sides = [side for side in sides if side]
        if len(sides) < 2:
            return read_element(sides[0]) if sides and text.startswith("=") else None
        last = read_element(sides[-1])
        first = Expression.read(sides[0])
        if isinstance(first, Number) and isinstance(last, Number):
            return last  # A calculation.
        if isinstance(first, Number) and len(sides) == 2 and _NAME.fullmatch(sides[1]):
            return first
        left, right = polynomial(sides[0]), polynomial(sides[-1])
        whole = None if left is None or right is None else difference(left, right)
        scaled = whole.scaled() if whole is not None and whole.symbols else None
        is_call = sides[0].endswith(")")
        is_name = _NAME.fullmatch(sides[0]) and (is_call or not _names_itself(left, right))
        return cls(text, scaled, last if is_name else None)


READING_ORDER: tuple[type[Answer], ...] = (
    Number, Ratio, Infinity, Matrix, Interval, Point, Set, List, Equation, Text, Expression,
)  # fmt: skip
"""Types of mathematical answers; the first that reads a text has it."""


def read_element(text: str) -> Answer:
    """Read what stands inside of an answer, or an answer that is in one spelling already."""
    text = without_units(text.strip())
    for kind in READING_ORDER:
        answer = kind.read(text)
        if isinstance(answer, Equation) and answer.named is not None:
            return answer.named
        if answer is not None:
            return answer
    return Expression(text, None)


def read_mathematics(text: str) -> Answer:
    """Return the mathematical answer that a whole text is."""
    spelled = spelling(text)
    for kind in READING_ORDER:
        answer = kind.read(spelled)
        if answer is not None:
            return answer
    return Expression(spelled, None)


def _listed(text: str) -> list[str]:
    pieces = _AND_OR.split(text) if "and" in text or "or" in text or "\\l" in text else [text]
    parts = [part for piece in pieces for part in split_outside(piece.replace(";", ","), ",")]
    return [part for part in parts if part]


def _in_order_of_names(pieces: list[str]) -> list[str]:
    """Sort `y=1, x=2` by the names, so that it is the point (2, 1)."""
    named = [piece.partition("=") for piece in pieces]
    names = [name.strip() for name, _, _ in named]
    if all(value for _, _, value in named) and len(set(names)) == len(names):
        # Greek letters by their names: r comes before theta.
        spelled = [name.removeprefix("\\") for name in names]
        return [piece for _, piece in sorted(zip(spelled, pieces, strict=True))]
    return pieces


def _names_differ(pieces: list[str]) -> bool:
    """Return whether each piece gives another symbol's value; `x_1` and `x_2` are one symbol's."""
    symbols = [_VALUE_OF_SYMBOL.match(piece) for piece in pieces]
    return None not in symbols and len({match[1] for match in symbols if match}) == len(pieces)


def _both_signs(text: str) -> tuple[str, ...]:
    r"""Return the two values of a text with `\pm`, or the text alone."""
    if "\\pm" not in text:
        return (text,)
    value = text.rsplit("=", 1)[-1]
    return value.replace("\\pm", "+"), value.replace("\\pm", "-")


def _bracketed_span(text: str) -> tuple[str, str, str] | None:
    text = text.strip()
    for opening in "([":
        for closing in ")]":
            inner = enclosed(text, opening, closing)
            pieces = split_outside(inner, ",") if inner is not None else []
            if len(pieces) == 2 and all(pieces):
                return opening + closing, pieces[0], pieces[1]
    return None


def _inequality_span(text: str) -> tuple[str, str, str] | None:
    r"""Read `2<x\le5`, `x>2` and `2<x` as an interval of the symbol's values."""
    pieces = [piece.strip() for piece in _ORDER.split(text)]
    if len(pieces) == 3:
        left, sign, right = pieces
        if _SYMBOL.fullmatch(right) and not _SYMBOL.fullmatch(left):
            left, right, sign = right, left, _turned(sign)
        if not _SYMBOL.fullmatch(left) or left == right:
            return None
        if sign in _MEANS_LESS:
            return "(" + ("]" if _MEANS_LESS[sign] == "<=" else ")"), "-\\infty", right
        return ("[" if _MEANS_MORE[sign] == "<=" else "(") + ")", right, "\\infty"
    if len(pieces) != 5 or not _SYMBOL.fullmatch(pieces[2]):
        return None
    low, first, _, second, high = pieces
    if first in _MEANS_MORE and second in _MEANS_MORE:
        low, high, first, second = high, low, _turned(second), _turned(first)
    if first not in _MEANS_LESS or second not in _MEANS_LESS:
        return None
    opening = "[" if _MEANS_LESS[first] == "<=" else "("
    return opening + ("]" if _MEANS_LESS[second] == "<=" else ")"), low, high


def _overlap(text: str) -> tuple[str, str, str] | None:
    r"""Read `x\ge0\text{ and }x<5`, what two bounds have in common."""
    pieces = _BOTH_HOLD.split(text)
    spans = [_inequality_span(piece) for piece in pieces] if len(pieces) == 2 else []
    below = next((span for span in spans if span and span[1] == "-\\infty"), None)
    above = next((span for span in spans if span and span[2] == "\\infty"), None)
    if below is None or above is None:
        return None
    return above[0][0] + below[0][1], above[1], below[2]


def _turned(sign: str) -> str:
    pairs = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "\\le": "\\ge", "\\ge": "\\le"}
    return pairs.get(sign, {"\\lt": ">", "\\gt": "<"}.get(sign, sign))


def _names_itself(left: Polynomial | None, right: Polynomial | None) -> bool:
    return left is not None and right is not None and bool(left.symbols & right.symbols)
