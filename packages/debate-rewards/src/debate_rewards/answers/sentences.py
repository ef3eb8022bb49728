"""The number or formula in the conclusion of a sentence."""

import re
from fractions import Fraction

from debate_rewards.answers.amounts import VAGUE, write_amounts_as_numbers
from debate_rewards.answers.folding import TEXT_COMMAND
from debate_rewards.answers.numbers import read_number
from debate_rewards.answers.reply import MAX_LINE_CHARS, Unreadable

MAX_CONCLUSIONS = 5
"""Words such as "so" and "thus" to be tried in a sentence, from the end."""

REASON_CLAUSE = re.compile(
    r",?\s+(?:because|since)\s|[,;]\s+(?:as|for|while|although|though)\s", re.I
)
BOLD = re.compile(r"\*\*([^*]+)\*\*")
_AMOUNT = r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:\s*+/\s*+\d+)?"
_NUMBER = re.compile(rf"(?<![\w.])(?<!\d,)\$?\s?({_AMOUNT}|{VAGUE})(\s*\\?%)?(?!\w|[.,]\d)")
_SPACED_THOUSANDS = re.compile(r"(?<![\w.,])\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?![\w]|[.,]\d)")
_LIST_ITEM = rf"(?:\b[a-zA-Z](?:_\d|_\{{\d\}})?\s*=\s*)?{_AMOUNT}"
_NUMBER_LIST = re.compile(
    rf"{_LIST_ITEM}(?:,\s*{_LIST_ITEM})*,?\s*(?:and|or|,)\s*{_LIST_ITEM}\s*\.?\s*$"
)
_PAREN_FORMULA = re.compile(r"\\\((.+?)\\\)|\\\[(.+?)\\\]")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_IN_PARENTHESES = re.compile(r"\s\((?=[^()]*+\))[^()]*[a-zA-Z]{2}[^()]*\)")
_OUT_OF = re.compile(r"[^\d]*(\d+)\s+out\s+of\s+(\d+)[^\d]*")
_ONE_IN = re.compile(
    r"[^\d]*(\d+)\s+in\s+(?:every\s+)?(\d+)(?:\W*|\s+(?:people|persons?|cases|times|chances?|odds)\b[^\d]*)"
)
_CONCLUSION = re.compile(
    r"\b(?:so|thus|hence|therefore|in\s+total|altogether|total|leaving|leaves|in\s+all)\b",
    re.IGNORECASE,
)
_VERB = re.compile(
    r"\b(?:is|are|was|were|be|equals?|gets?|got|has|have|had|makes?|gives?|costs?|needs?|pays?|paid"
    r"|earns?|earned|takes?|spends?|spent|remains?|total\s+of|answer|result|in"
    r"|(?:it|that|there)['’]s)\s*:?"
    r"(?:\s+(?:about|only|exactly|just|now|then|approximately|roughly|a\s+total\s+of|clearly))*"
    rf"\s+\$?\s?({_AMOUNT})(\s*\\?%)?(?![\w/]|,\d|\.\d)",
    re.IGNORECASE,
)

# Words of a formula, and words that no formula has.
_FUNCTION = re.compile(
    r"(?i)(?<![a-z])(?:sin|cos|tan|cot|sec|csc|log|sqrt|exp|max|min|gcd)(?![a-z])"
)
_BETWEEN_VALUES = re.compile(r"(?<![a-zA-Z])(?:and|or)(?=\s+(?:\S*\d|\\?[a-zA-Z]\s*[=<>]))")
_COMMAND = re.compile(r"\\[a-zA-Z]+(?:\s*+\{[a-zA-Z\s]*+\})?")
_LONG_WORD = re.compile(r"(?<![\\a-zA-Z])[A-Za-z]{3,}")
_TWO_LETTERS = re.compile(r"[A-Za-z]{2,}")
_PROSE_WORD = re.compile(
    r"(?<![\\a-zA-Z])(?:[A-Za-z]{2,}|I)['’](?:s|re|m|ll|d|ve)(?![a-zA-Z])"
    r"|(?<![\\a-zA-Z])(?:is|it|so|we|he|be)\s",
    re.IGNORECASE,
)
_LAST_IS = re.compile(r".*(?:\b(?:is|are|be|equals?)\s*:?\s|=)", re.IGNORECASE | re.DOTALL)
_LAST_VERB = re.compile(r".*(?:\b(?:is|are|be|by|equation)\b|:)", re.IGNORECASE | re.DOTALL)
_OPENING = re.compile(r"[(\[{]")
_OPEN_WORDS = re.compile(r"\d|\b(?:not|never|nor|or|either|than|except)\b|n['’]t\b", re.IGNORECASE)
_SYMBOL_IS = re.compile(r"(?<![\w\\])([a-zA-Z])\s+(?:is|equals)\s+(?=[-+−]?\d)")
_SIGN_OF_FORMULA = re.compile(r"√|\^|\\[a-zA-Z]|π|\bsqrt\b")
_LAST_WORD = re.compile(r"\s+[A-Za-z]{3,}\s*$")


def is_formula(text: str) -> bool:
    """Distinguish a formula from a sentence by the words in it."""
    bare = _FUNCTION.sub(" ", _COMMAND.sub(" ", _BETWEEN_VALUES.sub(" ", text)))
    if _LONG_WORD.search(bare) or _PROSE_WORD.search(bare):
        return False
    return len(_TWO_LETTERS.findall(bare)) < 2


