"""The choice named by a text: by label, or by repeating the choice's own text."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from debate_protocol.prompts import with_labels
from debate_rewards.answers.folding import plain_text, text_form
from debate_rewards.answers.reply import Unreadable

MAX_SENTENCE_CHARS = 4096
"""Of a longer text only the beginning is searched for labels."""
MAX_DENIAL_CHARS = 40
"""Characters behind a choice's text to be searched for a denial."""
MENTION_CHARS = 30
"""Characters to be searched for a denial or a cue, on both sides of a label."""
USUAL_LABELS = tuple("ABCDEFGHIJ")
"""Labels of a question without a list of choices."""

_OPENING = re.compile(r"[\s*_\"'`]*[(\[{]?\s*")
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
    r"|\bhence|\btherefore|\boption|\bchoice|\bletter|\bleav(?:es|ing)|:)"
    r"[\s,:]*(?:answer|option|choice|letter)?\s*[(\[*\"]*$",
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
_NEXT_IN_LIST = re.compile(r"[)\].]*\s*(?:[,/&]|or\b|and\b)\s*[(\[]?(\w+)[)\].]*\s*(\w?)")
_REASON = re.compile(r",?\s+(?:because|since)\s|[,;]\s+(?:as|for|while|whereas|though)\s", re.I)
_DENIED_WORDS = re.compile(
    r"\b(?:not|n t|n't|n’t|never|than|neither|nor|without|except|(?:any|anything|everything) but)"
    r"(?: \S+){0,1}$"
)
_WORD = re.compile(r"[\w.%+-]*\w[\w%+-]*|[^\w\s]+(?=\s|$)")
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
_ORDINAL_OPTION = re.compile(
    rf"\W*(?:it['’]s\s+|it\s+is\s+)?(?:the\s+)?({'|'.join(_ORDINALS)}|last)\s+"
    r"(?:option|choice|answer)\W*",
    re.IGNORECASE,
)
_NUMBERED_OPTION = re.compile(r"\W*(?:option|choice)\s+(?:number\s+|no\.\s*|#)?(\d)\W*", re.I)
_CONCLUSION = re.compile(r".*\b(?:so|thus|hence|therefore)\b", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Mention:
    """A label as a separate word of a sentence."""

    label: str
    start: int
    end: int
    is_denied: bool
    is_cued: bool


def choice_texts(choices: object) -> dict[str, str]:
    """Map labels to the choices' texts: A, B, … and numbers from 27 on for a list."""
    return {label.strip().upper(): text for label, text in with_labels(choices)}


def chosen_label(
    text: str, texts: Mapping[str, str], usual: Sequence[str] = USUAL_LABELS
) -> str | Unreadable:
    """Find the label of the choice named by a text.

    A bare label goes first, so a choice's text may be a letter or a number. Then a choice's whole
    text counts, which may begin as a label does (`B. F. Skinner`), then a label with a closing sign
    behind it, then the label affirmed by a sentence, then the only choice with its text in the
    sentence.

    Args:
        text: The final answer.
        texts: Texts of the choices by label; empty where the question lists none.
        usual: Labels where there are no texts.
    """
    labels = tuple(texts) or tuple(usual)
    plain = plain_text(text)[:MAX_SENTENCE_CHARS]
    # The label alone, in any case and punctuation.
    bare = plain.strip(" \t\n().:[]{}*_\"'`").upper()
    if bare in labels:
        return bare

    whole_text = text_form(plain)
    labels_of_text = [label for label, choice in texts.items() if text_form(choice) == whole_text]
    if len(labels_of_text) == 1:
        return labels_of_text[0]

    leading = _leading_label(plain, labels, texts)
    if leading is not None:
        return leading

    ordinal = _ORDINAL_OPTION.fullmatch(plain)
    if ordinal is not None and texts:
        position = -1 if ordinal[1].lower() == "last" else _ORDINALS.index(ordinal[1].lower())
        return labels[position] if position < len(labels) else Unreadable("no choice")

    numbered = _NUMBERED_OPTION.fullmatch(plain)
    if numbered is not None and texts:
        # "Option 4" is the fourth, unless a choice's own text has the number.
        position = int(numbered[1]) - 1
        is_text = any(numbered[1] in choice for choice in texts.values())
        if labels[0].isalpha():
            has_position = 0 <= position < len(labels) and not is_text
            return labels[position] if has_position else Unreadable("no choice")

    return _settled_label(plain, labels, texts)


def _leading_label(
    plain: str, labels: Sequence[str], texts: Mapping[str, str]
) -> str | Unreadable | None:
    """Read `B) text`, `(B) text`, `B. text` and `B: text`."""
    opening = _OPENING.match(plain)
    start = opening.end() if opening else 0
    is_bracketed = opening is not None and opening[0].strip()[-1:] in ("(", "[")
    rest = plain[start:]
    # Longest first: "10" is not the label "1".
    for label in sorted(labels, key=len, reverse=True):
        written = rest[: len(label)]
        if written.upper() != label:
            continue
        behind = rest[len(label) :].lstrip("*_ ")
        has_bracket = behind[:1] in (")", "]")
        has_sign = behind[:1] in (".", ":", ",", ";") and not behind[1:2].isdigit()
        has_dash = rest[len(label) :].startswith((" - ", " – ", " — "))
        if not (has_bracket or has_sign or has_dash):
            continue
        # A small letter is a label before a bracket only: "a - b" is a difference.
        is_capital = written == label or has_bracket
        if is_capital and not _lists_another(behind, labels, is_bracketed):
            return _unless_text_is_denied(label, behind, labels, texts)
    return None


def _unless_text_is_denied(
    label: str, behind: str, labels: Sequence[str], texts: Mapping[str, str]
) -> str | Unreadable:
    """Refuse a leading label with a denied text, or at the beginning of a list of choices."""
    choice = texts.get(label, "")
    after_label = behind.lstrip(").]:,;*_- –—")
    if not choice or not after_label.lower().startswith(choice.lower()):
        return label
    after_text = after_label[len(choice) :]
    next_label = _LISTED_LABEL.match(after_text)
    if next_label is not None and next_label[1] in labels:
        return Unreadable("several labels")
    if _DENIED_AFTER.match(after_text):
        return _settled_label(after_text, labels, texts)
    return label


def _lists_another(behind: str, labels: Sequence[str], is_bracketed: bool) -> bool:
    """Check whether another label follows at once, as in `A, B` or `(A) or (B)`."""
    following = _NEXT_IN_LIST.match(behind)
    if following is None or following[1] not in labels:
        return False
    return not following[2] or is_bracketed


def _settled_label(plain: str, labels: Sequence[str], texts: Mapping[str, str]) -> str | Unreadable:
    main_clause = _REASON.split(plain, maxsplit=1)[0]
    for sentence in (main_clause, plain):
        mentions = _mentions(sentence, labels)
        affirmed = [mention for mention in mentions if not mention.is_denied]
        if not affirmed:
            continue
        if len({mention.label for mention in affirmed}) == 1:
            return affirmed[0].label

        # Of several labels the last one counts that "the answer is" or the like introduces, or the
        # one that the sentence begins with; never one of an enumeration.
        cued = [mention for mention in affirmed if mention.is_cued]
        if cued and not _is_one_of_several(cued[-1], affirmed, sentence):
            return cued[-1].label
        first = affirmed[0]
        begins_sentence = not sentence[: first.start].strip(" (*[")
        if begins_sentence and not _is_one_of_several(first, affirmed, sentence):
            return first.label
        return Unreadable("several labels")
    return _contained_text(plain, texts)


def _is_one_of_several(mention: _Mention, affirmed: Sequence[_Mention], sentence: str) -> bool:
    later = [other for other in affirmed if other.start > mention.start]
    if not later or later[0].label == mention.label:
        return False
    between = sentence[mention.end : later[0].start]
    return _ALTERNATIVE.fullmatch(between) is not None


def _mentions(sentence: str, labels: Sequence[str]) -> list[_Mention]:
    names = "|".join(re.escape(label) for label in sorted(labels, key=len, reverse=True))
    small_letters = "".join(
        label.lower() for label in labels if len(label) == 1 and label.isalpha()
    )
    pattern = rf"(?<![\w'’.,-])(?:{names})(?![\w'’#+]|[.,]\d)"
    if small_letters:
        # A small letter is a label in brackets only: "option (b)".
        pattern += rf"|(?<=\s[(\[])[{small_letters}](?=[)\]])"
    mentions = []
    for match in re.finditer(pattern, sentence):
        before = sentence[max(0, match.start() - MENTION_CHARS) : match.start()]
        after = sentence[match.end() : match.end() + MENTION_CHARS]
        if _is_word(match[0], before, after):
            continue
        is_denied = _DENIED_BEFORE.search(before) or _DENIED_AFTER.match(after)
        mention = _Mention(
            label=match[0].upper(),
            start=match.start(),
            end=match.end(),
            is_denied=is_denied is not None,
            is_cued=_CUE_BEFORE.search(before) is not None,
        )
        mentions.append(mention)
    return mentions


def _is_word(label: str, before: str, after: str) -> bool:
    """Check whether a letter is the word `A` or `I`, or part of a name such as `vitamin D`."""
    is_bracketed = before[-1:] in ("(", "[", "*") or after[:1] in (")", "]", "*")
    if is_bracketed:
        return False
    if label in _WORDS_THAT_ARE_LABELS and re.match(r"\s+[a-z]", after):
        verb = _PRONOUN_AFTER if label == "I" else _VERB_AFTER
        return verb.match(after) is None
    return label.isalpha() and _NAMED_THING.search(before) is not None


def _contained_text(plain: str, texts: Mapping[str, str]) -> str | Unreadable:
    """Find the only choice with its text in a sentence, but not within another choice's text."""
    sentence = f" {_words(plain)} "
    words_by_label = {label: _words(text) for label, text in texts.items()}
    contained = {
        label: words
        for label, words in words_by_label.items()
        if words and f" {words} " in sentence
    }
    affirmed = []
    for label, words in contained.items():
        is_within_another = any(words in other and words != other for other in contained.values())
        before, _, behind = sentence.partition(f" {words} ")
        is_denied_behind = _DENIED_AFTER.match(f" {behind[:MAX_DENIAL_CHARS]}")
        is_denied = is_denied_behind or _DENIED_WORDS.search(before)
        if not is_within_another and not is_denied:
            affirmed.append(label)
    conclusion = _CONCLUSION.match(plain)
    if len(affirmed) > 1 and conclusion is not None and conclusion.end() < len(plain):
        return _contained_text(plain[conclusion.end() :], texts)
    if len(affirmed) > 1 and "=" in plain:
        return _contained_text(plain.rpartition("=")[2], texts)
    if len(affirmed) != 1:
        return Unreadable("several choices" if affirmed else "no choice")
    return affirmed[0]


def _words(text: str) -> str:
    return " ".join(_WORD.findall(text_form(text)))
