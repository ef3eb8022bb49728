"""Tags, sections and comparison lines of a reply, found in one linear pass."""

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from debate_protocol.contract import CONTRACTS, Contract

ThinkMode = Literal["unwrap", "drop"]
Range = tuple[int, int]

_FENCE = re.compile(r"^[^\S\n]*+(`{3,}+(?=[^`\n]*+$)|~{3,}+)(.*+)$", re.MULTILINE)


class Block(NamedTuple):
    """One occurrence of a section: its name, its outer range and the range between its tags."""

    name: str
    outer: Range
    inner: Range
    truncated: bool


@dataclass(slots=True)
class Scan:
    """The blocks of a text in order, what to cut out of it, and tags that close nothing."""

    blocks: list[Block] = field(default_factory=list)
    holes: list[Range] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)
    _open: str = ""
    _outer: int = 0
    _inner: int = 0

    def _read_section_tag(self, tag: str, closing: bool, span: Range) -> None:
        if not closing:
            self._end_open_section(span[0])
            self._open, (self._outer, self._inner) = tag, span
        elif tag == self._open:
            outer, inner = (self._outer, span[1]), (self._inner, span[0])
            self.blocks.append(Block(tag, outer, inner, False))
            self._open = ""
        else:
            self.stray.append(tag)

    def _end_open_section(self, end: int) -> None:
        if self._open:
            outer, inner = (self._outer, end), (self._inner, end)
            self.blocks.append(Block(self._open, outer, inner, True))
            self._open = ""


@functools.lru_cache(maxsize=64)
def _tag_pattern(sections: tuple[str, ...]) -> re.Pattern[str]:
    # ASCII folding only: under Unicode folding the long s would match the s of solution.
    # Possessive white space, and no white space before the name, keep the scan linear.
    names = "|".join(sorted((*sections, "think"), key=len, reverse=True))
    return re.compile(rf"<(/?)((?ai:{names}))\s*+>")


def scan(text: str, sections: tuple[str, ...], think: ThinkMode) -> Scan:
    """Find sections and thinking tags; time grows linearly with the text."""
    found = Scan()
    thinking_from = -1
    seen_think = False
    for match in _tag_pattern(sections).finditer(text):
        slash, tag = match.groups()
        closing, tag = slash != "", tag.lower()
        if tag != "think":
            if thinking_from < 0:
                found._read_section_tag(tag, closing, match.span())
            continue
        if think == "unwrap":
            found.holes.append(match.span())
        elif not closing:
            thinking_from = match.start() if thinking_from < 0 else thinking_from
        elif seen_think:
            found.holes.append((match.start() if thinking_from < 0 else thinking_from, match.end()))
            thinking_from = -1
        else:
            # The template opened the thinking in the prompt: all up to here is thought.
            found = Scan(holes=[(0, match.end())])
        seen_think = True
    if thinking_from >= 0:
        found.holes.append((thinking_from, len(text)))
    found._end_open_section(len(text))
    return found


def blanked(text: str, start: int, end: int, holes: Iterable[Range]) -> str:
    """Return `text[start:end]` with the holes as spaces, so that offsets stay true."""
    pieces: list[str] = []
    at = start
    for left, right in holes:
        left, right = max(left, at), min(right, end)
        if left >= right:
            continue
        pieces += (text[at:left], " " * (right - left))
        at = right
    if not pieces:
        return text[start:end]
    pieces.append(text[at:end])
    return "".join(pieces)


def trimmed(content: str) -> Range:
    """Return the range of a section's content without outer white space and code fences.

    A fence is cut off when it wraps the whole content, or when its partner is missing because
    the fence was opened or closed outside of the section.
    """
    start = len(content) - len(content.lstrip())
    end = len(content.rstrip())
    if "```" in content or "~~~" in content:
        opening, closing = _outer_fences(content, start, end)
        if opening is not None:
            start = opening[1]
        if closing is not None and end > start:
            end = closing[0]
        inner = content[start:end]
        start, end = start + len(inner) - len(inner.lstrip()), start + len(inner.rstrip())
    return (start, end) if start < end else (start, start)


def _outer_fences(content: str, start: int, end: int) -> tuple[Range | None, Range | None]:
    """Return the fences to cut off at the start and at the end, by the rules of Markdown.

    A fence is closed by the next one of the same sign that is as long and names no language.
    """
    first: Range | None = None
    opened: Range | None = None
    mark = ""
    pairs = 0
    closing: Range | None = None
    for match in _FENCE.finditer(content, 0, end):
        sign, language = match.group(1), match.group(2).strip()
        if opened is None:
            opened, mark = match.span(), sign
            first = first or opened
        elif sign[0] == mark[0] and len(sign) >= len(mark) and not language:
            opened, closing = None, match.span()
            pairs += 1
    at_start = first is not None and first[0] <= start
    if opened is not None:
        dangles_at_end = opened[1] >= end
        return (opened if at_start and not pairs else None), (opened if dangles_at_end else None)
    wraps = at_start and pairs == 1 and closing is not None and closing[1] >= end
    return (first, closing) if wraps else (None, None)


@functools.lru_cache(maxsize=64)
def _armed_pattern(sections: tuple[str, ...]) -> re.Pattern[str]:
    names = {"think", "turn", *sections, *(s for c in CONTRACTS.values() for s in c.sections)}
    known = "|".join(sorted(names, key=len, reverse=True))
    # Also `< /solution`, half tags, template marks such as <|im_end|>, and at the end of the text
    # what would make a tag of a name that follows it.
    tag = rf"\s*+(?:/\s*+)?+(?:(?ai:{known})(?![A-Za-z0-9_])|\Z)"
    return re.compile(rf"<(?={tag}|\|[A-Za-z0-9_]+\|>)")


