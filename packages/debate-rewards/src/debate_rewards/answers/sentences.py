"""The number or formula that a sentence settles on."""

import re

from debate_rewards.answers.amounts import counted_amounts
from debate_rewards.answers.reply import MAX_LINE_CHARS, Unreadable

REASON_CLAUSE = re.compile(
    r",?\s+(?:because|since)\s|[,;]\s+(?:as|for|while|although|though)\s", re.I
)
_AMOUNT = r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:\s*+/\s*+\d+)?"
_NUMBER = re.compile(rf"(?<![\w.])(?<!\d,)\$?\s?({_AMOUNT})(\s*\\?%)?(?!\w|[.,]\d)", re.IGNORECASE)
_NUMBER_LIST = re.compile(rf"{_AMOUNT}(?:,\s*{_AMOUNT})*,?\s*(?:and|or|,)\s*{_AMOUNT}\s*\.?\s*$")
_BARE_WORD = re.compile(r"(?<![\\a-zA-Z])[A-Za-z]{3,}")
_PAREN_FORMULA = re.compile(r"\\\((.+?)\\\)|\\\[(.+?)\\\]")
_FUNCTION = re.compile(
    r"(?i)(?<![a-z])(?:sin|cos|tan|cot|sec|csc|log|sqrt|exp|max|min|gcd)(?![a-z])"
)
_BETWEEN_VALUES = re.compile(r"(?<![a-zA-Z])(?:and|or)(?=\s+(?:\S*\d|\\?[a-zA-Z]\s*[=<>]))")
_COMMAND = re.compile(r"\\[a-zA-Z]+(?:\s*+\{[a-zA-Z\s]*+\})?")
_TWO_LETTERS = re.compile(r"[A-Za-z]{2,}")
BOLD = re.compile(r"\*\*([^*]+)\*\*")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_IN_PARENTHESES = re.compile(r"\s\((?=[^()]*+\))[^()]*[a-zA-Z]{2}[^()]*\)")
_OUT_OF = re.compile(r"[^\d]*(\d+)\s+out\s+of\s+(\d+)[^\d]*")
_CONCLUSION = re.compile(
    r"\b(?:so|thus|hence|therefore|in\s+total|altogether|total|leaving|leaves|in\s+all)\b",
    re.IGNORECASE,
)
MAX_CONCLUSIONS = 5
_VERB = re.compile(
    r"\b(?:is|are|was|were|be|equals?|gets?|got|has|have|had|makes?|gives?|costs?|needs?|pays?|paid"
    r"|earns?|earned|takes?|spends?|spent|remains?|total\s+of|answer|result|in)\s*:?"
    r"(?:\s+(?:about|only|exactly|just|now|then|approximately|roughly|a\s+total\s+of|clearly))*"
    rf"\s+\$?\s?({_AMOUNT})(\s*\\?%)?(?![\w/]|,\d|\.\d)",
    re.IGNORECASE,
)


def is_formula(text: str) -> bool:
    """Return whether a text is a formula rather than a sentence."""
    bare = _FUNCTION.sub(" ", _COMMAND.sub(" ", _BETWEEN_VALUES.sub(" ", text)))
    return _BARE_WORD.search(bare) is None and len(_TWO_LETTERS.findall(bare)) < 2


def formulas(text: str) -> list[str]:
    r"""Return the formulas that a sentence holds between `$…$`, `\(…\)` or `\[…\]`.

    Where a formula cannot stand between two dollar signs they are amounts of money.
    """
    inner = ["".join(groups) for groups in _PAREN_FORMULA.findall(text)]
    pieces = text.replace("\\$", " ").split("$")
    number = 1
    while number < len(pieces) - 1:
        piece, following = pieces[number], pieces[number + 1]
        if piece.strip() and is_formula(piece) and not following[:1].isdigit():
            inner.append(piece)
            number += 2
        else:
            number += 1
    return inner


def settled_number(text: str) -> str | Unreadable:
    """Return the number that a sentence settles on, as it is written.

    It is the only number in bold print, the only one in all, or in what follows the last `=`, or
    the one right behind the last verb, or the only one of the conclusion ("so …"). A sentence
    around several numbers has none.
    """
    text = text.replace("\\$", "$").replace("\\!", "").replace("{,}", ",").replace("−", "-")
    text = text[-MAX_LINE_CHARS:]
    text = counted_amounts(_IN_PARENTHESES.sub(" ", text))
    if (share := _OUT_OF.fullmatch(text)) is not None:
        return f"{share[1]}/{share[2]}"
    in_bold = {number for span in BOLD.findall(text) for number in _numbers(span)}
    if len(in_bold) == 1:
        return in_bold.pop()
    parts = [part for part in _SENTENCE_END.split(text) if _NUMBER.search(part)]
    if not parts:
        return Unreadable("no number")
    for part in dict.fromkeys((parts[0], parts[-1])) if len(parts) > 1 else parts:
        number = _number_of_sentence(part)
        if number is not None:
            return number
    return Unreadable("several numbers")


def _number_of_sentence(sentence: str) -> str | None:
    """Look at the narrowest part first that holds one number alone."""
    main_clause = REASON_CLAUSE.split(sentence, maxsplit=1)[0]
    for part in dict.fromkeys((sentence.rsplit("=", 1)[-1], main_clause, sentence)):
        numbers = _numbers(part)
        if len(set(numbers)) == 1:
            return numbers[0]
    conclusions = [match.end() for match in _CONCLUSION.finditer(sentence)]
    for start in conclusions[: -MAX_CONCLUSIONS - 1 : -1]:
        numbers = _numbers(sentence[start:])
        if numbers:
            if len(set(numbers)) == 1:
                return numbers[0]
            break
    verbs = list(_VERB.finditer(main_clause))
    if verbs and not _NUMBER.search(main_clause, verbs[-1].end()):
        return verbs[-1][1] + (verbs[-1][2] or "")
    return None


def _numbers(text: str) -> list[str]:
    return [number + sign for number, sign in _NUMBER.findall(text)]


def listed_numbers(text: str) -> str | None:
    """Return the list that a sentence ends with, where no other number is in it."""
    match = _NUMBER_LIST.search(text[-MAX_LINE_CHARS:])
    if match is None or _NUMBER.search(text[-MAX_LINE_CHARS:], 0, match.start()):
        return None
    return match[0].strip(" .")
