"""The verdict of a sentence about a claim: yes or no."""

import re

from debate_rewards.answers.folding import plain_text
from debate_rewards.answers.reply import MAX_LINE_CHARS, Unreadable
from debate_rewards.answers.sentences import REASON_CLAUSE

_NEGATION_REACH = 2
_YES_ADJECTIVES = frozenset(("true", "correct", "valid", "right", "plausible"))
_NO_ADJECTIVES = frozenset(("false", "incorrect", "untrue", "invalid", "wrong", "implausible"))
_ADJECTIVES = _YES_ADJECTIVES | _NO_ADJECTIVES
_YES = _YES_ADJECTIVES | {"yes", "yeah", "yep", "yup", "aye"}
_NO = _NO_ADJECTIVES | {"no", "nope", "nah", "nay"}
_NEGATION = frozenset(("not", "never", "cannot", "hardly", "nothing", "far"))
_WORD = re.compile(r"[a-z]+(?:['’]t)?(?:\s*\?)?|[,;:.!]", re.IGNORECASE)

# "No doubt it is true", "no way to know": this "no" denies a noun and does not answer.
_NOUNS_AFTER_NO = """
doubt longer one matter reason question more less other evidence idea answer problem information
clue comment opinion view preference knowing certainty consensus data proof context details
basis means indication guarantee agreement definite definitive clear conclusive simple
straightforward single sufficient enough
"""
_NOUN_AFTER_NO = frozenset(_NOUNS_AFTER_NO.split())
_NO_WAY_TO = re.compile(
    r"\bno\s+(?:(?:\w+\s+)?way\s+(?:to|of|we|i|you|one|for|that)|t(?:elling))\b", re.IGNORECASE
)
# "The correct answer", "the right side", "correct me": the word does not judge the claim.
_NOUN_AFTER_ADJECTIVE = frozenset(
    ("answer", "answers", "option", "choice", "side", "hand", "me", "now", "away", "angle")
)

_BOTH = re.compile(
    r"\byes(?:\s+(?:and|or)\s+|\s*/\s*)no\b|\bno\s+(?:and|or)\s+yes\b"
    r"|\btrue\s+(?:and|or|nor)\s+false\b|\bfalse\s+(?:and|or|nor)\s+true\b",
    re.IGNORECASE,
)
_UNDECIDED = re.compile(
    r"\b(?:cannot|can['’]?t|can\s+not|could\s+not|couldn['’]t|impossible\s+to|not\s+possible\s+to"
    r"|(?:hard|difficult|tough)\s+to|unable\s+to|no\s+one\s+can|not\s+able\s+to)\s+(?:be\s+)?"
    r"(?:\w+ly\s+)?(?:determined?|known?|sa(?:y|id)|t(?:ell|old)|decided?|answer(?:ed)?|concluded?"
    r"|judged?|verif(?:y|ied)|confirm(?:ed)?|establish(?:ed)?|settled?)\b"
    r"|\b(?:it|that|this|answer)\s+(?:all\s+)?depends\b|\bwhether\b"
    r"|\b(?:not|n['’]t)\s+(?:sure|certain|clear|known|enough\s+information|know)\b"
    r"|\b(?:insufficient|unclear|uncertain|undecided|undetermined|ambiguous)\b",
    re.IGNORECASE,
)
_BEGINS_WITH_VERDICT = re.compile(
    r"\W*(?:yes|yeah|yep|yup|aye|no|nope|nah|nay|true|false)\s*(?:\W|$)", re.I
)
_SHORT_REPLY = re.compile(
    r"\W*(?:i\s+(?P<doubt>do\s?n['’]t\s+|do\s+not\s+)?(?:think|believe|suppose|guess|expect)\s+so"
    r"|(?:it|that|this|the\s+(?:conclusion|statement|claim|argument))\s+(?:logically\s+)?"
    r"(?:follows|holds|(?P<fails>(?:does\s+not|doesn['’]t)\s+(?:logically\s+)?(?:follow|hold)))"
    r"(?:\s+logically)?"
    r"|(?:(?:of\s+course|sure|yeah|indeed)[\s,]+)?"
    r"(?:it|he|she|they|that|this|there)\s+(?:is|are|was|were|does|do|did|can|could|will|has|have)"
    r"(?P<not>n['’]t|\s+not)?)\W*",
    re.IGNORECASE,
)
_ADVERB_REPLY = re.compile(
    r"\W*(?:without\s+(?:a|any)\s+doubt|undoubtedly|exactly|by\s+all\s+means|absolutely|definitely|certainly|of\s+course|indeed|surely|for\s+sure|affirmative)"
    r"(?P<not>\s+not)?\W*(?:$|[.!,;])",
    re.IGNORECASE,
)
_DENYING_REPLY = re.compile(
    r"\W*(?:not\s+(?:really|at\s+all|in\s+the\s+least|a\s+chance)|negative|by\s+no\s+means)\s*"
    r"(?:$|[.!,;])",
    re.IGNORECASE,
)
_NOT_THE_CASE = re.compile(r"\bnot\s+the\s+case\s+that\b", re.IGNORECASE)


