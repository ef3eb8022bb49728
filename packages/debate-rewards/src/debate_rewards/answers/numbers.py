r"""Numbers as they are written: integers, decimals, fractions, mixed and repeating ones, exactly.

A decimal of at least six places stands for the value that it rounds. `0.333333` is one third: the
simplest fraction in its range, where that fraction has far fewer digits than the decimal. Any other
long decimal is rounded to six places (four digits where it is small). So every number has one exact
value, and equal values are equal numbers, in whatever order they are compared.
"""

import functools
import re
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction

from debate_rewards.answers.spelling import COMMAS

MAX_DIGITS = 200
PLACES = 6
DIGITS = 4
_MANY_PLACES = 15

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
    r"""Return the value of a number such as `-1,234.5`, `3/4`, `1 1/2`, `6e-5` or `\frac{3}{4}`.

    None for anything else, also for a percentage.
    """
    text = text.strip().replace("−", "-")
    if len(text) > MAX_DIGITS:
        return None
    if "," in text and COMMAS.search(text):
        text = text.replace(",", "")
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    parts = match.groupdict()
    try:
        value = _fraction(parts)
    except ZeroDivisionError:
        return None
    negative = (parts["sign"] == "-") != (parts["minus"] == "-")
    is_decimal = "." in (parts["n"] or "") and not parts["d"]
    if is_decimal:
        value = decimal_value(value)
    return -value if negative else value


def decimal_value(value: Fraction) -> Fraction:
    """Return the value that a decimal stands for, see the module."""
    places = _num_places(value)
    if places < PLACES:
        return value
    places = min(places, _MANY_PLACES + _num_leading_zeros(value))
    simplest = _simplest(value, Fraction(1, 2 * 10**places))
    # By chance some fraction with a denominator below 10^(places/2) lies in the range of many
    # decimals; with one of a third of that size it is rare.
    if 9 * simplest.denominator**2 <= 10**places:
        return simplest
    rounded = rounded_value(value)
    return rounded if rounded == value else decimal_value(rounded)


def rounded_value(value: Fraction | Decimal) -> Fraction:
    """Round to six places, or to four digits where that is finer."""
    number = value if isinstance(value, Decimal) else _as_decimal(value)
    places = max(PLACES, DIGITS - 1 - number.adjusted()) if number else PLACES
    if number.adjusted() + places > 45:
        return Fraction(number)
    return Fraction(number.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP))


def _as_decimal(value: Fraction) -> Decimal:
    # Its denominator divides a power of ten, so this is exact up to the precision of decimals.
    return Decimal(value.numerator) / Decimal(value.denominator)


def _num_leading_zeros(value: Fraction) -> int:
    return max(0, -_as_decimal(value).adjusted())


def _num_places(value: Fraction) -> int:
    places, scale = 0, value.denominator
    while scale % 10 == 0:
        places, scale = places + 1, scale // 10
    twos = fives = 0
    while scale % 2 == 0:
        twos, scale = twos + 1, scale // 2
    while scale % 5 == 0:
        fives, scale = fives + 1, scale // 5
    return places + max(twos, fives)


def _simplest(value: Fraction, half_width: Fraction) -> Fraction:
    """Return the fraction with the smallest denominator within a range around a value.

    It follows the continued fractions of both ends as long as they agree.
    """
    low, high = value - half_width, value + half_width
    steps = []
    while True:
        floor = low.numerator // low.denominator
        if floor == low:
            steps.append(floor)
            break
        if floor + 1 <= high:
            steps.append(floor + 1)
            break
        steps.append(floor)
        low, high = 1 / (high - floor), 1 / (low - floor)
    result = Fraction(steps[-1])
    for step in reversed(steps[:-1]):
        result = step + 1 / result
    return result


def _fraction(parts: dict[str, str | None]) -> Fraction:
    if parts["repeat"]:
        fixed, repeat = parts["fixed"] or "", parts["repeat"]
        whole = int((parts["before"] or "0") + fixed)
        cycle = Fraction(int(repeat), 10 ** len(repeat) - 1)
        return (whole + cycle) / Fraction(10 ** len(fixed))
    if parts["whole"]:
        up, low = parts["up"] or parts["up2"] or "0", parts["low"] or parts["low2"] or "1"
        return int(parts["whole"]) + Fraction(int(up), int(low))
    if parts["num"]:
        return Fraction(Decimal(parts["num"])) / Fraction(Decimal(parts["den"] or "1"))
    value = Fraction(Decimal(parts["n"] or "0")) / int(parts["d"] or 1)
    power = int(parts["exp"] or 0)
    scale = Fraction(10 ** abs(power))
    return value * scale if power >= 0 else value / scale