def neutralised(text: str, contract: Contract) -> str:
    """Return the text with every tag that could open or close a section made plain.

    The `<` of such a tag becomes `‹`; nothing else changes, and the length stays the same.
    """
    if "<" not in text:
        return text
    return _armed_pattern(contract.sections).sub("‹", text)


_BULLET = r"(?:[-*+•·–—`]++|\(?[0-9]{1,9}[.)])?+"
_OPERATORS: dict[str, Literal[">", "=", "<"]] = {
    ">": ">",
    "&gt;": ">",
    "=": "=",
    "<": "<",
    "&lt;": "<",
}
_LINE = re.compile(
    rf"\s*+{_BULLET}\s*+[*_`]*+(?ai:agent)\s*+([0-9]++)\s*+[*_`]*+\s*+"
    r"((?ai:>|<|=|&gt;|&lt;))\s*+[*_`]*+\s*+(?ai:agent)\s*+([0-9]++)(?!\w)(?!\s*+(?:[<>=]|&[gl]t;))"
)
_NOTHING = re.compile(rf"\s*+{_BULLET}\s*+(?ai:n/a|na|none)\s*+[.]?+\s*+\Z")
_NOTHING_LINE = re.compile(rf"\s*+{_BULLET}\s*+(?ai:n/a(?!\w)|(?:na|none)\s*+[.]?+\s*+\Z)")
_FENCE_LINE = re.compile(r"\s*+(?:`{3,}+|~{3,}+)\s*+\w*+\s*+\Z")
# Reading longer ones as numbers is not linear, and Python may refuse it; they count as malformed.
_MAX_ID_DIGITS = 640


@dataclass(frozen=True, slots=True)
class Comparison:
    """One vote; `A < B` is held as `B > A`. `span` covers the whole line in the original text."""

    left: int
    op: Literal[">", "="]
    right: int
    span: tuple[int, int]


@dataclass(slots=True)
class Votes:
    """The comparisons of a section and what was not counted.

    `dropped` says where the lines of the latter stand, with their line breaks: where a line cannot
    be read because it ends too early, the break is what is wrong with it.
    """

    comparisons: list[Comparison] = field(default_factory=list)
    invalid_lines: int = 0
    self_dropped: int = 0
    malformed: int = 0
    dropped: list[tuple[int, int]] = field(default_factory=list)


def says_nothing(text: str | None) -> bool:
    """Return whether a section's text is missing, empty or just `N/A`."""
    return text is None or not text.strip() or _NOTHING.match(text) is not None


def read_votes(content: str, offset: int, author: int | None, num_agents: int | None) -> Votes:
    """Read the comparison lines of a section's content that begins at `offset` in the text.

    Args:
        content: The section's content.
        offset: Where it begins in the original text; spans count from there.
        author: Comparisons that name this agent are dropped and counted.
        num_agents: Ids from this number on are malformed.
    """
    votes = Votes()
    # Ids are never negative; where the number of agents is unknown, none is too high.
    beyond = float("inf") if num_agents is None else num_agents
    for line in content.splitlines(keepends=True):
        start, offset = offset, offset + len(line)
        words = line.strip()
        begin = start + line.find(words)
        match = _LINE.match(line)
        if match is None:
            if words and not _NOTHING_LINE.match(line) and not _FENCE_LINE.match(line):
                votes.invalid_lines += 1
                votes.dropped.append((begin, offset))
            continue
        first, sign, second = match.groups()
        left, right = _agent_id(first), _agent_id(second)
        if author is not None and author in (left, right):
            votes.self_dropped += 1
            votes.dropped.append((begin, offset))
        elif not 0 <= left < beyond or not 0 <= right < beyond or left == right:
            votes.malformed += 1
            votes.dropped.append((begin, offset))
        else:
            span = (begin, begin + len(words))
            op = _OPERATORS[sign] if sign in _OPERATORS else _OPERATORS[sign.lower()]
            if op == "<":
                left, op, right = right, ">", left
            votes.comparisons.append(Comparison(left, op, right, span))
    return votes


def _agent_id(digits: str) -> int:
    if len(digits) > _MAX_ID_DIGITS:
        digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) <= _MAX_ID_DIGITS else -1


@dataclass(frozen=True, slots=True)
class Reading:
    """A text and the rules it is read by; as `parse` takes them."""

    text: str
    contract: Contract
    author: int | None
    num_agents: int | None
    think: ThinkMode


@dataclass(frozen=True, slots=True)
class SectionText:
    """The text of a section and where it stands in the original text.

    `span` covers the stripped text, `outer` everything from the start of the opening tag to the
    end of the closing tag or to where the section ended. `text` is `original[span]`, without
    thinking tags (or, with `think="drop"`, thinking blocks) that stand inside.
    """

    text: str
    span: Range
    outer: Range
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a response says.

    `sections` holds those that were found, in contract order. `answer` is what the answer is
    read from: the text of the solution, or the final box or answer line; None if there is none.
    `dropped_lines` says where the lines stand that `invalid_lines`, `self_dropped` and `malformed`
    count, in text order, line breaks included.
    `problems` lists in words everything that departs from the contract. `reading` says what was
    read and by which rules; two of equal content are equal whatever they were read from.
    """

    sections: Mapping[str, SectionText]
    comparisons: tuple[Comparison, ...] = ()
    invalid_lines: int = 0
    self_dropped: int = 0
    malformed: int = 0
    dropped_lines: tuple[Range, ...] = ()
    consensus: bool | None = None
    answer: str | None = None
    problems: tuple[str, ...] = ()
    reading: Reading | None = field(default=None, compare=False, repr=False)
