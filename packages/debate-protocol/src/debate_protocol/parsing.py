"""Sections, votes and answers of a reply, read in time linear in its length."""

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from debate_protocol.contracts import CONTRACTS as CONTRACTS
from debate_protocol.contracts import MAX_SECTIONS as MAX_SECTIONS
from debate_protocol.contracts import Contract as Contract
from debate_protocol.contracts import ContractKind as ContractKind
from debate_protocol.contracts import find_contract as find_contract
from debate_protocol.contracts import get_contract as get_contract

ThinkMode = Literal["unwrap", "drop"]
Range = tuple[int, int]

# Replies are hostile input. `++` and `*+` never give back what they have read, so that no reply
# makes a search try again from the same place, which would take the square of its length.
# A fence of three signs or more, with any language, to a closing fence at least as long.
_FENCED = re.compile(
    r"(`{3,}+(?=[^`\n]*+$)|~{3,}+).*+\n(?s:(.*?))^[^\S\n]*+\1[`~]*+[^\S\n]*+$", re.MULTILINE
)
_BULLET = r"(?:[-*+•·–—`]++|\(?[0-9]{1,9}[.)])?+"
# `Agent 1 > Agent 2`, perhaps as an item of a list, in bold, or with HTML's names of the signs.
# More words may follow, but no further sign: a chain such as A > B > C is not one vote.
_VOTE_LINE = re.compile(
    rf"\s*+{_BULLET}\s*+[*_`]*+(?ai:agent)\s*+([0-9]++)\s*+[*_`]*+\s*+"
    r"((?ai:>|<|=|&gt;|&lt;))\s*+[*_`]*+\s*+(?ai:agent)\s*+([0-9]++)(?!\w)(?!\s*+(?:[<>=]|&[gl]t;))"
)
_NOTHING = re.compile(rf"\s*+{_BULLET}\s*+(?ai:n/a|na|none)\s*+[.]?+\s*+\Z")
# After `N/A` a line may give its reason; "none" and "na" may also begin a sentence.
_NOTHING_LINE = re.compile(rf"\s*+{_BULLET}\s*+(?ai:n/a(?!\w)|(?:na|none)\s*+[.]?+\s*+\Z)")
_FENCE_LINE = re.compile(r"\s*+(?:`{3,}+|~{3,}+)\s*+\w*+\s*+\Z")
# Reading long ones as numbers is not linear, and Python may refuse it; they count as malformed.
_MAX_ID_DIGITS = 640
# Why a line of a comparison does not count, in words.
_DROPPED = {
    "invalid_lines": "invalid lines",
    "self_dropped": "lines name their author",
    "malformed": "lines with impossible agents",
}
_MAX_NAMED_STRAY_TAGS = 3
# An escaped brace, as in `\{1, 2\}`, is read as one sign and opens nothing.
_BRACES = re.compile(r"\\boxed\s*+\{|\\.|[{}]", re.DOTALL)
_SPACE = re.compile(r"\s*+")
DISPLAYED = re.compile(
    r"(?P<opening>\\\[|\$\$|```\w*)[ \t]*+\n\s*+(?P<inner>[^\n]*\S)"
    r"[ \t]*+\n\s*+(?P<closing>\\\]|\$\$|```)"
)
"""A formula, or a line of code, between its marks on lines of their own."""
# Perhaps quoted, a heading, an item of a list, or in bold.
_ANSWER_LINE = re.compile(
    r"^[^\S\n]*+[*_#>-]*+[^\S\n]*+(?ai:(?:final )?answer)[^\S\n]*+[*_]*+[^\S\n]*+[:：]",
    re.MULTILINE,
)
HASHES = "####"
# How the messages about a reply without an answer name the missing mark.
_ANSWER_MARKS = {
    "boxed": r"\boxed{…}",
    "answer_line": "line 'Answer: …'",
    "hash_line": "last line '#### …'",
}
_YES_NO = re.compile(r"[\W_]*+(?ai:(yes)|no)(?![^\W_])")
# The word boundary follows the name: before it, the check costs as much as the rest of the search.
_MENTION = re.compile(r"(?i:agent)(?<!\w.{5})\s+(\d{1,9})\b")


class Block(NamedTuple):
    """One occurrence of a section: its name, its outer range and the range between its tags."""

    name: str
    outer: Range
    inner: Range
    truncated: bool


