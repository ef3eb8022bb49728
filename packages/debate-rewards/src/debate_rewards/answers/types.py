r"""The types of answers, a class each: spelling, value, and when two are equal.

Verdicts, votes, classes and majorities compare `key`, and nothing else: two answers of a question
are equal exactly if their keys are. An answer with a part without a key has no key, and then
Math-Verify compares the parts (`Expression`) in a worker.

A new type is one class here: `read` parses it, or returns `None` for a text of another type; `key`
follows from its fields; EXAMPLES has spellings and their equals. `READING_ORDER` has the types of
mathematical answers in the order in which they are tried.
"""

import itertools
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from debate_rewards.answers.brackets import enclosed, split_outside
from debate_rewards.answers.folding import text_form
from debate_rewards.answers.numbers import decimal_value, read_number, rounded_value
from debate_rewards.answers.polynomials import NotPolynomial, Polynomial, difference, polynomial
from debate_rewards.answers.spans import ORDER, overlap, read_span
from debate_rewards.answers.spelling import FONT, spelling, without_units

Key = tuple[Hashable, ...]
Examples = Sequence[tuple[str, str, bool]]
"""Pairs of spellings, and whether they are equal."""

NO_BASE = -1
"""Base of a number with an index other than a base of the digits."""

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
_EQUALS = re.compile(r"(?<![<>\\:])(?:(?<!!)|(?<=\d!))=")
_VALUE_OF_SYMBOL = re.compile(r"\s*(\\?[a-zA-Z]+)(?:_(?:\w|\{\w+\}))?\s*=(?!=)")
_NAME = re.compile(
    r"\\?[a-zA-Z](?:_(?:\w|\{\w+\}))?'*|\\[a-zA-Z]+(?:_(?:\w|\{\w+\}))?|\\text\{[^{}]*\}"
    r"|[A-Z]{2,4}|[a-zA-Z]{3,}(?:\s[a-zA-Z]+)*|\\?[a-zA-Z]+'*\([^()=]{0,40}\)|\([^()=\d]{1,40}\)"
    r"|m?\\angle\s*[A-Z]+|\\overline\{[A-Z]+\}|\|[A-Z]+\||\[[A-Z]+\]"
)


@dataclass(frozen=True, slots=True)
class Answer(ABC):
    """An answer as it was read; `text` is the spelling."""

    text: str

    EXAMPLES: ClassVar[Examples] = ()

    @property
    @abstractmethod
    def key(self) -> Key | None:
        """Shared by equal answers; `None` where only Math-Verify can decide."""

    @classmethod
    def read(cls, text: str) -> "Answer | None":
        """Parse a text in one spelling; `None` for a text of another type."""
        return None

    @property
    def parts(self) -> tuple["Answer", ...]:
        """Compared part by part where there is no key."""
        return (self,)

    @property
    def shape(self) -> Hashable:
        """Shared by answers with comparable parts."""
        return type(self).__name__

    @property
    def formula(self) -> str:
        """The text for Math-Verify."""
        return self.text

    @property
    def canonical(self) -> str:
        """A spelling shared by equal answers of most types."""
        return self.text


