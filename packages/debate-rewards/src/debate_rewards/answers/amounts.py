"""Numbers in a sentence as its words mean them: `5 million`, `negative 5`, `five`, `not 5`."""

import re
from fractions import Fraction

from debate_rewards.answers.folding import plain_text

MAX_WORDS_CHARS = 200
"""Longest text to be read as a number in words."""

_DIGITS = r"\d+(?:,\d{3})*(?:\.\d+)?"
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALED_AMOUNT = re.compile(rf"(?<![\w.,])({_DIGITS})\s+({'|'.join(_SCALES)})\b", re.IGNORECASE)
_NEGATIVE = re.compile(
    r"(?:\bnegative|(?:^|\b(?:is|be|equals?|answer|result):?\s+)minus)\s+(?=\d)",
    re.IGNORECASE,
)
_DOLLARS_AND_CENTS = re.compile(
    r"(?:\$\s?(\d[\d,]*)|(?<![\w.,])(\d[\d,]*)\s+dollars?)\s+and\s+(\d{1,2})\s+cents?\b", re.I
)
_POWER_IN_WORDS = re.compile(
    r"(?<![\w.,])(\d{1,3})\s+to\s+the\s+(?:power\s+(?:of\s+)?(\d{1,2})(?!\w|[.,]\d)"
    r"|(\d{1,2})(?:st|nd|rd|th)(?:\s+power\b|(?=\s*(?:$|[=.,;]))))",
    re.IGNORECASE,
)
_BELOW_ZERO = re.compile(
    r"(?<![\w.,-])(?=\d+(?:\.\d+)?(?:\s*°\s*[CF]?|\s+degrees?)?(?:\s+(?:celsius|fahrenheit))?"
    r"\s+below\s+zero\b)",
    re.IGNORECASE,
)

# Number words, by value.
_CARDINALS_IN_ORDER = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen
"""
_CARDINALS = _CARDINALS_IN_ORDER.split()
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_WORD_VALUES = {word: value for value, word in enumerate(_CARDINALS)}
_WORD_VALUES |= {word: 10 * value for value, word in enumerate(_TENS, start=2)}
_DENOMINATORS = {
    "half": 2,
    "halve": 2,
    "third": 3,
    "quarter": 4,
    "fourth": 4,
    "fifth": 5,
    "sixth": 6,
    "seventh": 7,
    "eighth": 8,
    "ninth": 9,
    "tenth": 10,
}
_NUMERATORS = {"a": 1, "an": 1} | {word: _WORD_VALUES[word] for word in _CARDINALS[1:]}

_ANY_NUMERATOR = "|".join(_NUMERATORS)
_ANY_DENOMINATOR = "|".join(_DENOMINATORS)
_AND_FRACTION = rf"\s+and\s+({_ANY_NUMERATOR})[\s-]+({_ANY_DENOMINATOR})s?\b"
_MIXED_AMOUNT = re.compile(rf"(?<![\w.,])(\d+){_AND_FRACTION}", re.IGNORECASE)
_FRACTION_IN_WORDS = re.compile(
    rf"\W*(?:({_ANY_NUMERATOR})[\s-]+)?({_ANY_DENOMINATOR})s?"
    r"(?:\s+of\s+(?:it|them|(?:the|a|an|all|his|her|their)\s+[a-z]+))?\W*",
    re.IGNORECASE,
)
_DOZEN = re.compile(r"\W*(?:(?:a|one)\s+)?dozen\W*", re.IGNORECASE)
_NUMBER_IN_WORDS = re.compile(
    rf"\W*(?P<words>(?:{'|'.join(_WORD_VALUES)})(?:[\s-]+(?:and\s+)?"
    rf"(?:{'|'.join((*_WORD_VALUES, 'hundred', 'thousand'))}))*)"
    rf"(?P<fraction>(?:{_AND_FRACTION})?)"
    r"(?P<unit>(?:\s+[a-z]{3,})?)\W*",
    re.IGNORECASE,
)
_WORD_THAT_SCALES = re.compile(
    r"\s+(?:hal(?:f|ves)|quarters?|\w+ths?|thirds?|more|less|dozen|million)"
)

# "It must be ninety-six": the words behind the last verb, unless words before deny or bound them.
_BEHIND_VERB = re.compile(
    r".*\b(?:is|are|was|were|be|equals?|needs?|has|have|had|gets?|got|makes?|gives?|costs?|takes?|pays?"
    r"|paid|earns?|earned|spends?|spent|leaves)\s+(?:(?:exactly|just|only|about|now)\s+)?",
    re.IGNORECASE | re.DOTALL,
)
_OPEN_BEFORE = re.compile(
    r"\d|\b(?:not|never|no|none|than|least|most|almost|nearly|over|under|between|either|or|if|why|until"
    r"|before|could|might|may)\b|n['’]t\b",
    re.IGNORECASE,
)
_SIGN_IN_WORDS = re.compile(r"\W*(?:minus|negative)\s+", re.IGNORECASE)

VAGUE = "¤"
"""Represents a named number other than the answer's value, as in `almost 5`."""