@dataclass(slots=True)
class Scan:
    """The blocks of a text in order, ranges to cut out of it, and closing tags without a block."""

    blocks: list[Block] = field(default_factory=list)
    holes: list[Range] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)
    _open: tuple[str, Range] | None = None

    def _read_section_tag(self, tag: str, is_closing: bool, span: Range) -> None:
        if not is_closing:
            # Sections do not nest: a new one ends the last one, as if its closing tag were missing.
            self._end_section(span[0], span[0], truncated=True)
            self._open = tag, span
        elif self._open is not None and self._open[0] == tag:
            self._end_section(span[0], span[1], truncated=False)
        else:
            self.stray.append(tag)

    def _end_section(self, inner_end: int, outer_end: int, *, truncated: bool) -> None:
        if self._open is not None:
            tag, (outer_start, inner_start) = self._open
            outer = (outer_start, outer_end)
            inner = (inner_start, inner_end)
            self.blocks.append(Block(tag, outer, inner, truncated))
            self._open = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One vote; `A < B` is stored as `B > A`. `span` covers the whole line of the original text."""

    left: int
    op: Literal[">", "="]
    right: int
    span: tuple[int, int]


@dataclass(frozen=True, slots=True)
class SectionText:
    """The text of a section and its ranges in the original text.

    `span` covers the stripped text, `outer` everything from the start of the opening tag to the
    end of the closing tag, or to the end of a truncated section. `text` is `original[span]`,
    without thinking tags inside (or, with `think="drop"`, without thinking blocks).
    """

    text: str
    span: Range
    outer: Range
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Parsed:
    """The content of a response.

    `sections` has the sections of the response, in contract order. `answer` is the text of the
    answer: the solution, or the final box or answer line; `None` without an answer.
    `dropped_lines` are the ranges of the lines counted by `invalid_lines`, `self_dropped` and
    `malformed`, in text order, line breaks included.
    `problems` lists in words every departure from the contract. `reading` records the text and the
    rules it was read by; equality ignores it.
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
    spoken: str = field(default="", compare=False, repr=False)
    """The response without thinking tags or, with `think="drop"`, without thinking blocks."""
    holes: tuple[Range, ...] = field(default=(), compare=False, repr=False)
    """Ranges of the response that `spoken` leaves out."""
    reading: tuple[object, ...] | None = field(default=None, compare=False, repr=False)


@functools.lru_cache(maxsize=64)
def _tag_pattern(sections: tuple[str, ...]) -> re.Pattern[str]:
    # ASCII folding only: under Unicode folding the long s would match the s of solution.
    # Possessive white space, and no white space before the name, keep the scan linear.
    names = "|".join(sorted((*sections, "think"), key=len, reverse=True))
    return re.compile(rf"<(/?)((?ai:{names}))\s*+>")


def scan(text: str, sections: tuple[str, ...], think: ThinkMode) -> Scan:
    """Find sections and thinking tags; time grows linearly with the text."""
    result = Scan()
    thinking_start = -1  # of the thinking block that is open; -1 outside of thinking
    # Only the first tag may close a block that the prompt opened: later ones are strays.
    has_think_tag = False
    for match in _tag_pattern(sections).finditer(text):
        slash, tag = match.groups()
        tag = tag.lower()
        is_closing = slash != ""
        if tag != "think":
            # Thinking that is dropped may draft sections; none of them counts.
            if thinking_start < 0:
                result._read_section_tag(tag, is_closing, match.span())
            continue
        if think == "unwrap":
            result.holes.append(match.span())
        elif not is_closing:
            # Thinking does not nest: the first closing tag ends it.
            if thinking_start < 0:
                thinking_start = match.start()
        elif has_think_tag:
            hole_start = match.start() if thinking_start < 0 else thinking_start
            result.holes.append((hole_start, match.end()))
            thinking_start = -1
        else:
            # The template opened the thinking in the prompt: all text up to here is thinking.
            result = Scan(holes=[(0, match.end())])
        has_think_tag = True
    # A reply cut off by the token limit leaves its last block open.
    if thinking_start >= 0:
        result.holes.append((thinking_start, len(text)))
    result._end_section(len(text), len(text), truncated=True)
    return result


def blanked(text: str, start: int, end: int, holes: Iterable[Range]) -> str:
    """Copy `text[start:end]` with the holes as spaces, so that offsets stay true."""
    pieces: list[str] = []
    position = start
    for hole_start, hole_end in holes:
        left = max(hole_start, position)
        right = min(hole_end, end)
        if left >= right:
            continue
        pieces.append(text[position:left])
        pieces.append(" " * (right - left))
        position = right
    if not pieces:
        return text[start:end]
    pieces.append(text[position:end])
    return "".join(pieces)


