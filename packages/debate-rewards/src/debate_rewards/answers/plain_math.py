"""Mathematical answers that their text decides: plain numbers, bases, choice letters and words."""

import functools
import re
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from debate_rewards.answers.math_spelling import COMMAS, FONT

_DECIMAL = r"(?:\d+(?:\.\d*)?|\.\d+)"
_PLAIN = re.compile(
    rf"(?P<sign>[-+]?)(?:(?P<whole>\d+)\s*?(?:\\frac\{{(?P<up>\d+)\}}\{{(?P<low>\d+)\}}"
    rf"|\s(?P<up2>\d+)\s*/\s*(?P<low2>\d+))"
    rf"|\\frac\{{(?P<minus>-?)(?P<num>{_DECIMAL})\}}\{{(?P<den>{_DECIMAL})\}}"
    rf"|(?P<n>{_DECIMAL})(?:[eE](?P<exp>[-+]?\d{{1,3}})|\s*/\s*(?P<d>\d+))?"
    r"|(?P<before>\d*)\.(?P<fixed>\d*)\\(?:overline|bar|dot)\{(?P<repeat>\d+)\})"
)
_BASED = re.compile(r"\(?([0-9A-Za-z]+)\)?_\{?\(?(?:\\text\{)?(\w+)\}?\)?\}?")
_BASE_NAMES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8}
_BASE_NAMES |= {"nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "sixteen": 16}
_WORDS = re.compile(r"[A-Za-z][A-Za-z .'’-]*")


class Number(NamedTuple):
    """An exact value, and whether it was written as a decimal and so may be rounded."""

    value: Fraction
    decimal: bool


@functools.lru_cache(maxsize=4096)
def read_number(text: str) -> Number | None:
    r"""Return a plain number such as `-1,234.5`, `3/4`, `1 1/2`, `6e-5` or `\frac{3}{4}` exactly.

    None for anything else, also for a percentage.
    """
    text = text.strip().replace("−", "-")
    if len(text) > 200:
        return None
    found = _PLAIN.fullmatch(text.replace(",", "") if COMMAS.search(text) else text)
    if found is None:
        return None
    part = found.groupdict()
    try:
        value = _fraction(part)
    except ZeroDivisionError:
        return None
    sign = -1 if "-" in (part["sign"], part["minus"]) and part["sign"] != part["minus"] else 1
    return Number(sign * value, "." in (part["n"] or "") or bool(part["exp"]))


def compare_text(gold: str, given: str) -> bool | None:
    """Return whether two spellings are the same answer where their text decides it, else None.

    A decimal may be rounded: it equals what agrees with it to six decimals and four digits.
    """
    left, right = read_number(gold), read_number(given)
    if left and right:
        return _close(left, right)
    for decide in (_compare_bases, _compare_letters, _compare_words):
        known = decide(gold, given)
        if known is not None:
            return known
    return None


def words(text: str) -> str:
    r"""Return text that stands in `\text{…}` or bare, without that and in lower case."""
    return " ".join(FONT.sub(r" \1 ", text).split()).strip("()., ").casefold()


def _fraction(part: dict[str, str | None]) -> Fraction:
    if part["repeat"]:
        fixed, repeat = part["fixed"] or "", part["repeat"]
        whole = int((part["before"] or "0") + fixed)
        cycle = Fraction(int(repeat), 10 ** len(repeat) - 1)
        return (whole + cycle) / Fraction(10 ** len(fixed))
    if part["whole"]:
        up, low = part["up"] or part["up2"] or "0", part["low"] or part["low2"] or "1"
        return int(part["whole"]) + Fraction(int(up), int(low))
    if part["num"]:
        return Fraction(Decimal(part["num"])) / Fraction(Decimal(part["den"] or "1"))
    value = Fraction(Decimal(part["n"] or "0")) / int(part["d"] or 1)
    power = int(part["exp"] or 0)
    scale = Fraction(10 ** abs(power))
    return value * scale if power >= 0 else value / scale


def _close(left: Number, right: Number) -> bool:
    if left.value == right.value or not (left.decimal or right.decimal):
        return left.value == right.value
    apart = abs(left.value - right.value)
    return apart <= Fraction(5, 10**7) and apart <= max(map(abs, (left.value, right.value))) / 10**4


def _compare_bases(gold: str, given: str) -> bool | None:
    """A base that only one of them names is that of the question."""
    left, right = _digits_and_base(gold), _digits_and_base(given)
    if left is None or right is None or left[1] == right[1] == 0:
        return None
    return left[0] == right[0] and (left[1] == right[1] or 0 in (left[1], right[1]))


def _digits_and_base(text: str) -> tuple[str, int] | None:
    if text.isdecimal():
        return text.lstrip("0"), 0
    found = _BASED.fullmatch(text)
    if found is None:
        return None
    digits, named = found[1].upper(), found[2]
    base = int(named) if named.isdecimal() and len(named) < 3 else _BASE_NAMES.get(named.lower(), 0)
    if not 2 <= base <= 36 or not all(int(digit, 36) < base for digit in digits):
        # A letter with an index is a variable; a number with one that is no base is only itself.
        return (text, -1) if digits.isdecimal() else None
    return digits.lstrip("0"), base


def _compare_letters(gold: str, given: str) -> bool | None:
    r"""Single letters: `\text{(C)}`, `(c)` and `C. 5` are the choice C; bare ones are variables."""
    if len(gold) == len(given) == 1 and gold.isalpha() and given.isalpha():
        return gold == given
    choice = re.fullmatch(r"\\text\{\s*\(?([A-Za-z])\)?\.?\s*\}|\(([A-Z])\)", gold)
    if choice is None:
        return None
    letter = (choice[1] or choice[2]).casefold()
    if words(given) == letter:
        return True
    leading = re.match(r"(?:\\text\{)?\s*(?:\(([A-Za-z])\)|([A-Z])[.:)])", given)
    return bool(leading and (leading[1] or leading[2]).casefold() == letter)


def _compare_words(gold: str, given: str) -> bool | None:
    """Words are compared as text when at least one side is marked as text."""
    left, right = words(gold), words(given)
    if not (_WORDS.fullmatch(left) and _WORDS.fullmatch(right)):
        return None
    marked = gold.startswith("\\text{") or given.startswith("\\text{")
    if left == right:
        return True if len(left) > 3 or (marked and len(left) > 1) else None
    return False if marked and max(len(left), len(right)) > 2 else None
