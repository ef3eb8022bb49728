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
UNITS = {
    spelling: name
    for name, _, spellings in (line.partition(":") for line in _SPELLINGS.strip().splitlines())
    for spelling in (name, *spellings.split())
}
"""Each spelling of a unit with the unit's name. Powers do not count: cm and cm² are one."""
LETTER_UNITS = {"m": "meter", "g": "gram", "s": "second", "h": "hour", "L": "liter"}
"""Units that are variables, too, and so are read only inside of text commands."""

_LONGEST_TAIL = 60
_SYMBOLS = re.compile(r"\\(?:text|mbox|mathrm|textrm|textbf)|\^\s*\{?\d\}?|[²³{}\\,!~$.)*]")
_LAST_WORD = re.compile(r"(?<![a-zA-Z])([a-zA-Z]+)\s*$")
_BEFORE_PER = re.compile(r"([a-zA-Z]+)\s*(?:/|\bper\b)")
_LETTER_IN_TEXT = re.compile(r"\\(?:text|mathrm|mbox)\s*\{\s*([mgshL])\s*\}\s*\S{0,4}$")
_MONEY = re.compile(r"^\W*\\?\$\s*\d")
_SIGNS = {"€": "euro", "¢": "cent", "°": "degree", "\\circ": "degree", "\\degree": "degree"}


def unit_of(text: str) -> str | None:
    """Return the name of the unit that an answer is written with, None for none that is known."""
    tail = text[-_LONGEST_TAIL:]
    if (letter := _LETTER_IN_TEXT.search(tail)) is not None:
        return LETTER_UNITS[letter[1]]
    words = _SYMBOLS.sub(" ", tail)
    is_rate = "/" in words or " per " in words
    match = None if is_rate else _LAST_WORD.search(words)
    if match is not None and match[1].lower() in UNITS:
        return UNITS[match[1].lower()]
    for sign, name in _SIGNS.items():
        if sign in tail or (sign == "€" and sign in text[:3]):
            return name
    return "dollar" if _MONEY.match(text[:40]) and text.count("$") % 2 else None