def trimmed(content: str) -> Range:
    """Find the range of a section's content without outer white space and code fences.

    Fences are cut off if one pair wraps the whole content. The closing fence is the first of the
    same sign and at least the same length without a language.
    """
    start, end = _stripped(content, 0, len(content))
    fenced = _FENCED.match(content, start, end)
    if fenced is not None and fenced.end() == end:
        return _stripped(content, *fenced.span(2))
    return start, end


@functools.lru_cache(maxsize=64)
def _armed_pattern(sections: tuple[str, ...]) -> re.Pattern[str]:
    tag_names = {"think", "turn", *sections}
    for contract in CONTRACTS.values():
        tag_names.update(contract.sections)
    names = "|".join(sorted(tag_names, key=len, reverse=True))
    # Also `< /solution`, half tags, template marks such as <|im_end|>, and at the end of the text
    # a sign that would make a tag of a name after it.
    tag = rf"\s*+(?:/\s*+)?+(?:(?ai:{names})(?![A-Za-z0-9_])|\Z)"
    return re.compile(rf"<(?={tag}|\|[A-Za-z0-9_]+\|>)")


def neutralised(text: str, contract: Contract) -> str:
    """Disarm every tag of the text that could open or close a section.

    The `<` of such a tag becomes `‹`; nothing else changes, and the length stays the same.
    """
    if "<" not in text:
        return text
    return _armed_pattern(contract.sections).sub("‹", text)


def says_nothing(text: str | None) -> bool:
    """Test whether a section's text is missing, empty or just `N/A`."""
    return text is None or not text.strip() or _NOTHING.match(text) is not None


def _read_votes(
    content: str, offset: int, author: int | None, num_agents: int | None
) -> tuple[list[Comparison], list[tuple[str, Range]]]:
    """Read the comparisons of a section, and the reasons and ranges of lines that do not count.

    These ranges include line breaks: a line that ends too early is wrong at its break.

    Args:
        content: The section's content.
        offset: Start of the content in the original text; spans count from there.
        author: Comparisons that name this agent are dropped.
        num_agents: Ids from this number on are malformed.
    """
    comparisons: list[Comparison] = []
    dropped_lines: list[tuple[str, Range]] = []
    # Ids are never negative; where the number of agents is unknown, no id is too high.
    id_limit = float("inf") if num_agents is None else num_agents
    line_end = offset
    for line in content.splitlines(keepends=True):
        line_start = line_end
        line_end = line_start + len(line)
        words = line.strip()
        words_start = line_start + line.find(words)
        match = _VOTE_LINE.match(line)
        if match is None:
            if words and not _NOTHING_LINE.match(line) and not _FENCE_LINE.match(line):
                dropped_lines.append(("invalid_lines", (words_start, line_end)))
            continue
        left = _read_id(match[1])
        right = _read_id(match[3])
        are_agents = 0 <= left < id_limit and 0 <= right < id_limit
        if author is not None and author in (left, right):
            dropped_lines.append(("self_dropped", (words_start, line_end)))
        elif not are_agents or left == right:
            dropped_lines.append(("malformed", (words_start, line_end)))
        else:
            # One form of each verdict: whoever reads it later looks for > and = alone.
            if match[2].lower() in ("<", "&lt;"):
                left, right = right, left
            op: Literal[">", "="] = "=" if match[2] == "=" else ">"
            span = (words_start, words_start + len(words))
            comparisons.append(Comparison(left=left, op=op, right=right, span=span))
    return comparisons, dropped_lines


def _read_id(digits: str) -> int:
    """Read an agent's number; -1 for one that is too long to be any agent's."""
    significant_digits = digits.lstrip("0")
    if len(significant_digits) > _MAX_ID_DIGITS:
        return -1
    return int(significant_digits or "0")