# Denied numbers and parts of a calculation or name say nothing of the answer, so they are dropped.
_DENIED_BEFORE = (
    r"\bnot(?:\s+equal\s+to)?|n['’]t(?:\s+be)?|\bcannot\s+be|\bnever|\bexcept|\bthan|\binstead\s+of"
    r"|\b(?:any|anything|all)\s+but|(?<=[\w)}])\s*(?:[<>≤≥≠]|\\(?:ge|le|ne|geq|leq|neq|gt|lt)\b)"
    r"|\b(?:half|third|quarter|root|multiple|power|factor)\s+of|\btwice|\bdouble|\btriple"
    r"|\bdivisible\s+by|\bmod(?:ulo)?"
    r"|\b(?:step|question|problem|equation|case|figure|section|chapter|example)"
    r"|\b(?:january|february|march|april|may|june|july|august|september|october|november|december)"
)
_DENIED_BEHIND = (
    r"(?:\s+(?:squared|cubed|factorial|or\s+(?:more|less|fewer|greater|higher|lower))\b"
    r"|\s+(?:(?:is|was)(?:\s+not|n['’]t)|can(?:not|['’]t)\s+be)\s+"
    r"(?:right|correct|it|possible|(?:the\s+)?(?:right\s+|correct\s+|final\s+)?answer)\b"
    r"|\s+(?:is|was|seems|would\s+be)\s+(?:wrong|incorrect|impossible|false|off|too\s+\w+)\b)"
)
_DENIED = re.compile(
    rf"(?P<before>{_DENIED_BEFORE})[\s*]*\$?[-+]?{_DIGITS}\b"
    rf"|(?<![\w.,])[-+]?{_DIGITS}{_DENIED_BEHIND}",
    re.IGNORECASE,
)

# A bound or an alternative leaves the value open. It stays as a sign, so that another number of the
# sentence is not taken instead: `either 42 or 44` is neither.
_AT_A_BOUND = r"\bat\s+(?:(?:the\s+)?(?:very\s+)?(?:least|most)|(?:a\s+)?(?:minimum|maximum))"
_UNIT_BEHIND = r"(?:\s*\\?%|\s+[a-z]+)?"
_VAGUE_BEFORE = (
    rf"\balmost|\bnearly|\bnot\s+quite|\bclose\s+to|{_AT_A_BOUND}|\bup\s+to|\bupwards?\s+of"
    r"|\b(?:shy|short|north|south|in\s+excess)\s+of|\bexceed(?:s|ing)?|\bas\s+(?:many|much|few)\s+as"
    r"|\b(?:just|slightly|well)\s+(?:over|under|above|below|past)"
    r"|(?:^|[,.:;!?*]\s*|\b(?:is|are|was|were|be|at|has|have|takes?|costs?|needs?|pays?|gets?|makes?)\s+)"
    r"(?:over|under|above|below|beyond|near)"
    r"|[≤≥]|\\(?:ge|le)q?\b|\beither|\bthan\s+or\s+equal\s+to|√|\\?\bsqrt(?:\[\d+\])?\s*[({]"
    rf"|\b(?:{'|'.join(_WORD_VALUES)})"
)
_VAGUE_BEHIND = (
    rf"(?:{_UNIT_BEHIND}\s+(?:{_AT_A_BOUND}|(?:and|or)\s+(?:up|upwards?|above|below|under|over|beyond))\b"
    rf"|{_UNIT_BEHIND}\s+(?:tops|max|min|minimum|maximum|plus)(?=\W*$)"
    rf"|{_UNIT_BEHIND}\s+or\s+(?:so|something|anything|another|other|thereabouts|maybe|perhaps)\b"
    r"|(?:\s*\\?%|\s+[a-z]+)\s+or\s+(?:more|less|fewer|greater|higher|lower)\b"
    r"|(?:\s*\\?%)?\s*-?ish\b|\s*√[\s({]*\d*|\+(?=\s*(?:$|[.,;!)]|[a-z]{3})))"
)
_VAGUE = re.compile(
    rf"(?P<before>{_VAGUE_BEFORE})[\s*]*\$?[-+]?{_DIGITS}\b"
    rf"|(?<![\w.,])[-+]?{_DIGITS}{_VAGUE_BEHIND}",
    re.IGNORECASE,
)