def formulas(text: str) -> list[str]:
    r"""List the formulas of a sentence between `$…$`, `\(…\)` or `\[…\]`."""
    inner = ["".join(groups) for groups in _PAREN_FORMULA.findall(text)]
    pieces = text.replace("\\$", " ").split("$")
    number = 1
    while number < len(pieces) - 1:
        piece = pieces[number]
        follows_digit = pieces[number + 1][:1].isdigit()
        if piece.strip() and is_formula(piece) and not follows_digit:
            inner.append(piece)
            number += 2
        else:
            number += 1  # The two dollar signs are amounts of money.
    return inner


def bare_formula(text: str) -> str | None:
    """Find the formula at the end of a sentence without dollar signs: `It is 2√5 units`.

    It must have a root, a power or a command; a bare number is read by the words around it.
    """
    sentence = text[-MAX_LINE_CHARS:].strip().rstrip(".")
    last_is = _LAST_IS.match(sentence)
    if last_is is None:
        return None
    formula = sentence[last_is.end() :].strip()
    if not is_formula(formula):
        formula = _LAST_WORD.sub("", formula)
    if not _SIGN_OF_FORMULA.search(formula) or not is_formula(formula):
        return None
    return formula


def bracketed_end(text: str) -> str | None:
    """Find the brackets at the end of a sentence without other numbers: `They meet at (4, -1).`"""
    sentence = text[-MAX_LINE_CHARS:].strip().rstrip(".!")
    opening = _OPENING.search(sentence)
    if opening is None or sentence[-1:] not in (")", "]", "}"):
        return None
    words, brackets = sentence[: opening.start()], sentence[opening.start() :]
    if "," not in brackets or not is_formula(brackets) or _OPEN_WORDS.search(words):
        return None
    # A name before a bracket is a function's; plain braces are a set's.
    if words[-1:].isalnum():
        return None
    if brackets.startswith("{") and brackets.endswith("}"):
        return f"\\{{{brackets[1:-1]}\\}}"
    return brackets


def equation_at_end(text: str) -> str | None:
    """Find the equation at the end of a sentence: `The line is y = 2x + 3.`"""
    sentence = text[-MAX_LINE_CHARS:].strip().rstrip(".!")
    last_is = _LAST_VERB.match(sentence)
    if last_is is None or "=" in last_is[0]:
        return None
    equation = sentence[last_is.end() :].strip()
    return equation if "=" in equation and is_formula(equation) else None


def share_in_words(text: str) -> str | None:
    """Read the share in a sentence without other numbers: `5 out of 6`, `1 in 4 people`."""
    share = _OUT_OF.fullmatch(text) or _ONE_IN.fullmatch(text)
    return None if share is None else f"{share[1]}/{share[2]}"


def settled_number(text: str) -> str | Unreadable:
    """Find the number in the conclusion of a sentence, as it is written.

    It is the only number in bold print, of the whole sentence, behind the last `=` or of the
    conclusion ("so …"), or the number right behind the last verb. Other sentences around several
    numbers have no such number.
    """
    text = text.replace("\\$", "$").replace("\\!", "").replace("{,}", ",").replace("−", "-")
    text = TEXT_COMMAND.sub(r"\1", text[-MAX_LINE_CHARS:])
    text = _SPACED_THOUSANDS.sub(lambda match: re.sub(r"\s", "", match[0]), text)
    text = write_amounts_as_numbers(_IN_PARENTHESES.sub(" ", text))
    share = share_in_words(text)
    if share is not None:
        return share

    numbers_in_bold = [number for span in BOLD.findall(text) for number in _numbers(span)]
    number = _common_number(numbers_in_bold)
    sentences = [sentence for sentence in SENTENCE_END.split(text) if _NUMBER.search(sentence)]
    if not sentences:
        return Unreadable("no number")
    # An answer is said first or last; what lies between explains it.
    for sentence in (sentences[0], sentences[-1]):
        if number is None:
            number = _number_of_sentence(sentence)
    if number is None:
        return Unreadable("several numbers")
    return Unreadable("no number") if number.startswith(VAGUE) else number


def _number_of_sentence(sentence: str) -> str | None:
    main_clause = REASON_CLAUSE.split(sentence, maxsplit=1)[0]
    # The narrowest part first.
    for clause in dict.fromkeys((sentence.rsplit("=", 1)[-1], main_clause, sentence)):
        number = _common_number(_numbers(clause))
        if number is not None:
            return number

    conclusion_starts = [match.end() for match in _CONCLUSION.finditer(sentence)]
    for start in conclusion_starts[: -MAX_CONCLUSIONS - 1 : -1]:
        numbers = _numbers(sentence[start:])
        if not numbers:
            continue
        number = _common_number(numbers)
        if number is not None:
            return number
        break

    verbs = list(_VERB.finditer(main_clause))
    if verbs and not _NUMBER.search(main_clause, verbs[-1].end()):
        last_verb = verbs[-1]
        return last_verb[1] + (last_verb[2] or "")
    return None


def _common_number(numbers: list[str]) -> str | None:
    """Take the first of several equal numbers, as in `3/4, or 75%`."""
    if not numbers:
        return None
    values = {_value(number) for number in numbers}
    return numbers[0] if len(values) == 1 else None


def _value(number: str) -> Fraction | str:
    value = read_number(number.rstrip("%\\ "))
    if value is None:
        return number
    return value / 100 if number.endswith("%") else value


def _numbers(text: str) -> list[str]:
    return [number + sign for number, sign in _NUMBER.findall(text)]


def listed_numbers(text: str) -> str | None:
    """Find the list at the end of a sentence without other numbers; `x is 2` is `x = 2`."""
    sentence = _SYMBOL_IS.sub(r"\1 = ", text[-MAX_LINE_CHARS:])
    match = _NUMBER_LIST.search(sentence)
    if match is None or _NUMBER.search(sentence, 0, match.start()):
        return None
    return match[0].strip(" .")
