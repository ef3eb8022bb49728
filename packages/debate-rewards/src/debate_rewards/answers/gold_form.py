"""An answer in the form of the question's gold answer.

The gold answer gives all answers their meaning: whether a plain number is a percentage, its unit or
base, whether two numbers are a point or a list, and whether an equation is meant or its value.
"""

import re
from fractions import Fraction

from debate_rewards.answers.numbers import read_number
from debate_rewards.answers.polynomials import polynomial
from debate_rewards.answers.types import (
    NO_BASE,
    Answer,
    Equation,
    Expression,
    Interval,
    List,
    Matrix,
    Number,
    Point,
    Set,
    read_mathematics,
)
from debate_rewards.answers.units import LETTER_UNITS

_PERCENT_RANGE = 10
"""A number is read as a percentage up to this multiple of the gold percentage."""
# `y`, `a_n` or `f(x)` before the sign.
_ONE_NAME = re.compile(
    r"\s*(\\?[a-zA-Z]+(?:_(?:\w|\{\w+\}))?'*(?:\([a-z](?:,\s*[a-z])*\))?)\s*=(?!=)"
)
_DIGITS = re.compile(r"\(?([0-9A-Za-z]+)")


def in_form_of(gold: Answer | None, answer: Answer, *, asks_percent: bool) -> Answer:
    """Rewrite an answer in the form of the gold answer.

    Args:
        gold: The gold answer, if any.
        answer: An answer as it was read.
        asks_percent: Whether the question's text speaks of percent.
    """
    if isinstance(answer, Equation):
        if isinstance(gold, Equation):
            answer = _with_name_of(gold, answer)
        elif answer.named is not None:
            answer = answer.named
    elif isinstance(gold, Equation) and type(answer) in (Expression, Number):
        # `2x+3` where the question asks for `y=2x+3`. A point is no right side.
        name = _ONE_NAME.match(gold.text)
        if name is not None and gold.named is not None:
            answer = read_mathematics(f"{name[1]}={answer.text}")

    if isinstance(gold, Number) and isinstance(answer, Expression):
        answer = _with_letter_unit(answer, gold.unit)
    if isinstance(answer, Number):
        number_gold = gold if isinstance(gold, Number) else None
        return _number_in_form_of(number_gold, answer, asks_percent)
    if isinstance(gold, Point | Matrix):
        return _with_brackets_of(gold, answer)
    if isinstance(gold, List):
        return _list_in_form_of(gold, answer)
    return answer


def _number_in_form_of(gold: Number | None, answer: Number, asks_percent: bool) -> Number:
    if gold is None:
        unit = None
        base = None
    else:
        # A unit counts only where the gold has one; an answer without it is in the gold's.
        unit = gold.unit and (answer.unit or gold.unit)
        base = gold.base
    # So does a base, and an index that is no base makes another number of any digits.
    if answer.base is not None and (base is not None or answer.base == NO_BASE):
        base = answer.base

    value = _percentage_in_form_of(gold, answer, asks_percent)
    if answer.base != base:
        value_in_base = _value_in_base(answer, base or 10)
        if value_in_base is None:
            base = NO_BASE
        value = answer.value if value_in_base is None else value_in_base
    return Number(text=answer.text, value=value, unit=unit, base=base)


def _percentage_in_form_of(gold: Number | None, answer: Number, asks_percent: bool) -> Fraction:
    """Scale to percent, or to a fraction of 1, as the question's gold is.

    Where the gold is no percentage a sign is ignored, unless the gold is at most 1, or the value so
    great that only a hundredth of it can be meant; the other way round without a sign.
    """
    value = answer.value
    # Nothing is a multiple of 0, so a gold of 0 cannot show which is meant.
    if gold is None or gold.value == 0:
        return value
    gold_size = abs(gold.value)
    size = abs(value)
    if gold.percent or asks_percent:
        is_fraction = not answer.percent and size * _PERCENT_RANGE <= gold_size
        return value * 100 if is_fraction else value
    gold_is_share = gold_size <= 1
    is_hundredth = answer.percent and (gold_is_share or size > gold_size * _PERCENT_RANGE)
    return value / 100 if is_hundredth else value


def _value_in_base(answer: Number, base: int) -> Fraction | None:
    """Read an answer's digits in another base, if they are digits of the base."""
    digits = _DIGITS.match(answer.text)
    try:
        return None if digits is None else Fraction(int(digits[1], base))
    except ValueError:
        return None


def _with_letter_unit(answer: Expression, unit: str | None) -> Answer:
    """Read `17 m` as meters where the question's answer is in meters."""
    if unit is None or LETTER_UNITS.get(answer.text[-1:]) != unit:
        return answer
    value = read_number(answer.text[:-1])
    return answer if value is None else Number(text=answer.text, value=value, unit=unit)


def _with_name_of(gold: Equation, answer: Equation) -> Answer:
    # The name of the value is not checked: `f(x)=2x` is right where the gold is `y=2x`.
    gold_name = _ONE_NAME.match(gold.text)
    if gold_name is None or gold.named is None or answer.named is None:
        return answer
    # But `x=2y` is another equation: its name is a symbol of the gold's formula.
    answer_name = _ONE_NAME.match(answer.text)
    formula = polynomial(gold.named.text)
    if answer_name is not None and formula is not None and answer_name[1] in formula.symbols:
        return answer
    return read_mathematics(f"{gold_name[1]}={answer.named.text}")


def _with_brackets_of(gold: Point | Matrix, answer: Answer) -> Answer:
    """Read a list as a point or vector with missing brackets, where the question asks for it."""
    is_bare_list = isinstance(answer, List) and not isinstance(answer, Set)
    if isinstance(gold, Point):
        is_column = isinstance(answer, Matrix) and answer.rows == len(answer.elements)
        if is_bare_list or is_column:
            return Point(text=answer.text, elements=answer.parts)
        return answer
    gold_is_row = gold.rows == 1
    gold_is_column = gold.rows == len(gold.elements)
    if (gold_is_row or gold_is_column) and (is_bare_list or isinstance(answer, Point)):
        num_rows = 1 if gold_is_row else len(answer.parts)
        return Matrix(text=answer.text, elements=answer.parts, rows=num_rows)
    return answer


def _list_in_form_of(gold: List, answer: Answer) -> Answer:
    """Read brackets around a list: `[1, 2]`, or parentheses in the gold's own order."""
    if isinstance(answer, Interval) and answer.brackets == ("[]",):
        return List(text=answer.text, elements=answer.parts)
    if isinstance(answer, Point) and not isinstance(gold, Set):
        gold_point = Point(text="", elements=gold.parts)
        if answer.key is not None and answer.key == gold_point.key:
            return List(text=answer.text, elements=answer.parts)
    return answer
