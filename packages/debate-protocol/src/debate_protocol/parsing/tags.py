"""Finding the tags of a response in one linear pass, and disarming them in inserted text."""

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from debate_protocol.parsing.contract import CONTRACTS, Contract

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
