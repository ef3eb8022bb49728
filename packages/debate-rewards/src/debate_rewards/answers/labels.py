"""Which choice a text names: by its label, or by repeating the choice's own text."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from debate_rewards.answers.folding import plain_text, text_form
from debate_rewards.answers.reply import Unreadable

MAX_SENTENCE_CHARS = 4096
"""Of a longer text only the beginning is searched for labels."""
MAX_DENIAL_CHARS = 40
"""Behind a choice's text only so much is searched for a denial."""
USUAL_LABELS = tuple("ABCDEFGHIJ")
"""Labels of a question that lists no choices."""

_OPENING = r"[\s*_\"'`]*[(\[{]?\s*"
_WORDS_THAT_ARE_LABELS = {"A", "I"}
# After the word "A" or "I" these say that it was the label.
_VERB_AFTER = re.compile(
    r"\s+(?:is|was|because|since|as|and|or|but|over|rather|not|instead|fits|seems|has to)\b"
)
_PRONOUN_AFTER = re.compile(r"\s+(?:because|rather|over|instead|and|or|is)\b")
_DENIED_BEFORE = re.compile(
    r"(?:\bnot|n['’]t(?:\s+be)?|\bnever|\bneither|\bnor|\bthan|\binstead\s+of|\bover|\bunlike"
    r"|\bexclud(?:e|es|ed|ing)|\beliminat(?:e|es|ed|ing)|\breject(?:s|ed|ing)?|\brul(?:e|es|ed|ing)\s+out"
    r"|\bwithout|\bexcept(?:\s+for)?|\b(?:any|anything|all|every|everything)\s+but)"
    r"\s+(?:it\s+is\s+|option\s+|choice\s+|answer\s+|the\s+)?[(\[*]*$",
    re.IGNORECASE,
)
_DENIED_AFTER = re.compile(
    r"[)\]*.]*\s+(?:is|are|was|seems|looks|must\s+be)\s+(?:not|wrong|incorrect|false|too|out|un)"
    r"|[)\]*]*\s+(?:fails|cannot|can['’]t|isn['’]t|doesn['’]t|does\s+not)"
    r"|[)\]*]*\s*\?",
    re.IGNORECASE,
)
_CUE_BEFORE = re.compile(
    r"(?:\banswer|\bis|\bbe|\bchoose|\bchose|\bpick|\bpicked|\bselect|\bgo\s+with|\bsay|\bso|\bthus"
    r"|\bhence|\btherefore|\boption|\bchoice|\bletter|:)[\s,:]*(?:answer|option|choice|letter)?\s*"
    r"[(\[*\"]*$",
    re.IGNORECASE,
)
# "Plan B", "vitamin D": a capital that is part of a name.
_NAMED_THING = re.compile(
    r"(?:(?i:\b(?:plan|vitamin|group|type|class|hepatitis|point|section|figure|grade|team|part|step"
    r"|case|agent|player|set|event|line|company|country|person|city|box|school|town|region|phase))"
    r"|(?<=[a-z,;] )(?!(?:Option|Choice|Answer|Letter|So|Thus|Hence)\b)[A-Z][a-z]+)\s+[(\[*]*$"
)
_ALTERNATIVE = re.compile(r"[)\]*]*(?:\s+(?:or|and)|\s*[,/&])\s*[(\[*]*$", re.IGNORECASE)
_LISTED_LABEL = re.compile(r"[\s,;.*]*[(\[]?(\w+)[)\]]")
_REASON = re.compile(r",?\s+(?:because|since)\s|[,;]\s+(?:as|for|while|whereas|though)\s", re.I)
_DENIED_WORDS = re.compile(r"\b(?:not|n t|n't|n’t|never|than|neither|nor|without)(?: \S+){0,1}$")


def choice_texts(choices: object) -> dict[str, str]:
    """Return the choices' texts by label: A, B, … and numbers from 27 on for a list."""
    if isinstance(choices, Mapping):
        return {str(label).strip().upper(): str(text) for label, text in choices.items()}
    if isinstance(choices, Sequence) and not isinstance(choices, str):
        labels = itertools.chain(ascii_uppercase, map(str, itertools.count(27)))
        return {label: str(text) for label, text in zip(labels, choices, strict=False)}
    return {}


def chosen_label(
    text: str, texts: Mapping[str, str], usual: Sequence[str] = USUAL_LABELS
) -> str | Unreadable:
    """Return the label of the choice that a text names.

    A label alone, or one with a closing sign behind it, goes first, so that a choice's text may be
    a letter or a number. Then a choice's whole text counts, then the label that a sentence settles
    on, then the only choice whose text is in the sentence.

    Args:
        text: The final answer.
        texts: Texts of the choices by label; empty where the question lists none.
        usual: Labels where there are no texts.
    """
    labels = tuple(texts) or tuple(usual)
    plain = plain_text(text)[:MAX_SENTENCE_CHARS]
    bare = plain.strip(" \t\n().:[]{}*_\"'`").upper()
    if bare in labels:
        return bare
    leading = _leading_label(plain, labels, texts)
    if leading is not None:
        return leading
    by_text = _label_of_text(plain, texts)
    if by_text is not None:
        return by_text
    return _settled_label(plain, labels, texts)


def _leading_label(
    plain: str, labels: Sequence[str], texts: Mapping[str, str]
) -> str | Unreadable | None:
    """Read `B) text`, `(B) text`, `B. text` and `B: text`."""
    match = re.match(_OPENING, plain)
    rest = plain[match.end() :] if match else plain
    opened = match is not None and match[0].strip()[-1:] in ("(", "[")
    for label in sorted(labels, key=len, reverse=True):
        if rest[: len(label)].upper() != label:
            continue
        behind = rest[len(label) :].lstrip("*_ ")
        closes = behind[:1] in (")", "]") or (
            behind[:1] in (".", ":", ",", ";") and not behind[1:2].isdigit()
        )
        is_dash = rest[len(label) :].startswith((" - ", " – ", " — "))
        is_capital = rest[: len(label)] == label or behind[:1] in (")", "]")
        if (closes or is_dash) and is_capital and not _lists_more(behind, labels, opened):
            return _unless_text_is_denied(label, behind, labels, texts)
    return None