@dataclass(frozen=True, slots=True)
class Label(Answer):
    """A choice, by label; `labels.py` reads it from replies."""

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
        return None if match is None else cls(text=text, label=(match[1] or match[2]).upper())


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
        """Write the value."""
        return str(self.value)

    @property
    def formula(self) -> str:
        """Write the value where the spelling says more or less, as `0.333333` for one third."""
        if read_number(self.text) == self.value:
            return self.text
        # The value of an irrational number is rounded; the spelling alone is exact.
        constant = polynomial(self.text)
        is_irrational = constant and constant.is_constant and constant.rational is None
        return self.text if is_irrational else str(self.value)

    @classmethod
    def read(cls, text: str) -> "Number | None":
        """Read a number, a percentage, or digits with a base."""
        if text.endswith("\\%"):
            inner = Expression.read(text.removesuffix("\\%").strip())
            if not isinstance(inner, Number):
                return None
            return cls(text=text, value=inner.value, percent=True)
        value = read_number(text)
        if value is not None:
            return cls(text=text, value=value)

        # Digits with a base, as `52_8` or `52_{eight}`.
        match = _BASED.fullmatch(text)
        if match is None:
            return None
        digits = match[1].upper()
        index = match[2]
        base = int(index) if index.isdecimal() and len(index) < 3 else _BASES.get(index.lower(), 0)
        is_base = 2 <= base <= 36 and all(int(digit, 36) < base for digit in digits)
        if is_base:
            return cls(text=text, value=Fraction(int(digits, base)), base=base)
        # A letter with an index is a symbol; a number with any other index is only itself.
        if not digits.isdecimal():
            return None
        return cls(text=text, value=Fraction(int(digits)), base=NO_BASE)


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
        """Compare the numbers, as multiples of the first number other than 0."""
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
            return Number(text=text, value=numbers[0] / numbers[1])
        return cls(text=text, numbers=numbers)


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
        return None if match is None else cls(text=text, positive=match[1] != "-")


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
        (r"\sin\frac{\pi}{4}", r"\frac{\sqrt{2}}{2}", True),
        (r"4\sin 18^\circ", r"\sqrt{5}-1", True),
        (r"\sin 30^\circ", r"\sin 30", False),
        (r"\sqrt{x^2}", "x", False),
    )

    @property
    def key(self) -> Key | None:
        """Compare monomials."""
        if self.polynomial is None:
            return None
        return ("polynomial", frozenset(self.polynomial.terms.items()))

    @property
    def shape(self) -> Hashable:
        """Share the shape of numbers."""
        return "expression"

    @classmethod
    def read(cls, text: str) -> "Answer":
        """Parse any formula; without symbols it is a number."""
        number = read_number(text)
        if number is not None:
            return Number(text=text, value=number)
        formula = polynomial(text)
        if formula is None or not formula.is_constant:
            return cls(text=text, polynomial=formula)
        if formula.rational is not None:
            return Number(text=text, value=formula.rational)
        try:
            return Number(text=text, value=decimal_value(rounded_value(formula.value())))
        except NotPolynomial:
            return cls(text=text, polynomial=None)


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
        return None if None in keys else (self.shape, tuple(keys))

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
        """Parse coordinates in parentheses."""
        inner = enclosed(text, "(", ")")
        coordinates = [] if inner is None else split_outside(inner, ",")
        if len(coordinates) < 2 or not all(coordinates):
            return None
        return cls(text=text, elements=tuple(map(read_element, coordinates)))


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

    @property
    def key(self) -> Key | None:
        """Compare elements with their counts."""
        keys = [element.key for element in self.elements]
        return None if None in keys else (self.shape, frozenset(Counter(keys).items()))

    @property
    def shape(self) -> Hashable:
        """Share a shape among all lists and sets."""
        return "list"

    @classmethod
    def read(cls, text: str) -> "List | Point | None":
        """Parse several answers; values of different symbols are a point in the symbols' order."""
        # Most formulas have no such word, and splitting them at one takes long.
        may_have_word = "and" in text or "or" in text or "\\l" in text
        pieces: list[str] = []
        for alternative in _AND_OR.split(text) if may_have_word else [text]:
            pieces_of_alternative = split_outside(alternative.replace(";", ","), ",")
            pieces += [piece for piece in pieces_of_alternative if piece]
        values: list[str] = []
        for piece in _in_order_of_names(pieces):
            values += _both_signs(piece)
        if len(values) < 2:
            return None
        elements = tuple(map(read_element, values))

        # `x=1, y=2` is a point, `x=1, x=2` two solutions; `x_1` and `x_2` are one symbol's.
        has_double_sign = len(values) > len(pieces)
        symbols = [_VALUE_OF_SYMBOL.match(piece) for piece in pieces]
        names = {symbol[1] for symbol in symbols if symbol}
        is_point = not has_double_sign and None not in symbols and len(names) == len(pieces)
        return Point(text=text, elements=elements) if is_point else cls(text, elements)


@dataclass(frozen=True, slots=True)
class Set(List):
    """A set in braces, equal to the list of the same elements."""

    EXAMPLES: ClassVar[Examples] = (
        (r"\{1,2\}", "2,1", True),
        (r"\{1\pm\sqrt{5},-2\}", r"\{-2,1+\sqrt{5},1-\sqrt{5}\}", True),
        (r"\emptyset", r"\{\}", True),
        (r"\{1,1\}", r"\{1\}", True),
    )

    @classmethod
    def read(cls, text: str) -> "Set | None":
        """Parse elements in braces."""
        if text == "\\emptyset":
            return cls(text=text, elements=())
        inner = enclosed(text, "\\{", "\\}")
        if inner is None:
            return None
        elements: dict[Hashable, Answer] = {}
        for piece in split_outside(inner, ","):
            for value in _both_signs(piece) if piece else ():
                element = read_element(value)
                # A set has each element once.
                elements[element.key or element.text] = element
        return cls(text=text, elements=tuple(elements.values()))


@dataclass(frozen=True, slots=True)
class Interval(_Compound):
    """Intervals and their union: four brackets and ends, or an inequality."""

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
        low_ends = keys[::2]
        high_ends = keys[1::2]
        return ("intervals", frozenset(zip(self.brackets, low_ends, high_ends, strict=True)))

    @property
    def shape(self) -> Hashable:
        """Share the shape of a point where the brackets are a point's."""
        return ("Point", 2) if self.brackets == ("()",) else ("intervals", self.brackets)

    @classmethod
    def read(cls, text: str) -> "Interval | None":
        """Parse brackets, unions and inequalities."""
        common_span = overlap(text)
        if common_span is not None:
            spans = [common_span]
        else:
            pieces = split_outside(text, "\\cup")
            if len(pieces) == 1:
                pieces = _ALTERNATIVES.split(text)
            read_spans = [read_span(piece) for piece in pieces]
            spans = [span for span in read_spans if span is not None]
            if len(spans) < len(read_spans):
                return None
            is_written_as_point = len(spans) == 1 and spans[0].brackets == "()"
            if is_written_as_point and not ORDER.search(text) and "\\infty" not in text:
                return None

        ends = []
        for span in spans:
            ends += [read_element(span.low), read_element(span.high)]
        brackets = tuple(span.brackets for span in spans)
        return cls(text=text, elements=tuple(ends), brackets=brackets)


