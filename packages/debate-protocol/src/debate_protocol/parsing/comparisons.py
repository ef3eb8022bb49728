"""Reading the lines of a comparison section."""

import re
from dataclasses import dataclass, field
from typing import Literal

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