def yes_or_no(text: str) -> bool | Unreadable:
    """Decide whether a text says yes.

    The first words decide, or all words such as `true` and `no` where they agree. A negation up
    to two words before `true`, `correct` or `valid` turns it; a negated `yes` or `no` says neither.
    A text without a decision, or with both answers, is unreadable.
    """
    plain = plain_text(text)[:MAX_LINE_CHARS]
    if _BOTH.search(plain):
        return Unreadable("yes and no")
    if (short := _SHORT_REPLY.fullmatch(plain)) is not None:
        return short["doubt"] is None and short["not"] is None and short["fails"] is None
    if (denial := _NOT_THE_CASE.search(plain)) is not None:
        claim = yes_or_no(plain[denial.end() :])
        return claim if isinstance(claim, Unreadable) else not claim

    main_clause = REASON_CLAUSE.split(plain, maxsplit=1)[0]
    begins_with_verdict = _BEGINS_WITH_VERDICT.match(plain) and not _NO_WAY_TO.match(plain)
    if _UNDECIDED.search(main_clause) and not begins_with_verdict:
        # "I'm not sure, but yes."
        _, contrast, verdict = plain.rpartition(" but ")
        return yes_or_no(verdict) if contrast else Unreadable("neither yes nor no")

    for clause in (main_clause, plain):
        polarities = _polarities(clause)
        if not polarities:
            continue
        if len(set(polarities.values())) == 1 or 0 in polarities:
            return next(iter(polarities.values()))
        return Unreadable("yes and no")

    if (adverb := _ADVERB_REPLY.match(plain)) is not None:
        return adverb["not"] is None
    if _DENYING_REPLY.match(plain):
        return False
    return Unreadable("neither yes nor no")


def _polarities(clause: str) -> dict[int, bool]:
    """Map the positions of answering words, such as `true` and `no`, to their meaning.

    A word with a question mark behind it asks, and does not answer.
    """
    clause = _NO_WAY_TO.sub(" ", clause).lstrip(" ,;:.!")
    words = [word.lower().replace("’", "'") for word in _WORD.findall(clause)]
    polarities = {}
    for number, word in enumerate(words):
        if word not in _YES and word not in _NO:
            continue
        following = words[number + 1] if number + 1 < len(words) else ""
        if word == "no" and following in _NOUN_AFTER_NO:
            continue
        if word in _ADJECTIVES and following in _NOUN_AFTER_ADJECTIVE:
            continue
        is_negated = _is_negated(words, number)
        if is_negated and word not in _ADJECTIVES:
            continue
        polarities[number] = (word in _YES) != is_negated
    return polarities


def _is_negated(words: list[str], number: int) -> bool:
    # A comma ends the reach of a negation: "Not really, no."
    for before in reversed(words[max(0, number - _NEGATION_REACH) : number]):
        if before in ",;:.!":
            return False
        if before in _NEGATION or before.endswith("n't"):
            return True
    return False
