r"""Exact numbers as they are written: integers, decimals, fractions, mixed and repeating numbers.

A decimal of at least six places means the rounded value. `0.333333` is one third: the
simplest fraction in its range, if it has far fewer digits than the decimal. Any other
long decimal is rounded to six places (four digits where it is small). So every number has an exact
value, and equal values are equal numbers, in whatever order they are compared.
"""

import functools
import re
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction

from debate_rewards.answers.spelling import COMMAS

MAX_DIGITS = 200
PLACES = 6
DIGITS = 4
MAX_PLACES = 15
"""Most places of a decimal, behind leading zeros, to look for a simple fraction with."""
MAX_ROUNDED_DIGITS = 45

_DECIMAL = r"(?:\d+(?:\.\d*)?|\.\d+)"
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?)(?:(?P<whole>\d+)\s*?(?:\\frac\{{(?P<up>\d+)\}}\{{(?P<low>\d+)\}}"
    rf"|\s(?P<up2>\d+)\s*/\s*(?P<low2>\d+))"
    rf"|\\frac\{{(?P<minus>-?)(?P<num>{_DECIMAL})\}}\{{(?P<den>{_DECIMAL})\}}"
    rf"|(?P<n>{_DECIMAL})(?:[eE](?P<exp>[-+]?\d{{1,3}})|\s*/\s*(?P<d>\d+))?"
    r"|(?P<before>\d*)\.(?P<fixed>\d*)\\(?:overline|bar|dot)\{(?P<repeat>\d+)\})"
)


@functools.lru_cache(maxsize=4096)
def read_number(text: str) -> Fraction | None:
    r"""Parse a number such as `-1,234.5`, `3/4`, `1 1/2`, `6e-5` or `\frac{3}{4}`.

    Anything other, also a percentage, is no number.
    """
    text = text.strip().replace("−", "-")
    if len(text) > MAX_DIGITS:
        return None
    if "," in text and COMMAS.search(text):
        text = text.replace(",", "")
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    groups = match.groupdict()
    try:
        value = _unsigned_value(groups)
    except ZeroDivisionError:
        return None
    is_decimal = "." in (groups["n"] or "") and not groups["d"]
    if is_decimal:
        value = decimal_value(value)
    is_negative = (groups["sign"] == "-") != (groups["minus"] == "-")
    return -value if is_negative else value


def _unsigned_value(groups: dict[str, str | None]) -> Fraction:
    if groups["repeat"]:
        fixed_digits = groups["fixed"] or ""
        repeated_digits = groups["repeat"]
        # 0.12(34) is 12 and 34/99, over 100.
        fixed_number = int((groups["before"] or "0") + fixed_digits)
        cycle = Fraction(int(repeated_digits), 10 ** len(repeated_digits) - 1)
        return (fixed_number + cycle) / Fraction(10 ** len(fixed_digits))
    if groups["whole"]:
        numerator = int(groups["up"] or groups["up2"] or 0)
        denominator = int(groups["low"] or groups["low2"] or 1)
        return int(groups["whole"]) + Fraction(numerator, denominator)
    if groups["num"]:
        return Fraction(Decimal(groups["num"])) / Fraction(Decimal(groups["den"] or "1"))
    value = Fraction(Decimal(groups["n"] or "0")) / int(groups["d"] or 1)
    exponent = int(groups["exp"] or 0)
    scale = Fraction(10 ** abs(exponent))
    return value * scale if exponent >= 0 else value / scale


def decimal_value(value: Fraction) -> Fraction:
    """Find the value behind a decimal, as the module says."""
    # A denominator of 2^a 5^b divides 10^max(a, b), and no lower power of ten.
    num_twos = 0
    num_fives = 0
    denominator = value.denominator
    while denominator % 2 == 0:
        num_twos += 1
        denominator //= 2
    while denominator % 5 == 0:
        num_fives += 1
        denominator //= 5
    num_places = max(num_twos, num_fives)
    if num_places < PLACES:
        return value
    num_leading_zeros = max(0, -_as_decimal(value).adjusted())
    num_places = min(num_places, MAX_PLACES + num_leading_zeros)
    simplest = _simplest_fraction(value, half_width=Fraction(1, 2 * 10**num_places))
    # By chance some fraction with a denominator below 10^(places/2) lies in the range of many
    # decimals; with one of a third of that size it is rare.
    if 9 * simplest.denominator**2 <= 10**num_places:
        return simplest
    # The rounded decimal may itself mean a simpler fraction.
    rounded = rounded_value(value)
    return rounded if rounded == value else decimal_value(rounded)


def rounded_value(value: Fraction | Decimal) -> Fraction:
    """Round to six places, or to four digits of a small number."""
    number = value if isinstance(value, Decimal) else _as_decimal(value)
    num_places = max(PLACES, DIGITS - 1 - number.adjusted()) if number else PLACES
    # The places of a very large number mean nothing.
    if number.adjusted() + num_places > MAX_ROUNDED_DIGITS:
        return Fraction(number)
    # Rounding to more digits than the context has would raise.
    with localcontext() as context:
        context.prec = MAX_ROUNDED_DIGITS + 1
        return Fraction(number.quantize(Decimal(1).scaleb(-num_places), ROUND_HALF_UP))


def _as_decimal(value: Fraction) -> Decimal:
    # Its denominator divides a power of ten, so this is exact up to the precision of decimals.
    return Decimal(value.numerator) / Decimal(value.denominator)


def _simplest_fraction(value: Fraction, half_width: Fraction) -> Fraction:
    """Find the fraction with the smallest denominator within a range around a value.

    It follows the continued fractions of both ends as long as they agree.
    """
    low = value - half_width
    high = value + half_width
    quotients = []
    while True:
        floor = low.numerator // low.denominator
        if floor == low:
            quotients.append(floor)
            break
        if floor + 1 <= high:
            quotients.append(floor + 1)  # A whole number lies between the ends.
            break
        quotients.append(floor)
        # Inverting turns the order of the ends.
        low, high = 1 / (high - floor), 1 / (low - floor)
    simplest = Fraction(quotients[-1])
    for quotient in reversed(quotients[:-1]):
        simplest = quotient + 1 / simplest
    return simplest
