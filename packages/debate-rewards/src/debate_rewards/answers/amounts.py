"""Numbers in a sentence as its words mean them: `5 million`, `negative 5`, `five`, `not 5`."""

import re
from fractions import Fraction

from debate_rewards.answers.folding import plain_text

MAX_WORDS_CHARS = 200
"""A longer text is no number in words."""

_DIGITS = r"\d+(?:,\d{3})*(?:\.\d+)?"
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALED = re.compile(rf"(?<![\w.,])({_DIGITS})\s+({'|'.join(_SCALES)})\b", re.IGNORECASE)
_NEGATIVE = re.compile(
    r"(?:\bnegative|(?:^|\b(?:is|be|equals?|answer|result):?\s+)minus)\s+(?=\d)",
    re.IGNORECASE,
)
_DENOMINATORS = {"half": 2, "third": 3, "thirds": 3, "quarter": 4, "quarters": 4, "fifth": 5}
_NUMERATORS = {"a": 1, "one": 1, "two": 2, "three": 3}
_AND_A_HALF = re.compile(
    rf"(?<![\w.,])(\d+)\s+and\s+({'|'.join(_NUMERATORS)})\s+({'|'.join(_DENOMINATORS)})\b",
    re.IGNORECASE,
)

# A number behind one of these is denied, a bound, or part of a calculation or name.
_NO_ANSWER_BEFORE = (
    r"\bnot(?:\s+equal\s+to)?|n['’]t(?:\s+be)?|\bcannot\s+be|\bnever|\bexcept|\bthan|\binstead\s+of"
    r"|\b(?:any|anything|all)\s+but|(?<=[\w)}])\s*(?:[<>≤≥≠]|\\(?:ge|le|ne|geq|leq|neq|gt|lt)\b)"
    r"|\b(?:half|third|quarter|root|multiple|power|factor)\s+of|\btwice|\bdouble|\btriple"
    r"|\bdivisible\s+by|\bmod(?:ulo)?"
    r"|\b(?:step|question|problem|equation|case|figure|section|chapter|example)"
    r"|\b(?:january|february|march|april|may|june|july|august|september|october|november|december)"
)
_NO_ANSWER_BEHIND = (
    r"\s+(?:squared|cubed|factorial|or\s+(?:more|less|fewer|greater|higher|lower))\b"
)
_BESIDE = re.compile(
    rf"(?P<before>{_NO_ANSWER_BEFORE})[\s*]*\$?[-+]?{_DIGITS}\b"
    rf"|(?<![\w.,])[-+]?{_DIGITS}{_NO_ANSWER_BEHIND}",
    re.IGNORECASE,
)

_UNITS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
_UNITS += "fifteen sixteen seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_WORD_VALUES = {word: value for value, word in enumerate(_UNITS.split())}
_WORD_VALUES |= {word: 10 * value for value, word in enumerate(_TENS.split(), start=2)}
_IN_WORDS = re.compile(
    rf"\W*(?P<words>(?:{'|'.join(_WORD_VALUES)})(?:[\s-]+(?:and\s+)?"
    rf"(?:{'|'.join((*_WORD_VALUES, 'hundred', 'thousand'))}))*)"
    r"(?P<unit>(?:\s+[a-z]{3,})?)\W*",
    re.IGNORECASE,
)
_FRACTION_WORD = re.compile(
    r"\s+(?:hal(?:f|ves)|quarters?|\w+ths?|thirds?|more|less|dozen|million)"
)


def counted_amounts(text: str) -> str:
    """Write scaled, negative and mixed amounts as numbers, and drop numbers that are no answer.

    `5 million` is 5000000, `negative 5` is -5, `5 and a half` is 11/2. `not 5`, `more than 5`,
    `twice 5`, `5 squared` and `June 5` leave no number.
    """
    text = _SCALED.sub(_scaled, text)
    text = _AND_A_HALF.sub(_mixed, text)
    text = _NEGATIVE.sub(lambda match: f"{_words_before_minus(match[0])}-", text)
    return _BESIDE.sub(lambda match: match["before"] or " ", text)


def number_in_words(text: str) -> str | None:
    """Return the digits of a text that is a number in words, perhaps with a unit: `six apples`."""
    if len(text) > MAX_WORDS_CHARS:
        return None
    match = _IN_WORDS.fullmatch(plain_text(text))
    if match is None or _FRACTION_WORD.match(match["unit"].lower()):
        return None
    total = group = 0
    previous: int | None = None
    for word in re.findall(r"[a-z]+", match["words"].lower()):
        value = _WORD_VALUES.get(word)
        if word == "and":
            continue
        if word == "hundred":
            group *= 100
        elif word == "thousand":
            total += group * 1000
            group = 0
        elif value is not None and _may_follow(previous, value):
            group += value
        else:
            return None
        previous = value
    return str(total + group)


def _may_follow(previous: int | None, value: int) -> bool:
    """Return whether a word adds to the one before: `twenty five`, never `five twenty`."""
    return previous is None or (previous >= 20 and 0 < value < 10)


def _scaled(match: re.Match[str]) -> str:
    value = Fraction(match[1].replace(",", "")) * 10 ** _SCALES[match[2].lower()]
    return str(value)


def _mixed(match: re.Match[str]) -> str:
    denominator = _DENOMINATORS[match[3].lower()]
    numerator = int(match[1]) * denominator + _NUMERATORS[match[2].lower()]
    return f"{numerator}/{denominator}"


def _words_before_minus(matched: str) -> str:
    words = matched.split()
    return " ".join(words[:-1]) + " " if len(words) > 1 else ""