def write_amounts_as_numbers(text: str) -> str:
    """Write scaled, negative and mixed amounts as numbers, and take out all numbers but answers.

    `5 million` is 5000000, `negative 5` is -5, `5 and a half` is 11/2, `2 to the 10th` 1024,
    `$5 and 20 cents` is 5.20. `not 5`, `twice 5`,
    `5 squared` and `June 5` leave no number. `at least 5`, `5 or so` and `√5` leave `VAGUE`.
    """
    text = _SCALED_AMOUNT.sub(_scaled_amount, text)
    text = _MIXED_AMOUNT.sub(_mixed_amount, text)
    text = _DOLLARS_AND_CENTS.sub(_dollars, text)
    text = _POWER_IN_WORDS.sub(lambda match: str(int(match[1]) ** int(match[2] or match[3])), text)
    text = _NEGATIVE.sub(_minus_sign, text)
    text = _BELOW_ZERO.sub("-", text)
    text = _VAGUE.sub(lambda match: f"{match['before'] or ''} {VAGUE} ", text)
    return _DENIED.sub(lambda match: match["before"] or " ", text)


def number_in_words(text: str) -> str | None:
    """Write a number in words with digits: `six apples`, `It must be minus twenty-five`."""
    if len(text) > MAX_WORDS_CHARS:
        return None
    text = plain_text(text)
    number = _signed_number_in_words(text)
    behind_verb = _BEHIND_VERB.match(text)
    if number is not None or behind_verb is None or _OPEN_BEFORE.search(behind_verb[0]):
        return number
    number = _signed_number_in_words(text[behind_verb.end() :])
    # "This is one reason" counts nothing.
    return None if number == "1" else number


def _signed_number_in_words(text: str) -> str | None:
    sign = _SIGN_IN_WORDS.match(text)
    number = _number_in_words(text[sign.end() :] if sign else text)
    return f"-{number}" if sign and number else number


def _number_in_words(text: str) -> str | None:
    fraction = _FRACTION_IN_WORDS.fullmatch(text)
    if fraction is not None and fraction[1] is not None:
        return f"{_NUMERATORS[fraction[1].lower()]}/{_DENOMINATORS[fraction[2].lower()]}"
    if fraction is not None:
        # "fifth" alone is a place in a row, "half" a number.
        return "1/2" if fraction[2].lower() == "half" else None
    if _DOZEN.fullmatch(text):
        return "12"
    match = _NUMBER_IN_WORDS.fullmatch(text)
    if match is None or _WORD_THAT_SCALES.match(match["unit"].lower()):
        return None
    whole_number = _cardinal_value(match["words"])
    if whole_number is None or not match["fraction"]:
        return None if whole_number is None else str(whole_number)
    denominator = _DENOMINATORS[match[4].lower()]
    return f"{whole_number * denominator + _NUMERATORS[match[3].lower()]}/{denominator}"


def _cardinal_value(words: str) -> int | None:
    total = group = 0
    previous: int | None = None
    for word in re.findall(r"[a-z]+", words.lower()):
        value = _WORD_VALUES.get(word)
        if word == "and":
            continue
        if word == "hundred":
            group *= 100
        elif word == "thousand":
            total += group * 1000
            group = 0
        elif value is None:
            return None
        else:
            # "twenty five" is 25; "five twenty" and "five five" are two numbers.
            begins_group = previous is None
            follows_tens = previous is not None and previous >= 20 and 0 < value < 10
            if not (begins_group or follows_tens):
                return None
            group += value
        previous = value
    return total + group


def _scaled_amount(match: re.Match[str]) -> str:
    value = Fraction(match[1].replace(",", "")) * 10 ** _SCALES[match[2].lower()]
    return str(value)


def _mixed_amount(match: re.Match[str]) -> str:
    denominator = _DENOMINATORS[match[3].lower()]
    numerator = int(match[1]) * denominator + _NUMERATORS[match[2].lower()]
    return f"{numerator}/{denominator}"


def _dollars(match: re.Match[str]) -> str:
    return f"{match[1] or match[2]}.{int(match[3]):02}"


def _minus_sign(match: re.Match[str]) -> str:
    words_before = match[0].split()[:-1]
    return " ".join((*words_before, "-"))