@dataclass(frozen=True, slots=True)
class Matrix(_Compound):
    """Rows of a matrix or vector, in any brackets."""

    rows: int = 1
    EXAMPLES: ClassVar[Examples] = (
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix}1\\2\end{bmatrix}", True),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}", False),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "[[1, 2], [3, 4]]", True),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "[[1, 3], [2, 4]]", False),
    )
    _WRITTEN: ClassVar = re.compile(r"\\begin\{[pbvV]?matrix\}(.*)\\end\{[pbvV]?matrix\}", re.S)

    @property
    def shape(self) -> Hashable:
        """Share the shape of matrices of the same size."""
        return ("matrix", self.rows, len(self.elements))

    @classmethod
    def read(cls, text: str) -> "Matrix | None":
        """Parse rows and cells."""
        match = cls._WRITTEN.fullmatch(text)
        if match is not None and "\\begin" not in match[1]:
            rows = [row.split("&") for row in match[1].split("\\\\")]
        else:
            rows = _rows_of_lists(text)
        if not rows or any(len(row) != len(rows[0]) for row in rows):
            return None
        cells = itertools.chain.from_iterable(rows)
        elements = tuple(read_element(cell.strip()) for cell in cells)
        return cls(text=text, elements=elements, rows=len(rows))


@dataclass(frozen=True, slots=True)
class Equation(Answer):
    """Two sides, equal to every multiple of itself. `SYMBOL = value` also names a value."""

    sides: Polynomial | None
    named: Answer | None = None
    """The side right of a lone symbol."""
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
        """Parse two sides; of a calculation the last side counts."""
        if text.count("=") > _MAX_SIDES or not _EQUALS.search(text):
            return None
        sides = [side.strip() for side in _EQUALS.split(text) if side.strip()]
        if len(sides) < 2:
            return read_element(sides[0]) if sides and text.startswith("=") else None
        last_answer = read_element(sides[-1])
        first_answer = Expression.read(sides[0])
        if isinstance(first_answer, Number) and isinstance(last_answer, Number):
            return last_answer  # A calculation.
        if isinstance(first_answer, Number) and len(sides) == 2 and _NAME.fullmatch(sides[1]):
            return first_answer  # `5=x`.

        left = polynomial(sides[0])
        right = polynomial(sides[-1])
        canonical_side = None
        names_itself = False
        if left is not None and right is not None:
            both_sides = difference(left, right)
            canonical_side = both_sides.scaled() if both_sides.symbols else None
            # `x=2x+1` is an equation for x, and no value of x.
            names_itself = bool(left.symbols & right.symbols)
        is_call = sides[0].endswith(")")
        names_value = _NAME.fullmatch(sides[0]) and (is_call or not names_itself)
        return cls(text=text, sides=canonical_side, named=last_answer if names_value else None)


READING_ORDER: tuple[type[Answer], ...] = (
    Number, Ratio, Infinity, Matrix, Interval, Point, Set, List, Equation, Text, Expression,
)  # fmt: skip
"""Types of mathematical answers; the first to read a text decides the type."""


def read_element(text: str) -> Answer:
    """Read an element of an answer, or an answer in canonical spelling."""
    answer = _read_in_order(without_units(text.strip()))
    if isinstance(answer, Equation) and answer.named is not None:
        return answer.named
    return answer


def read_mathematics(text: str) -> Answer:
    """Read a whole text as a mathematical answer."""
    return _read_in_order(spelling(text))


def _read_in_order(text: str) -> Answer:
    for answer_type in READING_ORDER:
        answer = answer_type.read(text)
        if answer is not None:
            return answer
    return Expression(text=text, polynomial=None)


def _rows_of_lists(text: str) -> list[list[str]]:
    """Split a list of lists, as programs write matrices; empty for any other text."""
    inner = enclosed(text, "[", "]") if text.startswith("[[") else None
    rows = []
    for piece in split_outside(inner, ",") if inner else ():
        row = enclosed(piece, "[", "]")
        if row is None:
            return []
        rows.append(split_outside(row, ","))
    return rows


def _in_order_of_names(pieces: list[str]) -> list[str]:
    """Sort `y=1, x=2` by the names, which gives the point (2, 1)."""
    piece_of_name = {}
    for piece in pieces:
        name, _, value = piece.partition("=")
        if not value:
            return pieces
        piece_of_name[name.strip()] = piece
    if len(piece_of_name) < len(pieces):
        return pieces
    # Greek letters by their names: r comes before theta.
    in_order = sorted((name.removeprefix("\\"), piece) for name, piece in piece_of_name.items())
    return [piece for _, piece in in_order]


def _both_signs(text: str) -> tuple[str, ...]:
    r"""Split a text with `\pm` into two values."""
    if "\\pm" not in text:
        return (text,)
    value = text.rsplit("=", 1)[-1]
    return value.replace("\\pm", "+"), value.replace("\\pm", "-")