def final_box(text: str) -> Range | None:
    r"""Find the content of the last complete `\boxed{…}`, `None` without a box.

    One pass with a stack, so that a million openings cost linear time. A box around nothing but
    another box counts as the inner one.
    """
    if "\\boxed" not in text:
        return None
    stack: list[Range | None] = []  # (outer start, content start) of a box; None for other braces
    content: Range | None = None
    last_box = (-1, -1)
    for match in _BRACES.finditer(text):
        sign = match.group()
        if sign.startswith("\\boxed"):
            stack.append(match.span())
        elif sign == "{":
            stack.append(None)
        # A closing brace without an opening one is text.
        elif sign == "}" and stack:
            opening = stack.pop()
            if opening is None:
                continue
            box_start, content_start = opening
            content_end = match.start()
            # The box that closed last fills this one if only white space surrounds it.
            inner_start, inner_end = last_box
            is_around_box = (
                _skip_space(text, content_start) == inner_start
                and _skip_space(text, inner_end) == content_end
            )
            if not is_around_box:
                content = (content_start, content_end)
            last_box = (box_start, match.end())
    return None if content is None else _stripped(text, *content)


def answer_line(text: str) -> Range | None:
    """Find the text after `Answer:` in the last line that begins so, `None` without such a line."""
    last_match: re.Match[str] | None = None
    for match in _ANSWER_LINE.finditer(text):
        last_match = match
    if last_match is None:
        return None
    line_end = text.find("\n", last_match.end())
    if line_end < 0:
        line_end = len(text)
    start, end = _stripped(text, last_match.end(), line_end)
    # The line may be bold as a whole: **Answer: 4**.
    while start < end and text[start] == "*":
        start += 1
    while start < end and text[end - 1] == "*":
        end -= 1
    start, end = _stripped(text, start, end)
    displayed = DISPLAYED.match(text, start)
    return (start, end) if displayed is None else displayed.span("inner")


def hash_line(text: str) -> Range | None:
    """Find the text after the last `####` of the last line, `None` without it."""
    end = len(text.rstrip())
    line_start = text.rfind("\n", 0, end) + 1
    mark = text.rfind(HASHES, line_start, end)
    return None if mark < 0 else _stripped(text, mark + len(HASHES), end)


def free_answer(text: str, kind: ContractKind) -> Range | None:
    """Find the answer of a reply without sections, as contracts of this kind mark it."""
    if kind == "answer_line":
        return answer_line(text)
    return hash_line(text) if kind == "hash_line" else final_box(text)


def _skip_space(text: str, start: int) -> int:
    match = _SPACE.match(text, start) if start >= 0 else None
    return match.end() if match else start


def _stripped(text: str, start: int, end: int) -> Range:
    inner = text[start:end]
    left = start + len(inner) - len(inner.lstrip())
    right = start + len(inner.rstrip())
    # Of white space alone the two ends would pass each other.
    return left, max(left, right)


def parse(
    text: str,
    contract: Contract | str,
    *,
    author: int | None = None,
    num_agents: int | None = None,
    think: ThinkMode = "unwrap",
) -> Parsed:
    """Read a response in time linear in its length; spans are offsets into `text` as given.

    Args:
        text: Any string.
        contract: A contract or the name of a built-in one.
        author: The agent who wrote it; comparisons that name it are dropped and counted.
        num_agents: Comparisons of ids from this number on are malformed and counted.
        think: `unwrap` reads the text of thinking blocks like other text; `drop` ignores it.

    Raises:
        ValueError: The contract's name is unknown.
    """
    rules = get_contract(contract) if isinstance(contract, str) else contract
    tags = scan(text, rules.sections, think)
    if rules.kind == "xml":
        parsed = _parse_sections(text, rules, tags, author, num_agents)
    else:
        parsed = _parse_free_text(text, rules, tags.holes)
    spoken = _without_holes(text, (0, len(text)), tags.holes).strip()
    reading = (text, rules, author, num_agents, think)
    return replace(parsed, spoken=spoken, holes=tuple(tags.holes), reading=reading)


def _parse_free_text(text: str, rules: Contract, holes: list[Range]) -> Parsed:
    visible_text = blanked(text, 0, len(text), holes)
    span = free_answer(visible_text, rules.kind)
    if span is None or span[0] == span[1]:
        return Parsed({}, problems=(f"answer: no {_ANSWER_MARKS[rules.kind]} with content",))
    return Parsed({}, answer=_without_holes(text, span, holes))