def _unless_text_is_denied(
    label: str, behind: str, labels: Sequence[str], texts: Mapping[str, str]
) -> str | Unreadable:
    """Return a leading label, unless its text is denied or the next choice is listed after it."""
    own_text = texts.get(label, "")
    after_label = behind.lstrip(").]:,;*_- –—")
    if not own_text or not after_label.lower().startswith(own_text.lower()):
        return label
    after_text = after_label[len(own_text) :]
    next_label = _LISTED_LABEL.match(after_text)
    if next_label is not None and next_label[1] in labels:
        return Unreadable("several labels")
    if _DENIED_AFTER.match(after_text):
        return _settled_label(after_text, labels, texts)
    return label


def _lists_more(behind: str, labels: Sequence[str], opened: bool) -> bool:
    """Return whether another label follows at once, as in `A, B` or `(A) or (B)`."""
    following = re.match(r"[)\].]*\s*(?:[,/&]|or\b|and\b)\s*[(\[]?(\w+)[)\].]*\s*(\w?)", behind)
    if following is None or following[1] not in labels:
        return False
    return not following[2] or opened


def _label_of_text(plain: str, texts: Mapping[str, str]) -> str | None:
    whole = text_form(plain)
    matching = [label for label, text in texts.items() if text_form(text) == whole]
    return matching[0] if len(matching) == 1 else None


@dataclass(frozen=True, slots=True)
class _Mention:
    label: str
    start: int
    end: int
    denied: bool
    cued: bool


def _settled_label(plain: str, labels: Sequence[str], texts: Mapping[str, str]) -> str | Unreadable:
    for sentence in (_REASON.split(plain, maxsplit=1)[0], plain):
        mentions = _mentions(sentence, labels)
        affirmed = [mention for mention in mentions if not mention.denied]
        if not affirmed:
            continue
        named = {mention.label for mention in affirmed}
        if len(named) == 1:
            return affirmed[0].label
        cued = [mention for mention in affirmed if mention.cued]
        if cued and not _is_one_of_several(cued[-1], affirmed, sentence):
            return cued[-1].label
        first = affirmed[0]
        if not sentence[: first.start].strip(" (*[") and not _is_one_of_several(
            first, affirmed, sentence
        ):
            return first.label
        return Unreadable("several labels")
    return _contained_text(plain, texts)


def _is_one_of_several(mention: _Mention, affirmed: Sequence[_Mention], sentence: str) -> bool:
    later = [other for other in affirmed if other.start > mention.start]
    if not later:
        return False
    between = sentence[mention.end : later[0].start]
    return later[0].label != mention.label and _ALTERNATIVE.fullmatch(between) is not None


def _mentions(sentence: str, labels: Sequence[str]) -> list[_Mention]:
    """Return the labels that stand in a sentence as whole words and are no words of it."""
    names = "|".join(re.escape(label) for label in sorted(labels, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w'’.,-])(?:{names})(?![\w'’#+]|[.,]\d)")
    mentions = []
    for match in pattern.finditer(sentence):
        before = sentence[max(0, match.start() - 30) : match.start()]
        after = sentence[match.end() : match.end() + 30]
        if _is_word(match[0], before, after):
            continue
        denied = _DENIED_BEFORE.search(before) or _DENIED_AFTER.match(after)
        mentions.append(
            _Mention(
                label=match[0],
                start=match.start(),
                end=match.end(),
                denied=denied is not None,
                cued=_CUE_BEFORE.search(before) is not None,
            )
        )
    return mentions


def _is_word(label: str, before: str, after: str) -> bool:
    r"""Return whether a letter is the word `A` or `I`, or part of a name such as `vitamin D`."""
    bracketed = before[-1:] in ("(", "[", "*") or after[:1] in (")", "]", "*")
    if bracketed:
        return False
    if label in _WORDS_THAT_ARE_LABELS and re.match(r"\s+[a-z]", after):
        verb = _PRONOUN_AFTER if label == "I" else _VERB_AFTER
        return verb.match(after) is None
    return label.isalpha() and _NAMED_THING.search(before) is not None


def _contained_text(plain: str, texts: Mapping[str, str]) -> str | Unreadable:
    """Return the only choice whose text is in a sentence, None of them within another's text."""
    sentence = f" {_words(plain)} "
    contained = {
        label: words for label, text in texts.items() if f" {(words := _words(text))} " in sentence
    }
    longest = {
        label: words
        for label, words in contained.items()
        if words and not any(words in other and words != other for other in contained.values())
    }
    affirmed = [label for label, words in longest.items() if not _is_denied(words, sentence)]
    if len(affirmed) > 1 and "=" in plain:
        return _contained_text(plain.rpartition("=")[2], texts)
    if len(affirmed) != 1:
        return Unreadable("several choices" if affirmed else "no choice")
    return affirmed[0]


def _is_denied(words: str, sentence: str) -> bool:
    before, _, after = sentence.partition(f" {words} ")
    is_denied_after = _DENIED_AFTER.match(f" {after[:MAX_DENIAL_CHARS]}") is not None
    return is_denied_after or _DENIED_WORDS.search(before) is not None


def _words(text: str) -> str:
    return " ".join(re.findall(r"[\w.%+-]*\w[\w%+-]*|[^\w\s]+(?=\s|$)", text_form(text)))
