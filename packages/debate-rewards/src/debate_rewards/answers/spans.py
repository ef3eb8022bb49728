r"""Intervals as they are written: `(2,5]`, `2<x\le5`, `x>2`, and pairs of bounds."""

import re
from typing import NamedTuple

from debate_rewards.answers.brackets import enclosed, split_outside

ORDER = re.compile(r"(<=|>=|[<>]|\\(?:le|ge|lt|gt)(?![a-zA-Z]))")
"""A sign of order."""
# Signs that point to the right, and to the left, with the bracket's meaning: whether an end belongs
# to the interval.
_LESS = {"<": False, "\\lt": False, "\\le": True, "<=": True}
_GREATER = {">": False, "\\gt": False, "\\ge": True, ">=": True}
_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "\\le": "\\ge", "\\ge": "\\le"}
_TURNED |= {"\\lt": ">", "\\gt": "<"}
_BOTH_HOLD = re.compile(r"\\text\{\s*and\s*\}|(?<![a-zA-Z\\])and(?![a-zA-Z])|\\(?:land|wedge)\b|,")
_SYMBOL = re.compile(r"\\?[a-zA-Z]+")


class Span(NamedTuple):
    """An interval in text: two brackets and two ends."""

    brackets: str
    low: str
    high: str


def read_span(text: str) -> Span | None:
    """Read brackets around two ends, or an inequality."""
    text = text.strip()
    for brackets in ("()", "(]", "[)", "[]"):
        inner = enclosed(text, brackets[0], brackets[1])
        ends = split_outside(inner, ",") if inner is not None else []
        if len(ends) == 2 and all(ends):
            return Span(brackets=brackets, low=ends[0], high=ends[1])
    return _inequality_span(text)


def overlap(text: str) -> Span | None:
    r"""Read `x\ge0\text{ and }x<5`: the values between two bounds."""
    bounds = _BOTH_HOLD.split(text)
    if len(bounds) != 2:
        return None
    upper_bound = None
    lower_bound = None
    for bound in bounds:
        span = _inequality_span(bound)
        if span is not None and span.low == "-\\infty" and upper_bound is None:
            upper_bound = span
        if span is not None and span.high == "\\infty" and lower_bound is None:
            lower_bound = span
    if upper_bound is None or lower_bound is None:
        return None
    return Span(
        brackets=lower_bound.brackets[0] + upper_bound.brackets[1],
        low=lower_bound.low,
        high=upper_bound.high,
    )


def _inequality_span(text: str) -> Span | None:
    r"""Read `2<x\le5`, `x>2` and `2<x` as the symbol's values."""
    pieces = [piece.strip() for piece in ORDER.split(text)]
    if len(pieces) == 3:
        return _one_sided_span(*pieces)
    if len(pieces) != 5:
        return None
    low, low_sign, symbol, high_sign, high = pieces
    if not _SYMBOL.fullmatch(symbol):
        return None
    if low_sign in _GREATER and high_sign in _GREATER:
        # `5>x>2` is `2<x<5`.
        low, high = high, low
        low_sign, high_sign = _TURNED[high_sign], _TURNED[low_sign]
    if low_sign not in _LESS or high_sign not in _LESS:
        return None
    opening = "[" if _LESS[low_sign] else "("
    closing = "]" if _LESS[high_sign] else ")"
    return Span(brackets=opening + closing, low=low, high=high)


def _one_sided_span(left: str, sign: str, right: str) -> Span | None:
    if _SYMBOL.fullmatch(right) and not _SYMBOL.fullmatch(left):
        left, right = right, left
        sign = _TURNED[sign]
    if not _SYMBOL.fullmatch(left) or left == right:
        return None
    if sign in _LESS:
        return Span(brackets="(]" if _LESS[sign] else "()", low="-\\infty", high=right)
    return Span(brackets="[)" if _GREATER[sign] else "()", low=right, high="\\infty")
