"""What a sentence says of a claim: yes or no."""

import re

from debate_rewards.answers.folding import plain_text
from debate_rewards.answers.reply import MAX_LINE_CHARS, Unreadable
from debate_rewards.answers.sentences import REASON_CLAUSE

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
    for part in (REASON_CLAUSE.split(plain, maxsplit=1)[0], plain):
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