def _parse_sections(
    text: str, rules: Contract, tags: Scan, author: int | None, num_agents: int | None
) -> Parsed:
    # A reply of a million stray tags has a short list of problems.
    named_stray_tags = tags.stray[:_MAX_NAMED_STRAY_TAGS]
    problems = [f"closing tag </{tag}> closes nothing" for tag in named_stray_tags]
    num_unnamed = len(tags.stray) - len(named_stray_tags)
    if num_unnamed:
        problems.append(f"{num_unnamed} more closing tags close nothing")
    chosen_blocks = _choose_blocks(tags.blocks, rules, problems)

    sections: dict[str, SectionText] = {}
    comparisons: list[Comparison] = []
    dropped_lines: list[tuple[str, Range]] = []
    for name, block in chosen_blocks.items():
        # Blanked and not cut, so that all spans count from the start of the reply as sampled.
        start, end = block.inner
        content = blanked(text, start, end, tags.holes)
        left, right = trimmed(content)
        span = (start + left, start + right)
        words = _without_holes(text, span, tags.holes)
        sections[name] = SectionText(words, span, block.outer, block.truncated)
        if name == "comparison":
            # A contract that ranks all agents lets its author rank itself among them.
            barred_agent = None if rules.ranks_own else author
            comparisons, dropped_lines = _read_votes(
                content[left:right], span[0], barred_agent, num_agents
            )

    num_dropped = Counter(reason for reason, _ in dropped_lines)
    for reason, description in _DROPPED.items():
        if num_dropped[reason]:
            problems.append(f"comparison: {num_dropped[reason]} {description}")

    consensus = None
    if "consensus" in sections:
        match = _YES_NO.match(sections["consensus"].text)
        if match is None:
            problems.append("consensus: neither YES nor NO")
        else:
            consensus = match[1] is not None

    answer = None
    answer_section = rules.answer_section
    if answer_section in sections:
        answer = sections[answer_section].text or None
        if answer is None:
            problems.append(f"{answer_section}: empty")
    return Parsed(
        sections=sections,
        comparisons=tuple(comparisons),
        invalid_lines=num_dropped["invalid_lines"],
        self_dropped=num_dropped["self_dropped"],
        malformed=num_dropped["malformed"],
        dropped_lines=tuple(line_range for _, line_range in dropped_lines),
        consensus=consensus,
        answer=answer,
        problems=tuple(problems),
    )


def _choose_blocks(blocks: list[Block], rules: Contract, problems: list[str]) -> dict[str, Block]:
    """Choose the last complete block of each section, else its last one; add to `problems`."""
    num_blocks = Counter(block.name for block in blocks)
    best_blocks: dict[str, Block] = {}
    for block in blocks:
        best = best_blocks.get(block.name)
        # A reply cut off while it repeats a section must not lose the complete section before it.
        if best is None or best.truncated or not block.truncated:
            best_blocks[block.name] = block

    chosen_blocks: dict[str, Block] = {}
    latest_start = -1
    for name in rules.sections:
        if name not in best_blocks:
            problems.append(f"{name}: missing")
            continue
        block = best_blocks[name]
        chosen_blocks[name] = block
        if num_blocks[name] > 1:
            problems.append(f"{name}: {num_blocks[name]} blocks, the last complete one is read")
        if block.truncated:
            problems.append(f"{name}: truncated, no closing tag")
        if block.outer[0] < latest_start:
            problems.append(f"{name}: out of order")
        latest_start = max(latest_start, block.outer[0])
    return chosen_blocks


def _without_holes(text: str, span: Range, holes: list[Range]) -> str:
    start, end = span
    pieces: list[str] = []
    for hole_start, hole_end in holes:
        if hole_end <= start or hole_start >= end:
            continue
        pieces.append(text[start : max(hole_start, start)])
        start = min(hole_end, end)
    if not pieces:
        return text[start:end]
    pieces.append(text[start:end])
    return "".join(pieces).strip()


def evaluation_parts(text: str, parsed: Parsed) -> list[tuple[int, Range]]:
    """List (agent, character range) for each part of a reply's evaluation about one agent.

    A part begins where an agent is named and ends where another agent is named or the evaluation
    ends; text before the first name belongs to no part.
    """
    section = parsed.sections.get("evaluation")
    if section is None:
        return []
    section_start, section_end = section.span
    visible_text = blanked(text, 0, section_end, parsed.holes)
    agents: list[int] = []
    starts: list[int] = []
    for mention in _MENTION.finditer(visible_text, section_start):
        agent = int(mention[1])
        # An agent named again continues its part.
        if not agents or agents[-1] != agent:
            agents.append(agent)
            starts.append(mention.start())
    # Each part ends where the next begins. Without a part there is one end too many.
    ends = [*starts[1:], section_end]
    spans = zip(starts, ends, strict=False)
    return list(zip(agents, spans, strict=True))
