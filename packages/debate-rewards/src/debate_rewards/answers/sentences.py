"""What a sentence says: yes or no, or the number or formula that it settles on."""

import re

from debate_rewards.answers.amounts import counted_amounts
from debate_rewards.answers.folding import plain_text
from debate_rewards.answers.reply import MAX_LINE_CHARS, Unreadable

_YES = frozenset(("yes", "yeah", "yep", "true", "correct", "valid", "right", "plausible"))
_NO = frozenset(("no", "nope", "false", "incorrect", "untrue", "invalid", "wrong", "implausible"))
_TRUTH = (_YES | _NO) - {"yes", "yeah", "yep", "no", "nope"}
_WORD = re.compile(r"[a-z]+(?:['’]t)?(?:\s*\?)?", re.IGNORECASE)
_NEGATION = frozenset(("not", "never", "cannot", "hardly", "nothing", "far"))
# "No doubt it is true" does not say no.
_AFTER_NO = frozenset(
    ("doubt", "longer", "one", "matter", "reason", "question", "more", "less", "other", "evidence")
) | {"idea", "answer", "problem", "information", "clue", "comment"}
# "The correct answer", "the right side", "correct me": the word does not judge the claim.
_AFTER_ADJECTIVE = frozenset(
    ("answer", "answers", "option", "choice", "side", "hand", "me", "now", "away", "angle")
)
_NEGATION_REACH = 2
_BOTH = re.compile(r"\byes\s+(?:and|or)\s+no\b|\btrue\s+(?:and|or)\s+false\b", re.IGNORECASE)
_REASON_CLAUSE = re.compile(
    r",?\s+(?:because|since)\s|[,;]\s+(?:as|for|while|although|though)\s", re.I
)


_SHORT_REPLY = re.compile(
    r"\W*(?:i\s+(?P<doubt>do\s?n['’]t\s+|do\s+not\s+)?think\s+so"
    r"|(?:it|he|she|they|that|this|there)\s+(?:is|are|was|were|does|do|did|can|could|will|has|have)"
    r"(?P<not>n['’]t|\s+not)?)\W*",
    re.IGNORECASE,
)
_NOT_THE_CASE = re.compile(r"\bnot\s+the\s+case\s+that\b", re.IGNORECASE)


def yes_or_no(text: str) -> bool | Unreadable:
    """Return whether a text says yes.

    It is what the text begins with, else what all such words in it agree on. A negation up to two
    words before `true`, `correct` or `valid` turns it; a negated `yes` or `no` says neither.
    """
    plain = plain_text(text)[:MAX_LINE_CHARS]
    if _BOTH.search(plain):
        return Unreadable("yes and no")
    if (short := _SHORT_REPLY.fullmatch(plain)) is not None:
        return short["doubt"] is None and short["not"] is None
    if (denial := _NOT_THE_CASE.search(plain)) is not None:
        claim = yes_or_no(plain[denial.end() :])
        return claim if isinstance(claim, Unreadable) else not claim
    for part in (_REASON_CLAUSE.split(plain, maxsplit=1)[0], plain):
        polarities = _polarities(part)
        if not polarities:
            continue
        if len(set(polarities.values())) == 1 or 0 in polarities:
            return next(iter(polarities.values()))
        return Unreadable("yes and no")
    return Unreadable("neither yes nor no")


def _polarities(part: str) -> dict[int, bool]:
    """Return what each word that answers yes or no says, by its number in the text.

    A word with a question mark behind it asks, and says nothing.
    """
    words = [word.lower().replace("’", "'") for word in _WORD.findall(part)]
    polarities = {}
    for number, word in enumerate(words):
        if word not in _YES and word not in _NO:
            continue
        following = words[number + 1] if number + 1 < len(words) else ""
        if word == "no" and following in _AFTER_NO:
            continue
        if word in _TRUTH and following in _AFTER_ADJECTIVE:
            continue
        reach = words[max(0, number - _NEGATION_REACH) : number]
        negated = any(before in _NEGATION or before.endswith("n't") for before in reach)
        if negated and word not in _TRUTH:
            continue
        polarities[number] = (word in _YES) != negated
    return polarities


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
    main_clause = _REASON_CLAUSE.split(sentence, maxsplit=1)[0]
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
