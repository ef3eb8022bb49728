"""Units of numbers: one name for each spelling of a unit; other nouns name no unit."""

import re

_SPELLINGS = """
millimeter: mm millimeters millimetre millimetres
centimeter: cm centimeters centimetre centimetres
meter: meters metre metres
kilometer: km kilometers kilometre kilometres
inch: inches in
foot: feet ft
yard: yards yd yds
mile: miles mi
milligram: mg milligrams
gram: grams gm gms
kilogram: kg kilograms kgs
ounce: oz ounces
pound: lb lbs pounds
ton: tons tonnes
milliliter: ml milliliters
liter: liters litre litres
gallon: gallons gal
second: seconds sec secs
minute: minutes min mins
hour: hours hr hrs
day: days
week: weeks
month: months
year: years yr yrs
dollar: dollars usd
cent: cents
euro: euros
degree: degrees deg
radian: radians rad
"""
UNITS: dict[str, str] = {}
"""Each spelling of a unit with the unit's name. Powers do not count: cm and cm² are equal."""
for _line in _SPELLINGS.strip().splitlines():
    _name, _, _others = _line.partition(":")
    UNITS |= dict.fromkeys((_name, *_others.split()), _name)
LETTER_UNITS = {"m": "meter", "g": "gram", "s": "second", "h": "hour", "L": "liter"}
"""Units with the names of variables: read only inside of text commands."""

_MAX_TAIL_CHARS = 60
_MAX_HEAD_CHARS = 40
_SYMBOLS = re.compile(r"\\(?:text|mbox|mathrm|textrm|textbf)|\^\s*\{?\d\}?|[²³{}\\,!~$.)*]")
_LAST_WORD = re.compile(r"(?<![a-zA-Z])([a-zA-Z]+)\s*$")
_BEFORE_PER = re.compile(r"([a-zA-Z]+)\s*(?:/|\bper\b)")
_LETTER_IN_TEXT = re.compile(r"\\(?:text|mathrm|mbox)\s*\{\s*([mgshL])\s*\}\s*\S{0,4}$")
_MONEY = re.compile(r"^\W*\\?\$\s*\d")
_SIGNS = {"€": "euro", "¢": "cent", "°": "degree", "\\circ": "degree", "\\degree": "degree"}


def unit_of(text: str) -> str | None:
    """Name the unit of an answer, if it has a known unit."""
    tail = text[-_MAX_TAIL_CHARS:]
    letter = _LETTER_IN_TEXT.search(tail)
    if letter is not None:
        return LETTER_UNITS[letter[1]]

    words = _SYMBOLS.sub(" ", tail)
    # "miles per hour" is no unit of the list, and its last word is not the unit.
    is_rate = "/" in words or " per " in words
    last_word = None if is_rate else _LAST_WORD.search(words)
    if last_word is not None and last_word[1].lower() in UNITS:
        return UNITS[last_word[1].lower()]

    for sign, name in _SIGNS.items():
        is_before_number = sign == "€" and sign in text[:3]
        if sign in tail or is_before_number:
            return name
    # An even number of dollar signs marks a formula.
    is_money = _MONEY.match(text[:_MAX_HEAD_CHARS]) and text.count("$") % 2
    return "dollar" if is_money else None
